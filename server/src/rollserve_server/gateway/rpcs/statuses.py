"""Errors as gRPC statuses: the one place that knows the status of each."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

import grpc
from google.rpc import error_details_pb2, status_pb2

from rollserve_server.errors import (
    AgentFailedError,
    AlreadyExistsError,
    AtWorkError,
    CallTooLongError,
    ClientStalledError,
    DomainError,
    EnvFailedError,
    InvalidValueError,
    NotAllowedError,
    NotFoundError,
    NotReadyError,
    OverLimitError,
    SamplerLostError,
    StoppingError,
    TooFewWorkersError,
    UnauthenticatedError,
    WorkerLostError,
    shorten,
    without_folders,
)
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from rollserve_server.gateway.rpcs.open_rpc import Context
    from rollserve_server.gateway.rpcs.refusal_log import FailedRpc, RefusalLog

__all__ = ["abort", "code_of", "reason_of"]

_CODES: dict[type[DomainError], grpc.StatusCode] = {
    InvalidValueError: grpc.StatusCode.INVALID_ARGUMENT,
    NotFoundError: grpc.StatusCode.NOT_FOUND,
    AlreadyExistsError: grpc.StatusCode.ALREADY_EXISTS,
    NotAllowedError: grpc.StatusCode.PERMISSION_DENIED,
    UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    NotReadyError: grpc.StatusCode.FAILED_PRECONDITION,
    OverLimitError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    WorkerLostError: grpc.StatusCode.UNAVAILABLE,
    AtWorkError: grpc.StatusCode.DEADLINE_EXCEEDED,
    CallTooLongError: grpc.StatusCode.UNAVAILABLE,
    ClientStalledError: grpc.StatusCode.UNAVAILABLE,
    StoppingError: grpc.StatusCode.UNAVAILABLE,
    TooFewWorkersError: grpc.StatusCode.UNAVAILABLE,
    SamplerLostError: grpc.StatusCode.UNAVAILABLE,
    EnvFailedError: grpc.StatusCode.INTERNAL,
    AgentFailedError: grpc.StatusCode.FAILED_PRECONDITION,
}

_MAX_FIELD_BYTES, _MAX_TEXT_BYTES = 200, 800
"""Largest sizes of a field and of a text, percent-encoded. They travel up to three times in headers, whose size gRPC
limits to 8 KiB."""


def code_of(error: Exception) -> grpc.StatusCode:
    """Return the code of an error's status."""
    # Errors of third-party code may be subclasses of these.
    return next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), grpc.StatusCode.INTERNAL)


def reason_of(error: Exception) -> Reason:
    """Return the reason of an error."""
    return error.reason if isinstance(error, DomainError) else Reason.INTERNAL


async def abort(context: Context, error: Exception, rpc: FailedRpc, refusals: RefusalLog) -> NoReturn:
    """End an RPC with the status, message and reason of an error.

    An error that is no `DomainError` is a fault of the server: the log has the details, the client gets none of them.
    """
    refusals.add(rpc, error, code_of(error).name, reason_of(error))
    details: list[Message] = [error_details_pb2.RequestInfo(request_id=rpc.request_id)]
    if isinstance(error, DomainError):
        field, message = _shortened(error.field, _MAX_FIELD_BYTES), _shortened(_text_for(rpc, error), _MAX_TEXT_BYTES)
        if field:
            violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=message)
            details.append(error_details_pb2.BadRequest(field_violations=[violation]))
            message = f"{field}: {message}"
    else:
        message = f"internal error of the server: its log has the details of request {rpc.request_id}"
    # gRPC keeps the errors of ended RPCs for a while; the variables of the functions that raised this one, such as the
    # request, go with its traceback. Their frames are not cleared: another RPC may wait in them, with the same error.
    error.__traceback__ = None
    await _end(context, code_of(error), message, reason_of(error), rpc.request_id, details)


def _text_for(rpc: FailedRpc, error: DomainError) -> str:
    """Return the text for a client, for most without folders of the server.

    A path that is not allowed is the client's own.
    """
    text = shorten(error.text)
    return text if error.reason == Reason.PATH_NOT_ALLOWED or rpc.sees_all else without_folders(text)


async def _end(
    context: Context, code: grpc.StatusCode, message: str, reason: str, request_id: str, details: Sequence[Message]
) -> NoReturn:
    number, _ = code.value
    status = status_pb2.Status(code=number, message=message)
    for detail in (error_details_pb2.ErrorInfo(reason=reason, domain="rollserve"), *details):
        status.details.add().Pack(detail)
    metadata = (
        ("rollserve-reason", reason),
        ("rollserve-request-id", request_id),
        ("grpc-status-details-bin", status.SerializeToString()),
    )
    await context.abort(code, message, metadata)
    raise AssertionError("abort raises")


def _shortened(text: str, max_bytes: int) -> str:
    """Return the text, or as much of its beginning as fits, with an ellipsis."""
    ends = list(itertools.accumulate(_encoded_sizes(text[: max_bytes + 1])))
    num_fitting = bisect.bisect_right(ends, max_bytes)
    return text if num_fitting == len(text) else f"{text[:num_fitting]}…"


def _encoded_sizes(text: str) -> Iterator[int]:
    """Yield the size of each character in a header: 1 byte for printable ASCII but %, else 3 for each byte of UTF-8."""
    return (1 if " " <= character <= "~" and character != "%" else 3 * len(character.encode()) for character in text)
