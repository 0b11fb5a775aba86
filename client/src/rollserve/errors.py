"""Exceptions of the client, grouped by what the caller can do about them.

RollserveError
├── InvalidArgumentError   change the request: a field, a name or a permission is wrong
│   └── AccessError        get a token, or have its scopes extended: the server does not let this client do that
├── PreconditionError      bring the sampler into the right state, then call again
├── LimitError             ask for less, or have a limit raised
├── UnavailableError       call again later: the server is out of reach, starting or stopping
├── StoppedError           the call ended early
│   ├── CancelledError     the caller cancelled it
│   └── DeadlineError      its deadline passed, or it made no progress for its timeout
└── ServerError            a fault of the server or of an environment: look at the server's log
"""

from __future__ import annotations

import grpc

from rollserve.reasons import Reason

__all__ = [
    "AccessError",
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
    "malformed_error",
    "mismatch",
]


class RollserveError(Exception):
    """Base class of all errors of calls.

    Its subclasses say what the caller can do; `reason` says exactly what happened.

    >>> try:  # doctest: +SKIP
    ...     batch = sampler.obtain_samples(10_000)
    ... except rollserve.RollserveError as error:
    ...     if error.reason == rollserve.Reason.NO_AGENT:
    ...         sampler.update_agent(agent)

    Attributes:
        message: description of the error. It begins with the field, if one is at fault, and reads
            `field: expected …, got …`.
        code: gRPC status code.
        reason: a member of `rollserve.Reason`; plain text if a newer server sends a reason that this client does not
            know; empty if the error is gRPC's own, such as a lost connection.
        field: path of the argument or of the request's field that is at fault, such as `options.max_message_bytes`;
            empty if no field is.
        request_id: name of the request in the server's log; empty if the error is gRPC's own, or the client's.
    """

    def __init__(
        self, message: str, *, code: grpc.StatusCode, reason: str = "", field: str = "", request_id: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.field = field
        self.request_id = request_id

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.code, self.reason, self.field, self.request_id)


class InvalidArgumentError(RollserveError):
    """Error of a request that cannot be met: a value, a name or a permission is wrong. Change the request."""

    @classmethod
    def of(cls, field: str, *, expected: object, got: object, hint: str = "") -> InvalidArgumentError:
        """Return the error for an argument; its message is the field followed by `mismatch(expected, got, hint)`."""
        message = f"{field}: {mismatch(expected, got, hint)}"
        return cls(message, code=grpc.StatusCode.INVALID_ARGUMENT, reason=Reason.INVALID_VALUE, field=field)


class AccessError(InvalidArgumentError):
    """Error of a client that does not prove who it is, or lacks the scope that the message names."""


class PreconditionError(RollserveError):
    """Error of a sampler that is not in the state the request needs, for example because it has no agent yet."""


class LimitError(RollserveError):
    """Error of a request or a result that is larger than a limit allows."""


class UnavailableError(RollserveError):
    """Error of a server that is out of reach, starting or stopping, or has lost a worker. Call again later."""


class StoppedError(RollserveError):
    """Error of a call that ended early, because of its caller or of a time limit."""


class CancelledError(StoppedError):
    """Error of a call that its caller cancelled."""


class DeadlineError(StoppedError):
    """Error of a call whose deadline passed, or that made no progress for its timeout (`Reason.NO_PROGRESS`)."""


class ServerError(RollserveError):
    """Error of the server or of an environment. The server's log has the details."""


def mismatch(expected: object, got: object, hint: str = "") -> str:
    """Return the text of an error about a value, such as `expected a positive integer, got -3`, and a hint, if any."""
    text = f"expected {expected}, got {got}"
    return f"{text}: {hint}" if hint else text


def closed_error(owner: str) -> CancelledError:
    """Return the error for a call on something that the caller has closed."""
    return CancelledError(f"the {owner} was closed", code=grpc.StatusCode.CANCELLED)


def malformed_error(message: str) -> ServerError:
    """Return the error for a stream that violates the wire contract."""
    return ServerError(f"malformed stream: {message}", code=grpc.StatusCode.DATA_LOSS)


def _rebuild(
    kind: type[RollserveError], message: str, code: grpc.StatusCode, reason: str, field: str, request_id: str
) -> RollserveError:
    return kind(message, code=code, reason=reason, field=field, request_id=request_id)
