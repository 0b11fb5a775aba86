"""What can go wrong with a call, by what the caller can do about it.

RollserveError
├── InvalidArgumentError   change the request: a field, a name or a permission is wrong
├── PreconditionError      bring the sampler into the right state first, then call again
├── LimitError             ask for less, or have a limit raised
├── UnavailableError       the server is out of reach, starting or stopping: try again later
├── StoppedError           the call was ended before its end
│   ├── CancelledError     by the caller
│   └── DeadlineError      by the clock: its deadline passed, or it made no progress
└── ServerError            a fault of the server or an environment: see its log
"""

from __future__ import annotations

import grpc

from rollserve._codec.protobuf import LENGTH_DELIMITED, UnusualError, fields, key_of
from rollserve.reasons import Reason

__all__ = [
    "CancelledError",
    "DeadlineError",
    "InvalidArgumentError",
    "LimitError",
    "PreconditionError",
    "RollserveError",
    "ServerError",
    "StoppedError",
    "UnavailableError",
    "closed_error",
    "error_from_rpc",
    "malformed_error",
    "mismatch",
    "reason_of",
]


class RollserveError(Exception):
    """A call failed.

    Attributes:
        message: what happened, for people; begins with the field if one is at fault.
        code: gRPC's status code.
        reason: why, for programs; a member of `rollserve.Reason`, plain text if a newer server sends one that this
            client does not know, or empty if the error comes from gRPC itself.
        field: path of the argument or of the request's field that is at fault, such as `options.max_message_bytes`;
            empty if none is.
    """

    def __init__(self, message: str, *, code: grpc.StatusCode, reason: str = "", field: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.field = field

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.code, self.reason, self.field)


class InvalidArgumentError(RollserveError):
    """The request cannot be met as it is: a value, a name or a permission is wrong."""

    @classmethod
    def of(cls, field: str, *, expected: object, got: object, hint: str = "") -> InvalidArgumentError:
        """Return the error for an argument that holds one thing where another was expected; see `mismatch`."""
        message = f"{field}: {mismatch(expected, got, hint)}"
        return cls(message, code=grpc.StatusCode.INVALID_ARGUMENT, reason=Reason.INVALID_VALUE, field=field)


class PreconditionError(RollserveError):
    """The sampler is not in the state that the request needs, such as having an agent."""


class LimitError(RollserveError):
    """The request or its result is larger than a limit allows."""


class UnavailableError(RollserveError):
    """The server is out of reach, starting or stopping; the same call can succeed later."""


class StoppedError(RollserveError):
    """The call was ended before its end."""


class CancelledError(StoppedError):
    """The caller cancelled the call."""


class DeadlineError(StoppedError):
    """The call's deadline passed, or it made no progress for its timeout."""


class ServerError(RollserveError):
    """The server, or an environment on it, has a fault."""


_BY_CODE: dict[grpc.StatusCode, type[RollserveError]] = {
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


_STATUS_DETAILS, _ANY_TYPE, _ANY_VALUE, _VIOLATIONS, _VIOLATION_FIELD = 3, 1, 2, 1, 1
"""Field numbers of google.rpc.Status, google.protobuf.Any, google.rpc.BadRequest and its FieldViolation."""
_BAD_REQUEST = b"type.googleapis.com/google.rpc.BadRequest"


def mismatch(expected: object, got: object, hint: str = "") -> str:
    """Return the text of an error about a value: `expected a positive integer, got -3`, and what to do about it."""
    text = f"expected {expected}, got {got}"
    return f"{text}: {hint}" if hint else text


def error_from_rpc(error: grpc.RpcError) -> RollserveError:
    """Return the exception of this package for an error of gRPC's."""
    code = error.code()
    details = error.details() or code.name
    kind = _BY_CODE.get(code, ServerError)
    return kind(details, code=code, reason=reason_of(error), field=_field_of(error))


def reason_of(error: grpc.RpcError) -> str:
    """Return the server's reason: a member of `Reason` if this client knows it, plain text otherwise, or nothing."""
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
    except (UnusualError, IndexError, ValueError):  # details of another server's making
        pass
    return ""


def _values(data: bytes, number: int) -> list[bytes]:
    """Return the values of a length-delimited field of a serialized message."""
    wanted = key_of(number, LENGTH_DELIMITED)
    return [data[start:stop] for key, _, start, stop in fields(memoryview(data), 0, len(data)) if key == wanted]


def _trailing_metadata(error: grpc.RpcError) -> dict[str, str | bytes]:
    return dict(error.trailing_metadata() or ())  # type: ignore[arg-type]


def closed_error(what: str) -> CancelledError:
    """The error for a call on something that the caller has closed."""
    return CancelledError(f"the {what} was closed", code=grpc.StatusCode.CANCELLED)


def malformed_error(message: str) -> ServerError:
    """The error for a stream that does not keep to the contract."""
    return ServerError(f"malformed stream: {message}", code=grpc.StatusCode.DATA_LOSS)


def _rebuild(
    kind: type[RollserveError], message: str, code: grpc.StatusCode, reason: str, field: str
) -> RollserveError:
    return kind(message, code=code, reason=reason, field=field)
