"""Exceptions of calls, grouped by what the caller can do about them, and errors about the fields of messages.

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

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    import grpc

__all__ = [
    "AccessError",
    "CancelledError",
    "DeadlineError",
    "FieldError",
    "InvalidArgumentError",
    "LimitError",
    "PreconditionError",
    "RollserveError",
    "ServerError",
    "StoppedError",
    "UnavailableError",
    "closed_error",
    "in_named",
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
        reason: a member of `rollserve.Reason`; plain text if a newer server sends a reason that this client does not
            know; empty if the error is gRPC's own, such as a lost connection.
        field: path of the argument or of the request's field that is at fault, such as `options.max_message_bytes`;
            empty if no field is.
        request_id: name of the request in the server's log; empty if the error is gRPC's own, or the client's.
    """

    def __init__(
        self, message: str, *, code: str | grpc.StatusCode, reason: str = "", field: str = "", request_id: str = ""
    ) -> None:
        """Start with the attributes; the code may be given by its name, such as `INVALID_ARGUMENT`."""
        super().__init__(message)
        self.message = message
        self._code = code if isinstance(code, str) else code.name
        self.reason = reason
        self.field = field
        self.request_id = request_id

    @property
    def code(self) -> grpc.StatusCode:
        """The gRPC status code."""
        import grpc  # processes without gRPC raise errors, too

        return grpc.StatusCode[self._code]

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self._code, self.reason, self.field, self.request_id)


class InvalidArgumentError(RollserveError):
    """Error of a request that cannot be met: a value, a name or a permission is wrong. Change the request."""

    @classmethod
    def of(cls, field: str, *, expected: object, got: object, hint: str = "") -> InvalidArgumentError:
        """Return the error for an argument; its message is the field followed by `mismatch(expected, got, hint)`."""
        message = f"{field}: {mismatch(expected, got, hint)}"
        return cls(message, code="INVALID_ARGUMENT", reason=Reason.INVALID_VALUE, field=field)


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
    return CancelledError(f"the {owner} was closed", code="CANCELLED")


def malformed_error(message: str) -> ServerError:
    """Return the error for a stream that violates the wire contract."""
    return ServerError(f"malformed stream: {message}", code="DATA_LOSS")


def _rebuild(
    kind: type[RollserveError], message: str, code: str, reason: str, field: str, request_id: str
) -> RollserveError:
    return kind(message, code=code, reason=reason, field=field, request_id=request_id)


class FieldError(ValueError):
    """Error about a field of a message; the message itself may be part of another one.

    Attributes:
        field: path of the field within the message, such as `['0/weight'].shape`.
        text: what is wrong, without the path.
    """

    def __init__(self, field: str, text: str) -> None:
        super().__init__(field, text)
        self.field = field
        self.text = text

    def __str__(self) -> str:
        return f"{self.field}: {self.text}"


@contextlib.contextmanager
def in_named(name: str) -> Iterator[None]:
    """Let errors of the block be about the value of this name, in a list of named ones.

    Raises:
        FieldError: instead of a ValueError.
    """
    try:
        yield
    except FieldError as error:
        raise FieldError(f"[{name!r}].{error.field}", error.text) from None
    except ValueError as error:
        raise FieldError(f"[{name!r}]", str(error)) from None
