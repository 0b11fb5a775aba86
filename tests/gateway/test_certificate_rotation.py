"""Certificates that change while a server runs: new connections get the new one, running streams continue."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from certificates import Certificates, dated, serving
from commands import run_server_command
from ray_clusters import free_port
from support import raises

import rollserve
from rollserve_server.local import LocalServer

STEPS = 300_000
"""Steps whose messages take more room than all buffers between worker and client."""


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "certificates")


@dataclass(frozen=True)
class Rotating:
    """A server that asks clients for certificates, and whose files tests change.

    Attributes:
        server: the server.
        certificates: its files, and its clients'.
        metrics: address of its metrics.
        log_file: its log.
        log_start: size of the log when the test began.
    """

    server: LocalServer
    certificates: Certificates
    metrics: str
    log_file: Path
    log_start: int = 0

    def log(self) -> str:
        """Return what the server has logged since the test began."""
        return self.log_file.read_bytes()[self.log_start :].decode()


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rotating]:
    folder = tmp_path_factory.mktemp("rotating")
    certificates, metrics = Certificates(folder / "certificates"), f"127.0.0.1:{free_port()}"
    options = (*certificates.server, "--tls-client-ca", str(certificates.path("ca")), "--metrics-listen", metrics)
    with serving(folder, *options) as server:
        yield Rotating(server, certificates, metrics, folder / "log")


@pytest.fixture
def rotating(started: Rotating) -> Iterator[Rotating]:
    """The server of this file, which has its first certificates before and after the test."""
    folder = started.certificates.folder
    before = {path: path.read_bytes() for path in folder.iterdir()}
    yield dataclasses.replace(started, log_start=started.log_file.stat().st_size)
    for path in folder.iterdir():
        path.unlink()
    for path, content in before.items():
        path.write_bytes(content)
    assert presented(started.server) == der(started.certificates)


def presented(server: LocalServer) -> bytes:
    """Return the certificate, in DER, that the server shows on a new connection."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection, context.wrap_socket(connection) as wrapped:
        return wrapped.getpeercert(binary_form=True) or b""


def days_left(metrics: str, file: str) -> float:
    """Return the days until a file's first certificate expires, as a server's metrics say."""
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=30) as response:
        text = response.read().decode()
    [found] = re.findall(rf'^rollserve_certificate_expiry_seconds{{file="{file}"}} (\S+)$', text, re.MULTILINE)
    return (float(found) - time.time()) / 86400


def der(certificates: Certificates, name: str = "server") -> bytes:
    return ssl.PEM_cert_to_DER_cert(certificates.path(name).read_text())


def rotate(certificates: Certificates, name: str = "server") -> None:
    """Write another certificate and key over the present ones."""
    certificates.write(name, certificates.authority.server(["127.0.0.1"], days=1))


@pytest.mark.slow
def test_running_stream_continues_through_a_rotation(certificates: Certificates, tmp_path: Path) -> None:
    buffers = ("--call-window-bytes", str(1 << 20), "--gateway-buffer-bytes", str(8 << 20))
    with (
        serving(tmp_path, *certificates.server, *buffers) as server,
        rollserve.connect(server.address, max_message_bytes=100_000, **certificates.ca) as sampler,
    ):
        sampler.update_agent(rollserve.RandomAgent())
        stream = sampler.stream_samples(STEPS, seed=3)
        parts = [next(stream)]
        before = presented(server)
        rotate(certificates)
        assert presented(server) == der(certificates) != before
        with rollserve.connect(server.address, **certificates.ca) as other:
            assert other.status().counters.num_completed_calls == 0  # the stream is running still
            parts += stream
            assert stream.end().num_resumptions == 0
            expected = other.obtain_samples(STEPS, seed=3)
        for name in ("observations", "actions", "rewards"):
            received = np.concatenate([getattr(part, name) for part in parts])
            assert np.array_equal(received, getattr(expected, name))
        assert sampler.obtain_samples(100).num_steps >= 100  # over the old connection


def test_folder_behind_links_is_swapped_at_once(certificates: Certificates, tmp_path: Path) -> None:
    """Kubernetes mounts secrets as links into a folder `..data`, which is itself a link that is replaced."""
    mount, second = tmp_path / "mount", tmp_path / "second"
    shutil.copytree(certificates.folder, second)
    mount.mkdir()
    (mount / "..data").symlink_to(certificates.folder)
    for name in ("server.pem", "server-key.pem"):
        (mount / name).symlink_to(Path("..data", name))
    rotate(certificates, "spare")
    for ending in ("", "-key"):
        shutil.copy2(certificates.path(f"spare{ending}"), second / f"server{ending}.pem")
    options = ("--tls-cert", str(mount / "server.pem"), "--tls-key", str(mount / "server-key.pem"))
    with serving(tmp_path, *options) as server:
        assert presented(server) == der(certificates)
        (mount / "..next").symlink_to(second)
        os.replace(mount / "..next", mount / "..data")
        assert presented(server) == der(certificates, "spare")


