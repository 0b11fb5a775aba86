"""Conversion of gRPC's errors to the client's."""

from __future__ import annotations

import re

import grpc

from rollserve._calls.proxies import hint_about_proxy
from rollserve._calls.tls_errors import hint_about_tls, tls_failure_of
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
)
from rollserve_wire.protobuf import LENGTH_DELIMITED, UnusualError, fields, key_of
from rollserve_wire.reasons import Reason

__all__ = ["METHODS", "error_from_rpc", "reason_of"]

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


def error_from_rpc(error: grpc.RpcError) -> RollserveError:
    """Return the client's error for an error of gRPC; its class follows from the status.

    Where the server's message names an RPC, the error names the method of `Sampler`.
    """
    if failure := tls_failure_of(error):
        text = f"{failure.field}: {failure.text}"
        return InvalidArgumentError(text, code="UNAUTHENTICATED", reason=Reason.TLS_FAILED, field=failure.field)
    code, reason = error.code(), reason_of(error)
    details = _RPC_NAME.sub(lambda match: METHODS[match[0]], error.details() or code.name) + hint_about_tls(error)
    if code is grpc.StatusCode.UNAVAILABLE and not reason:
        details += hint_about_proxy(details)
    kind = AccessError if reason in _ACCESS_REASONS else _CLASSES.get(code, ServerError)
    request_id = str(_trailing_metadata(error).get("rollserve-request-id", ""))
    return kind(details, code=code.name, reason=reason, field=_field_of(error), request_id=request_id)


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
