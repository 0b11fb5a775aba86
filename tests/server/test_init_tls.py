"""Certificates for development, made by `rollserve-server init-tls`."""

from __future__ import annotations

import datetime
import stat
from pathlib import Path

import pytest
from certificates import dated
from click.testing import Result
from commands import run_server_command
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

import rollserve
from rollserve_server.authority import Authority, Issued
from rollserve_server.local import local_server

FILES = {f"{name}{ending}.pem" for name in ("ca", "server", "client") for ending in ("", "-key")}
LIGHT = ("--env", "CartPole-v1", "--backend", "in-process", "--workers", "1")


def init_tls(*arguments: str | Path) -> Result:
    return run_server_command("init-tls", *arguments)


def test_certificates_serve_clients_with_certificates(tmp_path: Path) -> None:
    made = tmp_path / "deep" / "made"
    shown = init_tls(made, "--name", "server.lab", "--name", "192.0.2.7")
    assert shown.exit_code == 0, shown.stderr
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
    assert shown.exit_code == 1
    assert str(tmp_path / "client-key.pem") in shown.stderr
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("option", "name"),
    [("--name", name) for name in ("größe", "", "host:50051", "https://host", "a b", "a..b", "[::1]", "host\n")]
    + [("--client-name", name) for name in ("", "alice\n", "x" * 65, "\x1b[31m")],
)
def test_name_that_no_client_looks_for_is_refused(tmp_path: Path, option: str, name: str) -> None:
    shown = init_tls(tmp_path, option, name)
    assert shown.exit_code == 1
    assert shown.stderr.startswith(f"Error: {option.removeprefix('--')}: expected ")
    assert shown.stderr.endswith(f", got {name!r}\n")
    assert not list(tmp_path.iterdir())


def test_long_and_wildcard_names_are_in_the_certificate(tmp_path: Path) -> None:
    names = [f"{'x' * 63}.{'y' * 63}.lab", "*.lab", "my_host", "fd00::7"]
    made = init_tls(tmp_path, *(part for name in names for part in ("--name", name)))
    assert made.exit_code == 0, made.stderr
    assert names_of((tmp_path / "server.pem").read_bytes())[: len(names)] == names


def names_of(cert: bytes) -> list[str]:
    certificate = x509.load_pem_x509_certificate(cert)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def test_renew_replaces_certificates_by_the_same_authority_and_names(tmp_path: Path) -> None:
    init_tls(tmp_path, "--name", "server.lab", "--client-name", "trainer")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    shown = init_tls(tmp_path, "--renew", "--days", "3")
    assert shown.exit_code == 0, shown.stderr
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
    assert shown.exit_code == 1
    assert str(tmp_path / "ca.pem") in shown.stderr
    assert not list(tmp_path.iterdir())


def test_renew_with_the_key_of_another_authority_changes_nothing(tmp_path: Path) -> None:
    init_tls(tmp_path)
    (tmp_path / "ca-key.pem").write_bytes((tmp_path / "server-key.pem").read_bytes())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    shown = init_tls(tmp_path, "--renew")
    assert shown.exit_code == 1
    assert isinstance(shown.exception, SystemExit)  # no other, which would be a traceback
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def loaded(folder: Path, name: str) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates((folder / f"{name}.pem").read_bytes())


def days_left(certificate: x509.Certificate) -> float:
    return (certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)) / datetime.timedelta(days=1)


def set_dates(folder: Path, name: str, *, starts: float, expires: float) -> None:
    """Replace a certificate by one of other dates, in days from now, which the authority in the folder signs."""
    issued, signer = (
        Issued((folder / f"{each}.pem").read_bytes(), (folder / f"{each}-key.pem").read_bytes())
        for each in (name, "ca")
    )
    (folder / f"{name}.pem").write_bytes(dated(issued, signer, starts=starts, expires=expires))


def test_command_prints_each_certificate_and_its_expiry(tmp_path: Path) -> None:
    for renewing in ((), ("--renew",), ("--renew-all",)):
        shown = init_tls(tmp_path, "--days", "3", *renewing).stdout
        for name in ("ca", "server", "client"):
            expiry = loaded(tmp_path, name)[0].not_valid_after_utc.isoformat()
            assert f"{tmp_path / name}.pem: " in shown
            assert f"valid until {expiry}" in shown