BROKEN = {
    "other key": "tls_key",
    "half a key": "tls_key",
    "curve that clients refuse": "tls_key",
    "text": "tls_cert",
    "unknown version": "tls_cert",
    "missing": "tls_cert",
}


def break_files(certificates: Certificates, broken: str) -> None:
    """Write something over the server's files that no server can use."""
    cert, key = certificates.path("server"), certificates.path("server-key")
    match broken:
        case "other key":
            key.write_bytes(certificates.authority.server(["x"], days=1).key)
        case "half a key":
            key.write_bytes(key.read_bytes()[:100])
        case "curve that clients refuse":
            command = ["openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-subj", "/CN=x"]
            command += ["-pkeyopt", "ec_paramgen_curve:secp521r1", "-keyout", key, "-out", cert]
            subprocess.run(command, check=True, capture_output=True)
        case "text":
            cert.write_text("no certificate")
        case "unknown version":
            odd = der(certificates).replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x3a")
            cert.write_text(ssl.DER_cert_to_PEM_cert(odd))
        case _:
            cert.unlink()


def test_broken_files_leave_the_previous_certificate(rotating: Rotating) -> None:
    server, certificates = rotating.server, rotating.certificates
    for number, (broken, setting) in enumerate(BROKEN.items(), start=1):
        good, secret = der(certificates), certificates.path("server-key").read_text().splitlines()[1]
        break_files(certificates, broken)
        assert [presented(server) for _ in range(3)] == 3 * [good], broken
        with rollserve.connect(server.address, **certificates.client) as sampler:
            sampler.status()
        refusals = [line for line in rotating.log().splitlines() if "new certificate not used" in line]
        assert len(refusals) == number
        assert f"{setting}: expected" in refusals[-1]
        assert secret not in rotating.log()
        rotate(certificates)
        assert presented(server) == der(certificates) != good
        assert rotating.log().count("certificate in use") == number


def test_authorities_that_are_cut_off_leave_the_previous_ones(rotating: Rotating) -> None:
    ca = rotating.certificates.path("ca")
    whole = ca.read_bytes()
    for unusable in (b"", whole[:200], whole + whole[:200], whole + whole[:-10]):
        ca.write_bytes(unusable)
        assert presented(rotating.server) == der(rotating.certificates)
    assert rotating.log().count("new certificate not used error='tls_client_ca: expected") == 4


def joined(*contents: bytes) -> bytes:
    """Return files one after the other, as `cat` does; none ends with a line break."""
    return b"".join(each.rstrip() for each in contents)


WAYS = {
    "byte order mark": lambda contents: b"\xef\xbb\xbf" + contents,
    "no line breaks": lambda contents: joined(contents, contents),
    "line breaks of Windows": lambda contents: contents.replace(b"\n", b"\r\n"),
    "text around": lambda contents: b"Bag Attributes\n    friendlyName: server\n" + contents + b"that is all\n",
    "indented": lambda contents: b"  " + contents.replace(b"\n", b"\n  "),
}


def test_files_are_used_however_they_are_written(rotating: Rotating) -> None:
    """gRPC alone would refuse every new connection with most of these."""
    server, certificates = rotating.server, rotating.certificates
    ca, ca_of_client = certificates.path("ca"), certificates.path("ca-of-client")
    authority = ca.read_bytes()
    ca_of_client.write_bytes(authority)
    of_client = {**certificates.client, "ca": ca_of_client}
    for way in WAYS.values():
        ca.write_bytes(way(authority))
        issued = certificates.authority.server(["127.0.0.1"], days=1)
        certificates.path("server").write_bytes(way(issued.cert))
        certificates.path("server-key").write_bytes(way(issued.key))
        assert presented(server) == ssl.PEM_cert_to_DER_cert(issued.cert.decode())
        with rollserve.connect(server.address, **of_client) as sampler:
            sampler.status()
    for path in of_client.values():  # as editors of Windows write them
        path.write_bytes(WAYS["byte order mark"](WAYS["line breaks of Windows"](path.read_bytes())))
    with rollserve.connect(server.address, **of_client) as sampler:
        sampler.status()


