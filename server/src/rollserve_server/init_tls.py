"""The command line of `rollserve-server init-tls`."""

from __future__ import annotations

import datetime
import errno
import ipaddress
import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from rollserve_server.authority import Authority, Issued

__all__ = ["init_tls_command"]

_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_CLIENT_NAME = "client"
_AUTHORITY_DAYS, _LEAST_TERMS = 3650, 2
"""Least validity of an authority: in days, and in terms of its certificates."""
_LABEL = "[A-Za-z0-9_][A-Za-z0-9_-]{0,62}"
_HOST = re.compile(rf"(?=.{{1,253}}$)(\*\.)?{_LABEL}(\.{_LABEL})*")
_MAX_COMMON_NAME = 64
_SECRET, _PUBLIC = 0o600, 0o644  # modes of files


@click.command("init-tls")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="Host name or address by which clients reach the server, beside localhost, 127.0.0.1 and ::1. Repeatable.",
)
@click.option("--client-name", metavar="NAME", help="Name in the client's certificate.  [default: client]")
@click.option(
    "--days",
    default=365,
    show_default=True,
    type=click.IntRange(1, 36500),
    help="Days until the certificates of server and client expire. The authority is valid for ten years, or for twice "
    "as long as they are.",
)
@click.option(
    "--renew",
    "renews",
    is_flag=True,
    help="Replace server.pem and client.pem in DIR, and their keys, by new ones with the same names and authority. If "
    "ca.pem expires within twice the --days, it is renewed, too, with the same key: what it has signed stays valid, "
    "and clients have until the old one's expiry to copy the new one.",
)
@click.option(
    "--renew-all",
    "renews_all",
    is_flag=True,
    help="Replace all files in DIR, the authority and its key as well, keeping the names. Needed if the authority has "
    "expired, or if others know its key; servers and clients need the new files at the same time.",
)
def init_tls_command(
    folder: Path, names: tuple[str, ...], client_name: str | None, days: int, renews: bool, renews_all: bool
) -> None:
    """Make an authority, and certificates of a server and a client that it signs, for development.

    Writes ca.pem, server.pem and client.pem, and their private keys ca-key.pem, server-key.pem and client-key.pem,
    into DIR, and prints until when each is valid. Existing files are not overwritten, except by --renew and
    --renew-all; names that are given with these are added to the server's.
    """
    _check_names(names, client_name)
    try:
        if renews or renews_all:
            note = _renew(folder, names, client_name, days, renews_all)
        else:
            note = _make(folder, names, _CLIENT_NAME if client_name is None else client_name, days)
        click.echo(f"{_written(folder)}\n{note}")
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from None


def _check_names(names: Iterable[str], client_name: str | None) -> None:
    """Refuse names that no client would ever look for."""
    for name in names:
        if _HOST.fullmatch(name) is None and not _is_address(name):
            text = mismatch("a host name or an address, without scheme and port", repr(name))
            raise click.ClickException(f"name: {text}")
    if client_name is not None and not (client_name.isprintable() and 1 <= len(client_name) <= _MAX_COMMON_NAME):
        text = mismatch(f"1 to {_MAX_COMMON_NAME} printable characters", repr(client_name))
        raise click.ClickException(f"client-name: {text}")


def _is_address(name: str) -> bool:
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def _make(folder: Path, names: Iterable[str], client_name: str, days: int) -> str:
    """Write all files, or fail if one exists; return what to do with them."""
    # Imported late, for a quick --help.
    from rollserve_server.authority import Authority

    authority = Authority.new(_authority_days(days))
    files = {"ca": authority.own, **_issue(authority, (*names, *_LOCAL_NAMES), client_name, days)}
    folder.mkdir(parents=True, exist_ok=True)
    _check_absent(folder / f"{name}{ending}.pem" for name in files for ending in ("", "-key"))
    for name, issued in files.items():
        _write(folder / f"{name}-key.pem", issued.key, _SECRET)
        _write(folder / f"{name}.pem", issued.cert, _PUBLIC)
    return _next_steps(folder)


