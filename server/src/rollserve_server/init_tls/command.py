"""The command line of `rollserve-server init-tls`."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rollserve.errors import mismatch

if TYPE_CHECKING:
    from rollserve_server.init_tls.authority import Issued

__all__ = ["init_tls_command"]

_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
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
@click.option(
    "--client-name", default="client", show_default=True, metavar="NAME", help="Name in the client's certificate."
)
@click.option(
    "--days", default=365, show_default=True, type=click.IntRange(1, 36500), help="Days until the certificates expire."
)
@click.option(
    "--renew",
    "renews",
    is_flag=True,
    help="Replace server.pem and client.pem in DIR, and their keys, by new ones with the same names, signed by ca.pem.",
)
def init_tls_command(folder: Path, names: tuple[str, ...], client_name: str, days: int, renews: bool) -> None:
    """Make an authority, and certificates of a server and a client that it signs, for development.

    Writes ca.pem, server.pem and client.pem, and their private keys ca-key.pem, server-key.pem and client-key.pem,
    into DIR. Existing files are not overwritten, except by --renew.
    """
    try:
        if renews:
            _renew(folder, days)
        else:
            _make(folder, names, client_name, days)
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from None
    click.echo(_next_steps(folder))


def _make(folder: Path, names: Iterable[str], client_name: str, days: int) -> None:
    """Write all files. None of them may exist."""
    # Imported late, for a quick --help.
    from rollserve_server.init_tls.authority import Authority

    authority = Authority.new(days)
    try:
        server = authority.server(dict.fromkeys((*names, *_LOCAL_NAMES)), days)
        client = authority.client(client_name, days)
    except ValueError as error:  # of the library
        raise click.ClickException(
            f"name: {mismatch('names of hosts or addresses', repr(names), str(error))}"
        ) from None
    files = {"ca": authority.own, "server": server, "client": client}
    folder.mkdir(parents=True, exist_ok=True)
    _check_absent(folder / f"{name}{ending}.pem" for name in files for ending in ("", "-key"))
    for name, issued in files.items():
        _write(folder / f"{name}-key.pem", issued.key, _SECRET)
        _write(folder / f"{name}.pem", issued.cert, _PUBLIC)


def _renew(folder: Path, days: int) -> None:
    """Replace the certificates of server and client, and their keys."""
    from rollserve_server.init_tls.authority import Authority, Issued, names_in

    own = Issued((folder / "ca.pem").read_bytes(), (folder / "ca-key.pem").read_bytes())
    old_server, old_client = (folder / "server.pem").read_bytes(), (folder / "client.pem").read_bytes()
    try:
        authority = Authority.of(own)
        server, client = authority.server(names_in(old_server), days), authority.client(names_in(old_client)[0], days)
    except (ValueError, IndexError) as error:  # of the library; or a certificate without names
        expected = "an authority and certificates that init-tls has made"
        raise click.ClickException(f"{folder}: {mismatch(expected, 'others', str(error))}") from None
    _replace(folder, "server", server)
    _replace(folder, "client", client)


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


def _next_steps(folder: Path) -> str:
    return f"""\
{folder}: an authority (ca), and certificates of a server and a client that it signed
serve:    rollserve-server --tls-cert {folder}/server.pem --tls-key {folder}/server-key.pem …
connect:  rollserve status HOST:PORT --ca {folder}/ca.pem
to ask clients for certificates, add --tls-client-ca {folder}/ca.pem to the server, and
--cert {folder}/client.pem --key {folder}/client-key.pem to the client"""
