"""Errors of TLS, told from the texts of all versions of gRPC that the client supports."""

from __future__ import annotations

import grpc
import pytest
from support import check_error

import rollserve
from rollserve._calls.rpc_errors import error_from_rpc

PREFIX = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:34919: "
LIBRARY = "SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:"


class Failed(grpc.RpcError):
    """An error with a text of gRPC's."""

    def __init__(self, details: str) -> None:
        self._details = details

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()


FAILURES = {
    "1.74, authority": ("ca", f"Ssl handshake failed (TSI_PROTOCOL_FAILURE): {LIBRARY}CERTIFICATE_VERIFY_FAILED: odd"),
    "1.85, authority": (
        "ca",
        f"Tls handshake failed (TSI_PROTOCOL_FAILURE): {LIBRARY}CERTIFICATE_VERIFY_FAILED: odd: OK",
    ),
    "1.74, name": ("target", "Peer name 127.0.0.1 is not in peer certificate"),
    "1.85, name": (
        "target",
        "Custom verification check failed with error: UNAUTHENTICATED: Hostname Verification Check failed.",
    ),
    "1.74, no TLS": ("target", f"Ssl handshake failed (TSI_PROTOCOL_FAILURE): {LIBRARY}WRONG_VERSION_NUMBER: Invalid"),
    "1.85, no TLS": (
        "target",
        f"Tls handshake failed (TSI_PROTOCOL_FAILURE): {LIBRARY}WRONG_VERSION_NUMBER: Invalid: OK",
    ),
    "another cause": ("target", f"Tls handshake failed (TSI_PROTOCOL_FAILURE): {LIBRARY}NO_SHARED_CIPHER: Invalid: OK"),
}


@pytest.mark.parametrize(("field", "text"), FAILURES.values(), ids=FAILURES)
def test_failure_of_tls_has_a_reason_and_a_field(field: str, text: str) -> None:
    error = error_from_rpc(Failed(PREFIX + text))
    assert isinstance(error, rollserve.InvalidArgumentError)
    check_error(error, field=field, reason=rollserve.Reason.TLS_FAILED)
    assert ("odd" in str(error)) == (field == "ca")


@pytest.mark.parametrize("text", ["Socket closed", "Handshake read failed (Socket closed)", "Connection reset by peer"])
def test_closed_connection_gives_a_hint(text: str) -> None:
    error = error_from_rpc(Failed(PREFIX + text))
    assert isinstance(error, rollserve.UnavailableError)
    check_error(error, field="", reason="", quotes=(text, "`ca`", "`cert`"))


@pytest.mark.parametrize(
    "text",
    ["Socket closed", f"{LIBRARY}CERTIFICATE_VERIFY_FAILED: odd", PREFIX + "Failed to connect to remote host: refused"],
    ids=["running call", "text of a server", "no server"],
)
def test_other_error_is_left_alone(text: str) -> None:
    error = error_from_rpc(Failed(text))
    assert isinstance(error, rollserve.UnavailableError)
    assert str(error) == text
