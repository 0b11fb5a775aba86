"""Encrypted connections: who gets a connection, and which errors others get."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from certificates import LIGHT, Certificates, serving
from commands import ROLLSERVE, run_here, run_server_command
from cutting_proxy import cutting_proxy
from grpc_health.v1 import health_pb2, health_pb2_grpc
from spawned import awaited, in_spawned_process
from support import equal, raises

import rollserve
from rollserve import Reason
from rollserve_server.local import LocalServer
from rollserve_server.settings import GatewaySettings


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates") / "ours")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of an authority that nobody trusts."""
    return Certificates(tmp_path_factory.mktemp("certificates") / "others")


@pytest.fixture(scope="module")
def encrypted(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server with TLS, which listens beyond its machine."""
    options = ("--shared-memory-bytes", str(3 << 20), "--listen", "0.0.0.0:0")
    with serving(tmp_path_factory.mktemp("encrypted"), *certificates.server, *options) as running:
        with rollserve.connect(running.address, **certificates.ca) as sampler:
            sampler.update_agent(rollserve.RandomAgent())
        yield running


@pytest.fixture(scope="module")
def mutual(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server that asks clients for certificates."""
    options = (*certificates.server, "--tls-client-ca", str(certificates.path("ca")))
    with serving(tmp_path_factory.mktemp("mutual"), *options) as running:
        yield running


@pytest.fixture(scope="module")
def plain_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plain") / "log"


@pytest.fixture(scope="module")
def plain(plain_log: Path) -> Iterator[LocalServer]:
    """A server without TLS that listens beyond its machine all the same."""
    with serving(plain_log.parent, "--insecure", "--listen", "0.0.0.0:0") as running:
        with rollserve.connect(running.address) as sampler:
            sampler.update_agent(rollserve.RandomAgent())
        yield running


def test_encrypted_calls_deliver_the_same(
    encrypted: LocalServer, plain: LocalServer, certificates: Certificates
) -> None:
    with (
        rollserve.connect(encrypted.address, **certificates.ca) as first,
        rollserve.connect(plain.address) as second,
    ):
        assert equal(first.obtain_samples(5_000, seed=3), second.obtain_samples(5_000, seed=3))


async def test_async_client_connects_with_tls(encrypted: LocalServer, certificates: Certificates) -> None:
    async with rollserve.aconnect(encrypted.address, **certificates.ca) as sampler:
        assert (await sampler.obtain_samples(100)).num_steps >= 100


def test_credentials_of_grpc_are_accepted(encrypted: LocalServer, certificates: Certificates) -> None:
    credentials = grpc.ssl_channel_credentials(certificates.path("ca").read_bytes())
    with rollserve.connect(encrypted.address, credentials=credentials) as sampler:
        sampler.status()
        with raises(TypeError, field="credentials"):
            pickle.dumps(sampler)


def test_pickled_sampler_connects_with_tls(
    mutual: LocalServer, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = certificates.client
    monkeypatch.chdir(files["ca"].parent)
    sampler = rollserve.connect(mutual.address, **{name: path.name for name, path in files.items()})
    monkeypatch.chdir("/")  # relative paths mean what they meant to `connect`
    assert in_spawned_process(sampler.list_samplers)[0].sampler == "default"
    assert in_spawned_process(awaited, rollserve.aconnect(mutual.address, **files), "list_samplers")
    contents = pickle.dumps(sampler)
    assert files["key"].read_bytes().splitlines()[1] not in contents


def test_variables_name_the_files(
    mutual: LocalServer, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, path in certificates.client.items():
        monkeypatch.setenv(f"ROLLSERVE_{name.upper()}", str(path))
    with rollserve.connect(mutual.address) as sampler:
        sampler.status()
    assert run_here("status", mutual.address).returncode == 0


def test_context_names_the_server_and_the_files(
    mutual: LocalServer, certificates: Certificates, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("ROLLSERVE_CA", "/nowhere.pem")  # a context leaves no room for variables
    lines = [f'address = "{mutual.address}"', *(f'{name} = "{path}"' for name, path in certificates.client.items())]
    (tmp_path / "rollserve").mkdir()
    (tmp_path / "rollserve" / "contexts.toml").write_text("\n".join(["[lab]", *lines]))
    with rollserve.connect("lab") as sampler:
        sampler.status()
    shown = run_here("status", "lab")
    assert shown.returncode == 0, shown.stderr


def test_command_line_names_the_files(mutual: LocalServer, certificates: Certificates, others: Certificates) -> None:
    files = [part for name, path in certificates.client.items() for part in (f"--{name}", str(path))]
    shown = run_here("status", mutual.address, *files)
    assert shown.returncode == 0, shown.stderr
    refused = run_here("status", mutual.address, "--ca", others.path("ca"))
    assert refused.returncode == 1
    assert "ca: expected" in refused.stderr
    assert run_here("status", mutual.address, "--ca", "/nowhere.pem").returncode == 2


@contextlib.contextmanager
def quickly() -> Iterator[None]:
    """Expect the block to end long before the client's timeout of 60 s."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 20


def refused(address: str, *quotes: str, field: str, **files: Any) -> None:
    """Expect that TLS fails, in both clients and at once."""

    async def ask() -> None:
        async with rollserve.aconnect(address, **files) as sampler:
            await sampler.status()

    expected: Any = {"field": field, "reason": Reason.TLS_FAILED, "quotes": quotes}
    with quickly(), rollserve.connect(address, **files) as sampler:
        for call in (sampler.status, lambda: sampler.obtain_samples(10), lambda: sampler.evaluate(1)):
            with raises(rollserve.InvalidArgumentError, **expected) as caught:
                call()
            assert caught.value.code is grpc.StatusCode.UNAUTHENTICATED
    with quickly(), raises(rollserve.InvalidArgumentError, **expected):
        asyncio.run(ask())


def test_server_of_another_authority_is_refused(encrypted: LocalServer, others: Certificates) -> None:
    refused(encrypted.address, "unable to get local issuer", field="ca", **others.ca)


def test_server_of_another_name_is_refused(certificates: Certificates, tmp_path: Path) -> None:
    elsewhere = Certificates(tmp_path / "elsewhere")
    elsewhere.write("server", elsewhere.authority.server(["server.lab"], days=1))
    with serving(tmp_path, *elsewhere.server) as server:
        refused(server.address, "name", field="target", **elsewhere.ca)


def test_expired_server_is_refused(tmp_path: Path) -> None:
    old = Certificates(tmp_path / "old")
    old.write("server", old.authority.server(["127.0.0.1"], days=-0.01))
    with serving(tmp_path, *old.server) as server:
        refused(server.address, "expired", field="ca", **old.ca)
    assert "certificate has expired" in (tmp_path / "log").read_text()


def test_server_without_tls_is_refused(plain: LocalServer, certificates: Certificates) -> None:
    refused(plain.address, "TLS", field="target", **certificates.ca)


def closed(address: str, *quotes: str, **files: Any) -> None:
    """Expect that the server closes the connection, and that the error says what may be missing."""
    with quickly(), rollserve.connect(address, **files) as sampler:
        with raises(rollserve.UnavailableError, field="", reason="", quotes=quotes) as caught:
            sampler.status()
        assert "refused" not in str(caught.value)  # as if no server were there


def test_client_without_tls_gets_a_hint(encrypted: LocalServer) -> None:
    closed(encrypted.address, "`ca`")


def test_client_without_certificate_gets_a_hint(mutual: LocalServer, certificates: Certificates) -> None:
    closed(mutual.address, "`cert`", **certificates.ca)


def test_client_of_another_authority_gets_a_hint(
    mutual: LocalServer, certificates: Certificates, others: Certificates
) -> None:
    closed(mutual.address, "`cert`", **{**others.client, **certificates.ca})


def test_client_whose_certificate_has_expired_gets_a_hint(mutual: LocalServer, certificates: Certificates) -> None:
    certificates.write("expired", certificates.authority.client("trainer", days=-0.01))
    closed(
        mutual.address,
        "expired",
        **certificates.ca,
        cert=certificates.path("expired"),
        key=certificates.path("expired-key"),
    )


def test_absent_server_gives_no_hint(certificates: Certificates) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with (
        rollserve.connect(address, **certificates.ca) as sampler,
        raises(rollserve.UnavailableError, field="", reason="") as caught,
    ):
        sampler.status()
    assert "`ca`" not in str(caught.value)


def test_lost_trust_ends_a_call_at_once(certificates: Certificates, others: Certificates, tmp_path: Path) -> None:
    """The server comes back, at the same address, with a certificate that the client does not trust."""
    with serving(tmp_path, *certificates.server, "--grace-seconds", "0") as server:
        address = server.address
        with rollserve.connect(address, **certificates.ca) as sampler:
            sampler.update_agent(rollserve.RandomAgent())
            stream = sampler.stream_samples(2**40)
            next(stream)
            server.stop()
            with serving(tmp_path, *others.server, "--listen", address):
                expected: Any = {"field": "ca", "reason": Reason.TLS_FAILED}
                with quickly(), raises(rollserve.InvalidArgumentError, **expected):
                    list(stream)
                with quickly(), raises(rollserve.InvalidArgumentError, **expected):
                    sampler.status()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=lambda each: each.name)
def test_server_speaks_tls_1_3_only(
    encrypted: LocalServer, certificates: Certificates, version: ssl.TLSVersion
) -> None:
    context = ssl.create_default_context(cafile=certificates.path("ca"))
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    host, _, port = encrypted.address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        if version is ssl.TLSVersion.TLSv1_2:
            with pytest.raises(OSError):
                context.wrap_socket(connection, server_hostname=host)
        else:
            with context.wrap_socket(connection, server_hostname=host) as wrapped:
                assert wrapped.version() == "TLSv1.3"


def test_stream_over_tls_is_resumed(encrypted: LocalServer, certificates: Certificates) -> None:
    with rollserve.connect(encrypted.address, **certificates.ca) as sampler:
        expected = sampler.obtain_samples(5000, seed=5)
    with cutting_proxy(encrypted.address, num_cuts=3, max_bytes=100_000, seed=0) as proxy:
        with rollserve.connect(proxy.address, max_message_bytes=20_000, **certificates.ca) as sampler:
            batch = sampler.obtain_samples(5000, seed=5)
        assert proxy.num_cuts > 0
    assert equal(batch, expected)


def test_shared_memory_serves_encrypted_clients(encrypted: LocalServer, certificates: Certificates) -> None:
    with (
        rollserve.connect(encrypted.address, **certificates.ca) as sampler,
        rollserve.connect(encrypted.address, shared_memory=True, **certificates.ca) as sharing,
    ):
        batch = sharing.obtain_samples(20_000, seed=3)
        assert batch.account.shared_message_bytes > 0
        assert equal(batch, sampler.obtain_samples(20_000, seed=3))


def test_limits_of_a_connection_hold_over_tls(encrypted: LocalServer, certificates: Certificates) -> None:
    """A connection may have 64 calls that watch health."""
    credentials = grpc.ssl_channel_credentials(certificates.path("ca").read_bytes())
    own = [("grpc.use_local_subchannel_pool", 1)]
    with (
        grpc.secure_channel(encrypted.address, credentials, own) as first,
        grpc.secure_channel(encrypted.address, credentials, own) as second,
    ):
        request = health_pb2.HealthCheckRequest()
        watches = [health_pb2_grpc.HealthStub(first).Watch(request) for _ in range(64)]
        assert {next(watch).status for watch in watches} == {health_pb2.HealthCheckResponse.SERVING}
        with raises(grpc.RpcError, reason=Reason.TOO_MANY_CALLS):
            next(health_pb2_grpc.HealthStub(first).Watch(request))
        assert next(health_pb2_grpc.HealthStub(second).Watch(request)).status == health_pb2.HealthCheckResponse.SERVING


BEYOND = ("0.0.0.0:0", "[::]:0", "server.lab:50051", "192.0.2.1:50051")


@pytest.mark.parametrize("address", BEYOND)
def test_server_without_tls_does_not_listen_beyond_its_machine(address: str) -> None:
    shown = run_server_command(*LIGHT, "--listen", address)
    assert shown.exit_code == 1
    for quote in ("listen", repr(address), "--tls-cert", "--insecure"):
        assert quote in shown.stderr


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.8.8.8:50051", "localhost:50051", "[::1]:50051", "::1:50051"])
def test_server_without_tls_may_listen_on_its_machine(address: str) -> None:
    assert GatewaySettings(listen=address).listen == address


def check_listens_beyond_its_machine(server: LocalServer) -> None:
    """Check that the server listens at another address than 127.0.0.1, and so at any that the machine has."""
    socket.create_connection(("127.0.0.2", int(server.address.rpartition(":")[2]))).close()


def test_server_listens_beyond_its_machine_with_tls(encrypted: LocalServer) -> None:
    check_listens_beyond_its_machine(encrypted)


def test_insecure_server_listens_beyond_its_machine_and_warns(plain: LocalServer, plain_log: Path) -> None:
    check_listens_beyond_its_machine(plain)
    assert "WARNING connections are not encrypted listen=0.0.0.0:0" in plain_log.read_text()


@pytest.mark.slow
def test_files_that_the_server_cannot_use_are_named(
    certificates: Certificates, others: Certificates, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("no certificate")
    cert, key, text = (
        str(path) for path in (certificates.path("server"), others.path("server-key"), tmp_path / "text")
    )
    good = str(certificates.path("server-key"))
    for field, options in {
        "tls_key: expected the private key": ("--tls-cert", cert),
        "tls_key (from --tls-key): expected a certificate": ("--tls-key", good),
        "tls_cert": ("--tls-cert", "/nowhere.pem", "--tls-key", good),
        "tls_cert: expected certificates": ("--tls-cert", text, "--tls-key", good),
        "tls_key: expected a private key": ("--tls-cert", cert, "--tls-key", text),
        "tls_key: expected the private key of": ("--tls-cert", cert, "--tls-key", key),
        "tls_client_ca": ("--tls-client-ca", cert),
        "tls_client_ca: expected certificates": ("--tls-cert", cert, "--tls-key", good, "--tls-client-ca", text),
    }.items():
        command = [sys.executable, "-m", "rollserve_server", *LIGHT, *options]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert shown.returncode == 1
        assert field in shown.stderr
        assert "Traceback" not in shown.stderr


def test_files_that_the_client_cannot_use_are_named(
    certificates: Certificates, others: Certificates, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("no certificate")
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("ca", {"ca": tmp_path / "nowhere"}),
        ("ca", {"ca": str(tmp_path / "text")}),
        ("key", {"cert": certificates.path("client")}),
        ("cert", {"key": certificates.path("client-key")}),
        ("key", {"cert": certificates.path("client"), "key": others.path("client-key")}),
        ("credentials", {"credentials": grpc.ssl_channel_credentials(), "ca": certificates.path("ca")}),
    ]
    for field, arguments in wrong:
        with raises(rollserve.InvalidArgumentError, field=field):
            rollserve.connect("127.0.0.1:1", **arguments)
    for field in ("ca", "cert", "key", "credentials"):
        with raises(TypeError, field=field):
            rollserve.connect("127.0.0.1:1", **{field: 3})  # type: ignore[arg-type]


def test_key_with_a_password_is_refused(certificates: Certificates, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    command = ["openssl", "pkey", "-in", certificates.path("client-key"), "-aes256", "-passout", "pass:x", "-out", key]
    subprocess.run(command, check=True)
    with raises(rollserve.InvalidArgumentError, field="key", quotes="password"):
        rollserve.connect("127.0.0.1:1", cert=certificates.path("client"), key=key)
    shown = subprocess.run(  # OpenSSL would ask for the password on a terminal
        [ROLLSERVE, "status", "127.0.0.1:1", "--cert", certificates.path("client"), "--key", key],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert shown.returncode == 2