def test_authority_of_clients_can_change(rotating: Rotating, tmp_path: Path) -> None:
    server, certificates, others = rotating.server, rotating.certificates, Certificates(tmp_path / "others")
    trusted, ca_of_client = certificates.path("ca"), certificates.path("ca-of-client")
    shutil.copy2(trusted, ca_of_client)
    of_ours, of_others = ({**each.client, "ca": ca_of_client} for each in (certificates, others))
    with rollserve.connect(server.address, **of_others) as sampler, raises(rollserve.UnavailableError):
        sampler.status()
    trusted.write_bytes(others.authority.own.cert)
    with rollserve.connect(server.address, **of_others) as sampler:
        sampler.status()
    with (
        rollserve.connect(server.address, **of_ours) as sampler,
        raises(rollserve.UnavailableError, quotes="`cert`"),
    ):
        sampler.status()


def test_renewed_authority_is_trusted_beside_the_old_one(rotating: Rotating, tmp_path: Path) -> None:
    """Whoever has the old files, or some of the new ones, goes on until the old authority expires."""
    server, certificates, metrics = rotating.server, rotating.certificates, rotating.metrics
    old_ca, ca = tmp_path / "old-ca.pem", certificates.path("ca")
    old_ca.write_bytes(dated(certificates.authority.own, certificates.authority.own, starts=-345, expires=20))
    shutil.copy2(old_ca, ca)
    of_old = {**certificates.client, "ca": old_ca}
    for name in ("client", "client-key"):
        shutil.copy2(certificates.path(name), certificates.path(f"old-{name}"))
    of_old |= {"cert": certificates.path("old-client"), "key": certificates.path("old-client-key")}
    with rollserve.connect(server.address, **of_old) as running:
        running.status()
        assert days_left(metrics, "tls_client_ca") == pytest.approx(20, abs=0.1)
        assert run_server_command("init-tls", certificates.folder, "--renew").exit_code == 0
        assert days_left(metrics, "tls_client_ca") == pytest.approx(3650, abs=0.1)
        assert days_left(metrics, "tls_cert") == pytest.approx(365, abs=0.1)
        assert ca.read_text().count("BEGIN CERTIFICATE") == 2
        for files in (of_old, certificates.client, {**of_old, "ca": ca}, {**certificates.client, "ca": old_ca}):
            with rollserve.connect(server.address, **files) as sampler:
                sampler.status()
        assert presented(server) == der(certificates)
        running.status()
        warning = "WARNING certificate expires soon tls_client_ca='CN=Rollserve development CA' expires="
        assert rotating.log().count(warning) == 1
        # The bundle is as good once the old one has expired.
        new = ca.read_text().split("-----END")[0] + "-----END CERTIFICATE-----\n"
        expired = dated(certificates.authority.own, certificates.authority.own, starts=-400, expires=-1)
        ca.write_bytes(new.encode() + expired)
        with rollserve.connect(server.address, **certificates.client) as sampler:
            sampler.status()
        assert days_left(metrics, "tls_client_ca") == pytest.approx(3650, abs=0.1)


def test_expired_authorities_are_logged_beside_a_valid_certificate(certificates: Certificates, tmp_path: Path) -> None:
    expired = dated(certificates.authority.own, certificates.authority.own, starts=-400, expires=-1)
    certificates.path("ca").write_bytes(expired)
    certificates.write("server", certificates.authority.client("\x1b[31mred", days=40))
    with certificates.path("server").open("ab") as chain:
        chain.write(expired)
    metrics = f"127.0.0.1:{free_port()}"
    with serving(
        tmp_path, *certificates.server, "--tls-client-ca", str(certificates.path("ca")), "--metrics-listen", metrics
    ):
        log = (tmp_path / "log").read_text()
        for setting in ("tls_cert", "tls_client_ca"):
            assert days_left(metrics, setting) == pytest.approx(-1, abs=0.1)
            assert f"WARNING certificate has expired {setting}='CN=Rollserve development CA' expires=" in log
        assert "\x1b" not in log


def test_metrics_take_nothing_from_new_connections(rotating: Rotating) -> None:
    """Whoever reads the changed files first, the next connection gets the new certificate."""
    certificates = rotating.certificates
    certificates.write("server", certificates.authority.server(["127.0.0.1"], days=40))
    assert days_left(rotating.metrics, "tls_cert") == pytest.approx(40, abs=0.1)
    assert presented(rotating.server) == der(certificates)