def _renew(folder: Path, names: Iterable[str], client_name: str | None, days: int, renews_all: bool) -> str:
    """Replace certificates and keys; return what to do with them."""
    from rollserve_server.authority import Authority, Issued, names_in, with_previous

    note = "the authority is the same: clients keep their files until those expire"
    files: dict[str, Issued] = {}
    try:
        if renews_all:
            authority = Authority.new(_authority_days(days))
            files["ca"] = authority.own
            note = "copy ca.pem, and the certificates with their keys, to servers and clients: the old ones are void"
        else:
            own = Issued((folder / "ca.pem").read_bytes(), (folder / "ca-key.pem").read_bytes())
            authority = Authority.of(own)
            _check_dates(folder, authority)
            expires = authority.expires
            if expires < _now() + datetime.timedelta(days=_LEAST_TERMS * days):
                authority = authority.renewed(_authority_days(days))
                files["ca"] = own._replace(cert=with_previous(authority.own.cert, own.cert))
                note = (
                    f"the authority was renewed: copy ca.pem to servers and clients before {expires.isoformat()}, when "
                    "the old one expires; until then all certificates are valid by the old and the new one"
                )
        names = (*names_in((folder / "server.pem").read_bytes()), *names)
        if client_name is None:
            client_name = names_in((folder / "client.pem").read_bytes())[0]
    except (ValueError, IndexError) as error:  # of the library; or a certificate without names
        expected = "an authority and certificates that init-tls has made"
        raise click.ClickException(f"{folder}: {mismatch(expected, 'others', str(error))}") from None
    files.update(_issue(authority, names, client_name, days))
    for name, issued in files.items():
        _replace(folder, name, issued)
    return note


def _issue(authority: Authority, names: Iterable[str], client_name: str, days: int) -> dict[str, Issued]:
    """Return new certificates of a server and a client, by the names of their files."""
    server = authority.server(dict.fromkeys(names), days)
    return {"server": server, "client": authority.client(client_name, days)}


def _check_dates(folder: Path, authority: Authority) -> None:
    """Refuse to sign by an authority that is not valid now: nobody would accept what it signs."""
    got = ""
    if authority.expires <= _now():
        got = f"one that expired at {authority.expires.isoformat()}"
    elif authority.starts > _now():
        got = f"one that is not valid before {authority.starts.isoformat()}"
    if got:
        hint = (
            "nobody accepts what it signs. Make a new one, and certificates with the same names, by `init-tls "
            "--renew-all`, and copy them to servers and clients"
        )
        raise click.ClickException(f"{folder / 'ca.pem'}: {mismatch('an authority that is valid', got, hint)}")


def _authority_days(days: int) -> int:
    return max(_AUTHORITY_DAYS, _LEAST_TERMS * days)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _check_absent(paths: Iterable[Path]) -> None:
    """Raise OSError if one of the files exists."""
    for path in paths:
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "exists, and is not overwritten", str(path))


def _write(path: Path, contents: bytes, mode: int) -> None:
    """Write a new file, which has its mode from the beginning."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(contents)


def _replace(folder: Path, name: str, issued: Issued) -> None:
    """Replace a key and its certificate, each in one step: a server reads the files with each new connection."""
    for contents, ending, mode in ((issued.key, "-key", _SECRET), (issued.cert, "", _PUBLIC)):
        path = folder / f"{name}{ending}.pem"
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        _write(temporary, contents, mode)
        temporary.replace(path)


def _written(folder: Path) -> str:
    """Return a line for each certificate: whose it is, and until when it is valid."""
    from rollserve_server.authority import expiry_of, names_in

    lines = []
    for name, owner in (("ca", "authority"), ("server", "server"), ("client", "client")):
        path = folder / f"{name}.pem"
        cert = path.read_bytes()
        names = "" if name == "ca" else f" of {', '.join(names_in(cert))}"
        lines.append(f"{path}: {owner}{names}, valid until {expiry_of(cert).isoformat()}")
    return "\n".join([*lines, f"{folder}/…-key.pem: their private keys"])


def _next_steps(folder: Path) -> str:
    return f"""\
serve:    rollserve-server --tls-cert {folder}/server.pem --tls-key {folder}/server-key.pem …
connect:  rollserve status HOST:PORT --ca {folder}/ca.pem
to ask clients for certificates, add --tls-client-ca {folder}/ca.pem to the server, and
--cert {folder}/client.pem --key {folder}/client-key.pem to the client"""
