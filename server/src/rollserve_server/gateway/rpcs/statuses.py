"""Errors as gRPC statuses: the one place that knows the status of each."""

from __future__ import annotations

import asyncio
import bisect
import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

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
    from rollserve_server.identity import Principal

__all__ = ["RefusalLog", "abort", "code_of", "described", "reason_of"]


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

_log = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_BURST = 10
"""Lines at once, so that the log has the requests of a client that only now and then makes a mistake."""
_MAX_SOURCES = 1000
"""Pairs of peer and reason that are counted for themselves; all further ones are one peer together."""
_OTHERS = ("others",)


def code_of(error: Exception) -> grpc.StatusCode:
    """Return the code of an error's status."""
    # Errors of third-party code may be subclasses of these.
    return next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), grpc.StatusCode.INTERNAL)


def reason_of(error: Exception) -> Reason:
    """Return the reason of an error."""
    return error.reason if isinstance(error, DomainError) else Reason.INTERNAL


async def abort(context: Context, error: Exception, rpc: EndedRpc, refusals: RefusalLog) -> NoReturn:
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
        _drop_tracebacks(error)
    else:
        message = f"internal error of the server: its log has the details of request {rpc.request_id}"
    await _end(context, code_of(error), message, reason_of(error), rpc.request_id, details)


def _text_for(rpc: EndedRpc, error: DomainError) -> str:
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


def _drop_tracebacks(error: BaseException) -> None:
    """Free the variables of the functions that raised an error and its causes, such as the request.

    gRPC keeps the errors of ended RPCs for a while. The frames are not cleared: another call that has caught the same
    error may go on in one of them, and would end there in silence.
    """
    error.__traceback__ = None
    for earlier in (error.__cause__, error.__context__):
        if earlier is not None:
            _drop_tracebacks(earlier)


def _shortened(text: str, max_bytes: int) -> str:
    """Return the text, or as much of its beginning as fits, with an ellipsis."""
    ends = list(itertools.accumulate(_encoded_sizes(text[: max_bytes + 1])))
    num_fitting = bisect.bisect_right(ends, max_bytes)
    return text if num_fitting == len(text) else f"{text[:num_fitting]}…"


def _encoded_sizes(text: str) -> Iterator[int]:
    """Yield the size of each character in a header: 1 byte for printable ASCII but %, else 3 for each byte of UTF-8."""
    return (1 if " " <= character <= "~" and character != "%" else 3 * len(character.encode()) for character in text)


class EndedRpc(Protocol):
    """An RPC that ends, as the log and the client name it; see `OpenRpc`."""

    name: str
    request_id: str
    connection: str
    charged_to: tuple[str, ...]
    principal: Principal | None
    began: float

    @property
    def shown_sampler(self) -> str:
        """Name of the sampler, as far as the log shows it."""
        ...

    @property
    def sees_all(self) -> bool:
        """Whether the client may learn folders of the server."""
        ...


def described(rpc: EndedRpc) -> dict[str, Any]:
    """Return the fields of a log event that say which RPC ends now."""
    known = {"principal": rpc.principal.name} if rpc.principal is not None and rpc.principal.is_known else {}
    return {
        "rpc": rpc.name,
        "sampler": rpc.shown_sampler,
        "peer": rpc.connection,
        **known,
        "request_id": rpc.request_id,
        "seconds": round(time.monotonic() - rpc.began, 6),
    }


class _Line(NamedTuple):
    """A line of the log, with the traceback of the error if there is one."""

    level: int
    event: str
    fields: dict[str, Any]
    error: Exception | None = None


@dataclass
class _Source:
    """A peer with a reason: how many lines it may have now, and what it lacks.

    Attributes:
        num_lines: number of lines that it may have now.
        num_suppressed: number of RPCs without a line since the last line.
        last: the line that the last of them would have had.
    """

    num_lines: int = _BURST
    num_suppressed: int = 0
    last: _Line | None = None


class RefusalLog:
    """Logs RPCs that end with errors: of each peer and reason, ten at once, and then one line each second.

    A line that stands for others, too, has their number as `suppressed`.
    """

    def __init__(self) -> None:
        """Start with an empty log; the event loop runs by the first line."""
        self._sources: dict[tuple[tuple[str, ...], str], _Source] = {}

    def add(self, rpc: EndedRpc, error: Exception, code: str, reason: str) -> None:
        """Log that an RPC ends with an error, now or together with others of its peer and reason."""
        fields = described(rpc)
        if isinstance(error, DomainError):
            fields |= {"code": code, "reason": reason, "error": shorten(error.message)}
            line = _Line(logging.INFO, "call refused", fields)
        else:
            line = _Line(logging.ERROR, "call failed", fields, error)
        key = rpc.charged_to, reason
        if key not in self._sources and len(self._sources) >= _MAX_SOURCES:
            key = _OTHERS, ""
        source = self._sources.get(key)
        if source is None:
            source = self._sources[key] = _Source()
            self._tick_later(key)
        if source.num_lines:
            source.num_lines -= 1
            _write(line)
        else:
            source.num_suppressed += 1
            source.last = line

    def _tick(self, key: tuple[tuple[str, ...], str]) -> None:
        """Give a source the line of a second: for what it lacks, or for later. Forget it once it has all lines."""
        source = self._sources[key]
        if source.last is not None:
            _write(source.last, source.num_suppressed - 1)
            source.num_suppressed, source.last = 0, None
        else:
            source.num_lines += 1
        if source.num_lines < _BURST:
            self._tick_later(key)
        else:
            del self._sources[key]

    def _tick_later(self, key: tuple[tuple[str, ...], str]) -> None:
        asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick, key)


def _write(line: _Line, num_suppressed: int = 0) -> None:
    extra = {**line.fields, "suppressed": num_suppressed} if num_suppressed else line.fields
    _log.log(line.level, line.event, exc_info=line.error, extra=extra)
