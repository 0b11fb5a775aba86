"""Certificates for development, made by `rollserve-server init-tls`."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

from cryptography import x509

import rollserve
from rollserve_server.local import local_server

FILES = {f"{name}{ending}.pem" for name in ("ca", "server", "client") for ending in ("", "-key")}
LIGHT = ("--env", "CartPole-v1", "--backend", "in-process", "--workers", "1")


def init_tls(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rollserve_server", "init-tls", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_certificates_serve_clients_with_certificates(tmp_path: Path) -> None:
    made = tmp_path / "deep" / "made"
    shown = init_tls(made, "--name", "server.lab", "--name", "192.0.2.7")
    assert shown.returncode == 0, shown.stderr
    assert str(made / "ca.pem") in shown.stdout
    assert {path.name for path in made.iterdir()} == FILES
    options = (
        "--tls-cert",
        made / "server.pem",
        "--tls-key",
        made / "server-key.pem",
        "--tls-client-ca",
        made / "ca.pem",
    )
    with local_server(*LIGHT, *map(str, options), log=tmp_path / "log") as server:
        files = {"ca": made / "ca.pem", "cert": made / "client.pem", "key": made / "client-key.pem"}
        for host in ("127.0.0.1", "localhost"):
            address = server.address.replace("127.0.0.1", host)
            with rollserve.connect(address, **files) as sampler:
                sampler.status()


def test_server_certificate_has_the_names(tmp_path: Path) -> None:
    init_tls(tmp_path, "--name", "server.lab", "--name", "192.0.2.7", "--days", "3")
    certificate = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["server.lab", "localhost"]
    addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    assert addresses == ["192.0.2.7", "127.0.0.1", "::1"]
    assert (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days == 3


def test_keys_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    init_tls(tmp_path)
    for path in tmp_path.iterdir():
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o600 if path.name.endswith("-key.pem") else 0o644), path


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "client-key.pem").write_text("mine")
    shown = init_tls(tmp_path)
    assert shown.returncode == 1
    assert str(tmp_path / "client-key.pem") in shown.stderr
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_name_that_no_certificate_can_have_is_refused(tmp_path: Path) -> None:
    shown = init_tls(tmp_path, "--name", "größe")
    assert shown.returncode == 1
    assert "größe" in shown.stderr
    assert "Traceback" not in shown.stderr
    assert not list(tmp_path.iterdir())


def names_of(cert: bytes) -> list[str]:
    certificate = x509.load_pem_x509_certificate(cert)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def test_renew_replaces_certificates_by_the_same_authority_and_names(tmp_path: Path) -> None:
    init_tls(tmp_path, "--name", "server.lab", "--client-name", "trainer")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    shown = init_tls(tmp_path, "--renew", "--days", "3")
    assert shown.returncode == 0, shown.stderr
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert after.keys() == FILES
    assert {name for name in FILES if before[name] == after[name]} == {"ca.pem", "ca-key.pem"}
    authority = x509.load_pem_x509_certificate(after["ca.pem"])
    for name in ("server.pem", "client.pem"):
        old, new = (x509.load_pem_x509_certificate(files[name]) for files in (before, after))
        new.verify_directly_issued_by(authority)
        assert new.subject == old.subject
        assert (new.not_valid_after_utc - new.not_valid_before_utc).days == 3
    assert names_of(after["server.pem"]) == names_of(before["server.pem"])
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == (0o600 if path.name.endswith("-key.pem") else 0o644), path


def test_renew_without_an_authority_is_refused(tmp_path: Path) -> None:
    shown = init_tls(tmp_path, "--renew")
    assert shown.returncode == 1
    assert str(tmp_path / "ca.pem") in shown.stderr
    assert not list(tmp_path.iterdir())


def test_renew_with_the_key_of_another_authority_changes_nothing(tmp_path: Path) -> None:
    init_tls(tmp_path)
    (tmp_path / "ca-key.pem").write_bytes((tmp_path / "server-key.pem").read_bytes())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    shown = init_tls(tmp_path, "--renew")
    assert shown.returncode == 1
    assert "Traceback" not in shown.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
