"""TLS of a connection: files with certificates, or credentials of gRPC."""

from __future__ import annotations

import codecs
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import grpc

from rollserve_wire.checks import type_error
from rollserve_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TlsFiles", "tls_of"]

_NAMES = ("ca", "cert", "key")


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