@pytest.mark.parametrize("days", [365, 10_000])
def test_authority_outlives_its_certificates(tmp_path: Path, days: int) -> None:
    init_tls(tmp_path, "--days", str(days))
    authority, server = loaded(tmp_path, "ca")[0], loaded(tmp_path, "server")[0]
    assert days_left(authority) > max(3649, 2 * days - 1)
    assert days - 1 < days_left(server) <= days


@pytest.mark.parametrize(
    ("starts", "expires", "quote"), [(-400, -1 / 24, "expired at "), (1, 365, "is not valid before ")]
)
def test_renew_is_refused_by_an_authority_that_is_not_valid(
    tmp_path: Path, starts: float, expires: float, quote: str
) -> None:
    init_tls(tmp_path)
    set_dates(tmp_path, "ca", starts=starts, expires=expires)
    before = contents(tmp_path)
    shown = init_tls(tmp_path, "--renew")
    assert shown.exit_code == 1
    for part in (str(tmp_path / "ca.pem"), "expected an authority that is valid", quote, "--renew-all"):
        assert part in shown.stderr
    assert contents(tmp_path) == before


def test_renew_all_replaces_an_expired_authority_and_keeps_the_names(tmp_path: Path) -> None:
    init_tls(tmp_path, "--name", "server.lab", "--client-name", "trainer")
    set_dates(tmp_path, "ca", starts=-400, expires=-1)
    before, names = contents(tmp_path), names_of((tmp_path / "server.pem").read_bytes())
    shown = init_tls(tmp_path, "--renew-all")
    assert shown.exit_code == 0, shown.stderr
    assert "copy ca.pem" in shown.stdout
    after = contents(tmp_path)
    assert after.keys() == FILES
    assert not {name for name in FILES if before[name] == after[name]}
    (authority,), (server,), (client,) = (loaded(tmp_path, name) for name in ("ca", "server", "client"))
    for certificate in (server, client):
        certificate.verify_directly_issued_by(authority)
    assert names_of(after["server.pem"]) == names
    assert client.subject.rfc4514_string() == "CN=trainer"
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == (0o600 if path.name.endswith("-key.pem") else 0o644), path


def test_renew_renews_an_authority_in_time_and_keeps_the_previous_one(tmp_path: Path) -> None:
    init_tls(tmp_path)
    set_dates(tmp_path, "ca", starts=-300, expires=60)
    (old,), (old_server,), (old_client,) = (loaded(tmp_path, name) for name in ("ca", "server", "client"))
    key = (tmp_path / "ca-key.pem").read_bytes()
    other = Authority.new(days=9).own.cert
    with (tmp_path / "ca.pem").open("ab") as file:
        file.write(other)
    for _ in range(2):  # the second time, nothing is due
        shown = init_tls(tmp_path, "--renew")
        assert shown.exit_code == 0, shown.stderr
        new, *others = loaded(tmp_path, "ca")
        assert [each.public_bytes(Encoding.PEM) for each in others] == [old.public_bytes(Encoding.PEM), other]
        assert days_left(new) > 3649
        assert (tmp_path / "ca-key.pem").read_bytes() == key
        for certificate in (old_server, old_client, *loaded(tmp_path, "server"), *loaded(tmp_path, "client")):
            for authority in (old, new):
                certificate.verify_directly_issued_by(authority)
    assert old.not_valid_after_utc.isoformat() not in shown.stdout
    # The previous one is dropped in the end, however often the authority is renewed.
    set_dates(tmp_path, "ca", starts=-300, expires=50)
    init_tls(tmp_path, "--renew")
    assert len(loaded(tmp_path, "ca")) == 2


def test_renew_adds_names(tmp_path: Path) -> None:
    init_tls(tmp_path, "--name", "server.lab")
    init_tls(tmp_path, "--renew", "--name", "new.lab", "--name", "server.lab", "--client-name", "alice")
    names = names_of((tmp_path / "server.pem").read_bytes())
    assert names == ["server.lab", "localhost", "127.0.0.1", "::1", "new.lab"]
    assert loaded(tmp_path, "client")[0].subject.rfc4514_string() == "CN=alice"
