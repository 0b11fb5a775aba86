"""The command line of `rollserve-server token`."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

import click

from rollserve_server.errors import InvalidValueError
from rollserve_server.identity import Token, TokenFile

__all__ = ["token_command"]

_FILE = click.option(
    "--file",
    "path",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="ROLLSERVE_TOKEN_HASHES",
    help="The file that the server's --token-hashes names.",
)


@click.group("token")
def token_command() -> None:
    """Make, list and revoke the bearer tokens that clients show.

    The file has hashes of the tokens alone. A server that uses the file sees changes with its next RPC.
    """


@token_command.command("create")
@_FILE
@click.option("--name", required=True, metavar="NAME", help="Whose token it is. A name can have several tokens.")
@click.option(
    "--scope",
    "scopes",
    required=True,
    multiple=True,
    metavar="SCOPE[@SAMPLER]",
    help="What it permits, such as sample, or agent:write@team-*; * for all but pickle. Repeatable.",
)
@click.option(
    "--expires", "days", type=click.FloatRange(0, 36500, min_open=True), metavar="DAYS", help="Days until it expires."
)
def _create(path: Path, name: str, scopes: tuple[str, ...], days: float | None) -> None:
    """Make a token, and print it: nobody can read it later."""
    with _changing(path) as file:
        token, text = Token.new(name, scopes, days)
        file.write([*file.read(), token])
    click.echo(text)


@token_command.command("list")
@_FILE
def _list(path: Path) -> None:
    """Print the id, the name, the scopes and the expiry of each token."""
    with _explained():
        tokens = TokenFile(path).read()
    for token in tokens:
        expiry = "never expires" if token.expires is None else f"expires {token.expires.isoformat()}"
        expiry = "expired" if token.is_expired else expiry
        click.echo(f"{token.id}  {token.name}  {' '.join(token.scopes)}  {expiry}")


@token_command.command("revoke")
@_FILE
@click.argument("name", metavar="NAME|ID")
def _revoke(path: Path, name: str) -> None:
    """Revoke the token with an id, or all tokens of a name."""
    with _changing(path) as file:
        tokens = file.read()
        kept = [token for token in tokens if name not in (token.name, token.id)]
        if len(kept) == len(tokens):
            raise InvalidValueError.of("name", expected="the name or id of a token", got=repr(name))
        file.write(kept)
    click.echo(f"revoked {len(tokens) - len(kept)}")


@contextlib.contextmanager
def _changing(path: Path) -> Iterator[TokenFile]:
    """Yield the file for a change; commands that change it at the same time do so one after the other."""
    with _explained():
        lock = path.with_name(f".{path.name}.lock")
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield TokenFile(path)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Have errors end the command with one line."""
    try:
        yield
    except InvalidValueError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from None
