"""TLS and tokens of a connection: files with certificates, credentials of gRPC, and tokens in files or variables."""

from __future__ import annotations

import codecs
import ipaddress
import os
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import unquote

import grpc

from rollserve_wire.checks import type_error
from rollserve_wire.errors import InvalidArgumentError, mismatch

if TYPE_CHECKING:
    from collections.abc import Mapping


__all__ = ["TlsFiles", "TokenSource", "check_encrypted", "tls_of"]


_NAMES = ("ca", "cert", "key")

_TOKEN = re.compile(r"[!-~]+")
_LOCAL_SCHEMES = ("unix:", "unix-abstract:")
_SCHEME = re.compile(r"(ipv4|ipv6|dns):(//[^/]*/)?")


@dataclass(frozen=True)
class TlsFiles:
    """PEM files of a connection with TLS. They are read for each new channel, so that pickles hold no key.

    Attributes:
        ca: file with certificates of authorities that the server's may be signed by; None for gRPC's own list.
        cert: file with the client's certificate; None for none.
        key: file with its private key.
    """

    ca: Path | None
    cert: Path | None
    key: Path | None

    @classmethod
    def of(cls, paths: Mapping[str, Path]) -> Self | None:
        """Check that the files can be used, and return them; None if there are none.

        Raises:
            InvalidArgumentError: a file that cannot be used, or a certificate without its key.
        """
        if not paths:
            return None
        for name, path in paths.items():
            _read(name, path)
        absolute = {name: path.absolute() for name, path in paths.items()}  # pickles may go to another folder
        ca, cert, key = (absolute.get(name) for name in _NAMES)
        if ca is not None:
            _check_ca(ca)
        if cert is not None and key is not None:
            _check_pair(cert, key)
        elif cert is not None or key is not None:
            missing, given = ("cert", "key") if cert is None else ("key", "cert")
            raise InvalidArgumentError.of(missing, expected=f"a file, because {given} is given", got=None)
        return cls(ca, cert, key)

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files for a new channel; raises InvalidArgumentError if one cannot be read."""
        ca, cert, key = (_read(name, getattr(self, name)) for name in _NAMES)
        return grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=cert)


def tls_of(
    credentials: grpc.ChannelCredentials | None,
    files: Mapping[str, str | os.PathLike[str] | None],
    defaults: Mapping[str, Path],
) -> TlsFiles | grpc.ChannelCredentials | None:
    """Return what a connection uses for TLS; None for no TLS.

    Args:
        credentials: the argument of `connect`.
        files: its arguments `ca`, `cert` and `key`.
        defaults: files for arguments that are None.

    Raises:
        TypeError: an argument of the wrong type.
        InvalidArgumentError: credentials as well as files, or see `TlsFiles.of`.
    """
    given = {name: _path(name, value) for name, value in files.items() if value is not None}
    if credentials is None:
        return TlsFiles.of({**defaults, **given})
    if not isinstance(credentials, grpc.ChannelCredentials):
        raise type_error("credentials", "grpc.ChannelCredentials", credentials)
    if given:
        raise InvalidArgumentError.of("credentials", expected="either credentials or files", got="both")
    return credentials


def _path(name: str, value: object) -> Path:
    if not isinstance(value, (str, os.PathLike)):
        raise type_error(name, "the path of a PEM file", value)
    return Path(value)


def _read(name: str, path: Path | None) -> bytes | None:
    try:
        return None if path is None else path.read_bytes().removeprefix(codecs.BOM_UTF8)  # which gRPC stumbles over
    except OSError as error:
        hint = error.strerror or str(error)
        raise InvalidArgumentError.of(name, expected="a readable file", got=path, hint=hint) from None


def _check_ca(path: Path) -> None:
    """Raise InvalidArgumentError unless a file has certificates."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError:
        raise InvalidArgumentError.of("ca", expected="certificates in PEM format", got=path) from None


def _check_pair(cert: Path, key: Path) -> None:
    """Raise InvalidArgumentError unless a file has the private key of a certificate."""
    try:
        # Without a password, OpenSSL would ask for one on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        expected = f"the private key of {cert}, both in PEM format and without a password"
        raise InvalidArgumentError.of("key", expected=expected, got=key, hint=error.reason or str(error)) from None


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
