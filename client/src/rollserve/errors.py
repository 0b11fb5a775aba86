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
    "reason_of",
]


class RollserveError(Exception):
    """A call failed.

    Attributes:
        code: gRPC's status code.
        reason: a constant that programs can tell errors apart by, such as `NO_AGENT`; empty if the server gave none.
        message: what happened, for people.
    """

    def __init__(self, message: str, *, code: grpc.StatusCode, reason: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.code, self.reason)


class InvalidArgumentError(RollserveError):
    """The request cannot be met as it is: a value, a name or a permission is wrong."""


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


def error_from_rpc(error: grpc.RpcError) -> RollserveError:
    """The error of this package that says what gRPC's error says."""
    code = error.code()
    details = error.details() or code.name
    kind = _BY_CODE.get(code, ServerError)
    return kind(details, code=code, reason=reason_of(error))


def reason_of(error: grpc.RpcError) -> str:
    """The server's word for what went wrong; empty if it said none."""
    metadata: dict[str, str | bytes] = dict(error.trailing_metadata() or ())  # type: ignore[arg-type]
    return str(metadata.get("rollserve-reason", ""))


def closed_error(what: str) -> CancelledError:
    """The error for a call on something that the caller has closed."""
    return CancelledError(f"the {what} was closed", code=grpc.StatusCode.CANCELLED)


def malformed_error(message: str) -> ServerError:
    """The error for a stream that does not keep to the contract."""
    return ServerError(f"malformed stream: {message}", code=grpc.StatusCode.DATA_LOSS)


def _rebuild(kind: type[RollserveError], message: str, code: grpc.StatusCode, reason: str) -> RollserveError:
    return kind(message, code=code, reason=reason)
