"""Errors of connections whose TLS fails, told from gRPC's texts, because gRPC has one status for all of them."""

from __future__ import annotations

import re
from typing import NamedTuple

import grpc

from rollserve_wire.errors import mismatch

__all__ = ["TlsFailure", "hint_about_tls", "tls_failure_of"]

_NO_CONNECTION = "failed to connect to all addresses"
"""The beginning of gRPC's text where no connection could be made; other texts may come from a server."""
_CERTIFICATE = re.compile(r"CERTIFICATE_VERIFY_FAILED(?:: ([^:]+))?")
_NAME = re.compile(r"Hostname Verification Check failed|is not in peer certificate")
_HANDSHAKE = re.compile(r"SSL_ERROR_SSL: .*OPENSSL_internal:(\w+)")
_CLOSED = re.compile(r"Socket closed|Connection reset by peer|Handshake read failed")
"""Texts of new connections that the server closes without a word, as it does where the client leaves out TLS, or a
certificate that the server asks for. A server that is ending closes connections, too."""


class TlsFailure(NamedTuple):
    """Reason why TLS fails with every attempt.

    Attributes:
        field: the argument of `connect` to change.
        text: what was expected, and what was found.
    """

    field: str
    text: str


def tls_failure_of(error: grpc.RpcError) -> TlsFailure | None:
    """Return why TLS fails with every attempt to connect; None for errors of other kinds."""
    details = error.details() or ""
    if error.code() is not grpc.StatusCode.UNAVAILABLE or not details.startswith(_NO_CONNECTION):
        return None
    if match := _CERTIFICATE.search(details):
        found = f"none: {match[1]}" if match[1] else "none"
        return TlsFailure("ca", mismatch("an authority that vouches for the server's certificate", found))
    if _NAME.search(details):
        return TlsFailure("target", mismatch("a name or address in the server's certificate", "another one"))
    if "WRONG_VERSION_NUMBER" in details:
        return TlsFailure("target", mismatch("a server that encrypts connections (TLS)", "one that does not"))
    if match := _HANDSHAKE.search(details):
        return TlsFailure("target", mismatch("a server whose TLS fits", f"a failed handshake: {match[1]}"))
    return None


def hint_about_tls(error: grpc.RpcError) -> str:
    """Return what may be missing where a server closes each new connection; empty for errors of other kinds."""
    details = error.details() or ""
    if not (details.startswith(_NO_CONNECTION) and _CLOSED.search(details)):
        return ""
    return (
        ": the server closed the new connection. If it encrypts connections, give `ca`; if it asks for certificates, "
        "give `cert` and `key`, signed by an authority that it trusts and not expired"
    )
