"""Bearer tokens: where a client has its token from, and where it may send it."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import unquote

from rollserve_wire.checks import type_error
from rollserve_wire.errors import InvalidArgumentError, mismatch

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TokenSource", "check_encrypted"]

_TOKEN = re.compile(r"[!-~]+")
_LOCAL_SCHEMES = ("unix:", "unix-abstract:")
_SCHEME = re.compile(r"(ipv4|ipv6|dns):(//[^/]*/)?")


@dataclass(frozen=True)
class TokenSource:
    """A token, the file that has it, or, without both, the environment variable ROLLSERVE_TOKEN.

    Attributes:
        text: the token.
        file: file with the token, which is read for each call, so that another token can take its place.
    """

    text: str | None = field(repr=False)
    file: Path | None

    @classmethod
    def of(cls, token: object, file: object, defaults: Mapping[str, str | Path]) -> Self | None:
        """Return the source for arguments of `connect`; None for no token.

        Args:
            token: the argument.
            file: the argument `token_file`.
            defaults: `token` or `token_file`, where neither is given.

        Raises:
            TypeError: an argument of the wrong type.
            InvalidArgumentError: both, no token, or a file that cannot be read.
        """
        arguments = {name: value for name, value in (("token", token), ("token_file", file)) if value is not None}
        match arguments or defaults:
            case {"token": _, "token_file": _}:
                raise InvalidArgumentError.of("token", expected="either token or token_file", got="both")
            case {"token": str(text)}:
                source = cls(_checked("token", text) if arguments else None, None)
            case {"token": other}:
                raise type_error("token", "a text", other)
            case {"token_file": str() | os.PathLike() as path}:
                source = cls(None, Path(path).absolute())  # pickles may go to another folder
            case {"token_file": other}:
                raise type_error("token_file", "the path of a file", other)
            case _:
                return None
        source.read()
        return source

    def read(self) -> str:
        """Return the token for a call; raise InvalidArgumentError if there is none any more."""
        if self.file is None:
            return self.text or _from_environment()
        try:
            text = self.file.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            hint = (error.strerror if isinstance(error, OSError) else None) or "not a token"
            raise InvalidArgumentError.of(
                "token_file", expected="a file with a token", got=self.file, hint=hint
            ) from None
        return _checked("token_file", text.strip())

    def __getstate__(self) -> dict[str, object]:
        if self.text is not None:
            expected, hint = "a file or ROLLSERVE_TOKEN in a sampler that is pickled", "give token_file to connect"
            raise TypeError(f"token: {mismatch(expected, 'the text of a token', hint)}")
        return self.__dict__


def check_encrypted(target: str) -> None:
    """Raise InvalidArgumentError for the target of a connection without TLS that leaves this machine."""
    if not (target.startswith(_LOCAL_SCHEMES) or all(map(_is_loopback, target.split(",")))):
        expected = "an encrypted connection, because others in the network could read the token"
        hint = "give `ca` for TLS, or connect to a loopback address"
        raise InvalidArgumentError.of("token", expected=expected, got=f"none to {target!r}", hint=hint)


def _is_loopback(target: str) -> bool:
    host = unquote(_SCHEME.sub("", target)).strip().rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _from_environment() -> str:
    """Return the token of ROLLSERVE_TOKEN, which may be missing in a process that a sampler was sent to."""
    text = os.environ.get("ROLLSERVE_TOKEN", "")
    if not text:
        raise InvalidArgumentError.of("token", expected="the variable ROLLSERVE_TOKEN, as at connect", got="none")
    return _checked("token", text)


def _checked(name: str, text: str) -> str:
    """Return a token, whose characters gRPC can send; errors do not show it."""
    if not _TOKEN.fullmatch(text):
        expected = "a token: printable characters of ASCII without blanks"
        raise InvalidArgumentError.of(name, expected=expected, got="another text" if text else "nothing")
    return text
