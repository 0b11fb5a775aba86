"""The one table from domain errors to gRPC statuses."""

from __future__ import annotations

import bisect
import itertools
import logging
import traceback
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2

from rollserve_server.errors import (
    AgentFailedError,
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
    WorkerLostError,
)

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["abort", "abort_unexpected"]

_log = logging.getLogger(__name__)

_CODES: dict[type[DomainError], grpc.StatusCode] = {
    InvalidValueError: grpc.StatusCode.INVALID_ARGUMENT,
    NotFoundError: grpc.StatusCode.NOT_FOUND,
    NotAllowedError: grpc.StatusCode.PERMISSION_DENIED,
    NotReadyError: grpc.StatusCode.FAILED_PRECONDITION,
    OverLimitError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    WorkerLostError: grpc.StatusCode.UNAVAILABLE,
    ClientStalledError: grpc.StatusCode.UNAVAILABLE,
    StoppingError: grpc.StatusCode.UNAVAILABLE,
    TooFewWorkersError: grpc.StatusCode.UNAVAILABLE,
    SamplerLostError: grpc.StatusCode.UNAVAILABLE,
    EnvFailedError: grpc.StatusCode.INTERNAL,
    AgentFailedError: grpc.StatusCode.FAILED_PRECONDITION,
}

_MOST_FIELD_BYTES, _MOST_TEXT_BYTES = 200, 800
"""Of a field and a text, percent-encoded: they travel up to three times in headers, whose size gRPC limits to 8 KiB."""


async def abort(context: grpc.aio.ServicerContext[object, object], error: DomainError) -> NoReturn:
    """Ends the call with the error's status, message and reason."""
    # Code that is not ours may have errors that are kinds of these.
    code = next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), grpc.StatusCode.INTERNAL)
    field, message = _shortened(error.field, _MOST_FIELD_BYTES), _shortened(error.text, _MOST_TEXT_BYTES)
    details: list[Message] = []
    if field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
        message = f"{field}: {message}"
    _log.info("call refused", extra={"code": code.name, "reason": error.reason, "error": message})
    _let_go(error)
    await _abort(context, code, message, error.reason, details)


async def abort_unexpected(context: grpc.aio.ServicerContext[object, object], error: Exception) -> NoReturn:
    """Ends the call because of a fault of the server: the log has it all, the client only that it happened."""
    _log.error("call failed", exc_info=error)
    _let_go(error)
    message = "the server has a fault; its log has more"
    await _abort(context, grpc.StatusCode.INTERNAL, message, "INTERNAL", [])


async def _abort(
    context: grpc.aio.ServicerContext[object, object],
    code: grpc.StatusCode,
    message: str,
    reason: str,
    details: Sequence[Message],
) -> NoReturn:
    number, _ = code.value
    status = status_pb2.Status(code=number, message=message)
    for detail in (error_details_pb2.ErrorInfo(reason=reason, domain="rollserve"), *details):
        status.details.add().Pack(detail)
    await context.abort(
        code,
        message,
        (("rollserve-reason", reason), ("grpc-status-details-bin", status.SerializeToString())),
    )
    raise AssertionError("abort raises")


def _let_go(error: Exception) -> None:
    """Frees what the functions that raised an error held, such as the request: gRPC keeps how calls end for a while."""
    traceback.clear_frames(error.__traceback__)


def _shortened(text: str, most_bytes: int) -> str:
    """The text, or as much of its beginning as fits."""
    ends = list(itertools.accumulate(_encoded_sizes(text[: most_bytes + 1])))
    fitting = bisect.bisect_right(ends, most_bytes)
    return text if fitting == len(text) else f"{text[:fitting]}…"


def _encoded_sizes(text: str) -> Iterator[int]:
    """How many bytes each character takes in a header: three for each of those that are no plain ASCII."""
    return (1 if " " <= character <= "~" and character != "%" else 3 * len(character.encode()) for character in text)
