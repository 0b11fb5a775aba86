"""Contexts: named servers in the user's file `contexts.toml`, with their addresses, files for TLS, and tokens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from rollserve_wire.checks import check_text
from rollserve_wire.errors import InvalidArgumentError

__all__ = ["Server", "find_server"]

_FILES = ("ca", "cert", "key", "token_file")
_VARIABLES = (*_FILES, "token")


class Server(NamedTuple):
    """A server to connect to.

    Attributes:
        address: `host:port`, or a name with one of gRPC's schemes.
        files: paths of the files for TLS, by the arguments of `connect` that they are the defaults of.
        token: the same for `token` and `token_file`.
    """

    address: str
    files: dict[str, Path]
    token: dict[str, str | Path]


def find_server(target: str) -> Server:
    """Return the server at an address, or of a context.

    A target with a colon is an address, whose files environment variables name: ROLLSERVE_CA, ROLLSERVE_CERT,
    ROLLSERVE_KEY and ROLLSERVE_TOKEN_FILE; ROLLSERVE_TOKEN is a token. Any other target is the name of a context, whose
    files its table names; variables do not count there.

    Raises:
        TypeError: a target that is not a text.
        InvalidArgumentError: no such context, or one that is malformed.
    """
    check_text("target", target)
    if ":" in target:
        named = {name: os.environ.get(f"ROLLSERVE_{name.upper()}", "") for name in _VARIABLES}
        files = {name: Path(path) for name, path in named.items() if path and name in _FILES}
        return _server_of(target, files, named["token"])
    path = _contexts_path()
    table = _read(path, target).get(target)
    if table is None:
        expected = f"HOST:PORT, such as 127.0.0.1:50051, or a name in {path}"
        raise InvalidArgumentError.of("target", expected=expected, got=repr(target))
    return _server(path, target, table)


def _contexts_path() -> Path:
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(folder, "rollserve", "contexts.toml")


def _read(path: Path, name: str) -> dict[str, Any]:
    """Return the tables of the file, by the names of the contexts; none if there is no file."""
    import tomllib  # few programs name a context

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        expected = f"HOST:PORT, or a name in {path}"
        raise InvalidArgumentError.of("target", expected=expected, got=repr(name), hint=str(error.strerror)) from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise _malformed(path, name, "TOML", "another format", str(error)) from None


def _server(path: Path, name: str, table: Any) -> Server:
    if not isinstance(table, dict):
        raise _malformed(path, name, "a table", repr(table))
    for key, value in table.items():
        if key not in ("address", *_FILES):
            raise _malformed(path, name, "the keys address, ca, cert, key and token_file", repr(key))
        if not (isinstance(value, str) and value):
            raise _malformed(path, name, f"a text as {key}", repr(value))
    if ":" not in table.get("address", ""):
        raise _malformed(path, name, "HOST:PORT as address", repr(table.get("address")))
    # A file may be named relative to the folder of `contexts.toml`.
    files = {key: path.parent / os.path.expanduser(table[key]) for key in _FILES if key in table}
    return _server_of(table["address"], files)


def _server_of(address: str, files: dict[str, Path], token: str = "") -> Server:
    """Return a server by its address, all of its files, and its token, if it has one."""
    tokens: dict[str, str | Path] = {"token": token} if token else {}
    if "token_file" in files:
        tokens["token_file"] = files.pop("token_file")
    return Server(address, files, tokens)


def _malformed(path: Path, name: str, expected: str, got: str, hint: str = "") -> InvalidArgumentError:
    where = f"{expected} for {name!r} in {path}"
    return InvalidArgumentError.of("target", expected=where, got=got, hint=hint)
