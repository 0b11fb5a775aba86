"""Conversion of gRPC's errors to the client's, with hints about TLS and proxies."""

from __future__ import annotations

import ipaddress
import os
import re
from typing import NamedTuple
from urllib.parse import urlsplit

import grpc

from rollserve_wire.errors import (
    AccessError,
    CancelledError,
    DeadlineError,
    InvalidArgumentError,
    LimitError,
    PreconditionError,
    RollserveError,
    ServerError,
    UnavailableError,
    mismatch,
)
from rollserve_wire.protobuf import LENGTH_DELIMITED, UnusualError, fields, key_of
from rollserve_wire.reasons import Reason

__all__ = ["METHODS", "error_from_rpc", "is_loopback", "reason_of", "status_of"]


_CLASSES: dict[grpc.StatusCode, type[RollserveError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgumentError,
    grpc.StatusCode.NOT_FOUND: InvalidArgumentError,
    grpc.StatusCode.ALREADY_EXISTS: InvalidArgumentError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidArgumentError,
    grpc.StatusCode.PERMISSION_DENIED: InvalidArgumentError,
    grpc.StatusCode.UNAUTHENTICATED: InvalidArgumentError,
    grpc.StatusCode.UNIMPLEMENTED: InvalidArgumentError,
    grpc.StatusCode.FAILED_PRECONDITION: PreconditionError,
    grpc.StatusCode.ABORTED: PreconditionError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: LimitError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.CANCELLED: CancelledError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
}

_ACCESS_REASONS = (Reason.TOKEN_MISSING, Reason.TOKEN_INVALID, Reason.TOKEN_EXPIRED, Reason.SCOPE_MISSING)

METHODS = {
    "UpdateAgent": "update_agent",
    "UpdateEnv": "update_env",
    "CallEnvironments": "call_environments",
    "ResizePool": "resize",
    "ObtainSamples": "obtain_samples",
    "ObtainExactEpisodes": "obtain_exact_episodes",
    "StreamSamples": "stream",
    "DriveEnvironments": "drive",
    "Evaluate": "evaluate",
    "EvaluatePopulation": "evaluate_population",
    "RenderEpisode": "render",
    "RecordDataset": "record",
    "ReadDataset": "read",
    "GetMetrics": "metrics",
    "GetSampler": "status",
    "CreateSampler": "create_sampler",
    "DeleteSampler": "delete_sampler",
    "ListSamplers": "list_samplers",
    "ReloadSettings": "reload_settings",
    "SaveSampler": "save",
    "RestoreSampler": "restore",
    "ListAgentVersions": "agent_versions",
    "GetAgentParameters": "agent_parameters",
    "GetAgent": "agent",
}
"""Methods of `Sampler`, or of `rollserve`, by the RPC that messages of the server name."""
_RPC_NAME = re.compile(rf"\b({'|'.join(METHODS.keys() - {'Evaluate'})})\b")  # which is also a usual word

# Field numbers of google.rpc.Status, google.protobuf.Any, google.rpc.BadRequest and its FieldViolation.
_STATUS_DETAILS, _ANY_TYPE, _ANY_VALUE, _VIOLATIONS, _VIOLATION_FIELD = 3, 1, 2, 1, 1
_BAD_REQUEST = b"type.googleapis.com/google.rpc.BadRequest"

_NO_CONNECTION = "failed to connect to all addresses"
"""The beginning of gRPC's text where no connection could be made; other texts may come from a server."""
_CERTIFICATE = re.compile(r"CERTIFICATE_VERIFY_FAILED(?:: ([^:]+))?")
_NAME = re.compile(r"Hostname Verification Check failed|is not in peer certificate")
_HANDSHAKE = re.compile(r"SSL_ERROR_SSL: .*OPENSSL_internal:(\w+)")
_CLOSED = re.compile(r"Socket closed|Connection reset by peer|Handshake read failed")
"""Texts of new connections that the server closes without a word, as it does where the client leaves out TLS, or a
certificate that the server asks for. A server that is ending closes connections, too."""

_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
"""Variables that gRPC reads, the first that is set."""
_SCHEME = re.compile(r"(dns|ipv4|ipv6):(//[^/]*/)?")


def error_from_rpc(error: grpc.RpcError) -> RollserveError:
    """Return the client's error for an error of gRPC; its class follows from the status.

    Where the server's message names an RPC, the error names the method of `Sampler`.
    """
    if failure := tls_failure_of(error):
        text = f"{failure.field}: {failure.text}"
        return InvalidArgumentError(text, code="UNAUTHENTICATED", reason=Reason.TLS_FAILED, field=failure.field)
    code, reason = status_of(error), reason_of(error)
    details = "the server reset the call" if code is not error.code() else error.details() or code.name
    details = _RPC_NAME.sub(lambda match: METHODS[match[0]], details) + hint_about_tls(error)
    if code is grpc.StatusCode.UNAVAILABLE and not reason:
        details += hint_about_proxy(details)
    kind = AccessError if reason in _ACCESS_REASONS else _CLASSES.get(code, ServerError)
    request_id = str(_trailing_metadata(error).get("rollserve-request-id", ""))
    return kind(details, code=code.name, reason=reason, field=_field_of(error), request_id=request_id)


def status_of(error: grpc.RpcError) -> grpc.StatusCode:
    """Return the status of an error; UNAVAILABLE where a server that stops has reset a call.

    gRPC cancels calls that a server has received and not begun when it stops. They have no text or the status's name,
    unlike calls that the client cancels.
    """
    is_reset = error.code() is grpc.StatusCode.CANCELLED and error.details() in (None, "", "CANCELLED")
    return grpc.StatusCode.UNAVAILABLE if is_reset else error.code()


def reason_of(error: grpc.RpcError) -> str:
    """Return the reason: a member of `Reason` if this client knows it, else the server's text; empty for none."""
    if tls_failure_of(error):
        return Reason.TLS_FAILED
    reason = str(_trailing_metadata(error).get("rollserve-reason", ""))
    return Reason.__members__.get(reason, reason)


def _field_of(error: grpc.RpcError) -> str:
    """Return the field that `google.rpc.BadRequest` in the status's details names, or an empty text."""
    status = _trailing_metadata(error).get("grpc-status-details-bin", b"")
    try:
        for detail in _values(status, _STATUS_DETAILS) if isinstance(status, bytes) else ():
            if _BAD_REQUEST in _values(detail, _ANY_TYPE):
                (violation,) = _values(_values(detail, _ANY_VALUE)[0], _VIOLATIONS)
                return _values(violation, _VIOLATION_FIELD)[0].decode()
    except (UnusualError, IndexError, ValueError):  # details that some other server has made
        pass
    return ""


def _values(data: bytes, number: int) -> list[bytes]:
    """Return the values of a length-delimited field of a serialized message."""
    expected = key_of(number, LENGTH_DELIMITED)
    return [data[start:stop] for key, _, start, stop in fields(data, 0, len(data)) if key == expected]


def _trailing_metadata(error: grpc.RpcError) -> dict[str, str | bytes]:
    return dict(error.trailing_metadata() or ())  # type: ignore[arg-type]


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


def is_loopback(target: str) -> bool:
    """Whether a target is this machine's loopback interface, where no proxy reaches what the client means."""
    host = _SCHEME.sub("", target, count=1).rpartition(":")[0].strip("[]").rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def hint_about_proxy(details: str) -> str:
    """Return which variable names the proxy that a connection failed at, to add to gRPC's error; empty for none."""
    name = next((name for name in _VARIABLES if os.environ.get(name)), None)
    if name is None:
        return ""
    try:
        proxy = urlsplit(os.environ[name])
        host, port = proxy.hostname or "", proxy.port or 443
    except ValueError:
        return ""
    # gRPC tells the address of a proxy that it has found, and the name of one that it has not.
    is_number = re.fullmatch(r"[0-9.]+|.*:.*", host) is not None
    marks = (f"{host}:{port}", f"[{host}]:{port}") if is_number else (host, f":{port}")
    if any(mark in details for mark in (*marks, "HTTP proxy")):
        return f" (through the proxy of {name}; no_proxy excepts hosts)"
    return ""
