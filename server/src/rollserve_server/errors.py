"""What can go wrong below the gateway, which alone knows the gRPC status of each.

Messages are for the caller: they name the field, what came and what was expected, and no file or line of the server.
"""

from __future__ import annotations

__all__ = [
    "DomainError",
    "EnvFailedError",
    "InvalidValueError",
    "NotAllowedError",
    "NotFoundError",
    "NotReadyError",
    "OverLimitError",
    "WorkerLostError",
]


class DomainError(Exception):
    """An error that the caller is told of.

    Attributes:
        message: what happened, for people.
        reason: a constant, for programs.
    """

    reason = "INTERNAL"

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if reason is not None:
            self.reason = reason

    def locate(self, field: str) -> None:
        """Puts the field that the message is about in front of it."""
        self.message = f"{field}: {self.message}"
        self.args = (self.message,)

    def __reduce__(self) -> tuple[object, ...]:
        # Errors come out of workers as pickles; their constructors differ.
        return _restore, (type(self), self.message, self.__dict__)


class InvalidValueError(DomainError):
    """A value of the request is malformed, out of range, or does not fit."""

    reason = "INVALID_VALUE"

    @classmethod
    def of(cls, field: str, came: object, expected: object) -> InvalidValueError:
        """The error for a field that holds one thing where another was expected."""
        return cls(f"{field}: {came} came, {expected} was expected")


class NotFoundError(DomainError):
    """The request names something that is not there."""

    reason = "NOT_FOUND"


class NotAllowedError(DomainError):
    """The request names something that the operator does not allow."""

    reason = "NOT_ALLOWED"


class NotReadyError(DomainError):
    """The sampler is not in the state that the request needs."""

    reason = "NOT_READY"


class OverLimitError(DomainError):
    """The request or its result is larger than a limit allows."""

    reason = "OVER_LIMIT"


class WorkerLostError(DomainError):
    """A worker's process is gone.

    Attributes:
        worker_index: which worker.
    """

    reason = "WORKER_LOST"

    def __init__(self, message: str, worker_index: int) -> None:
        super().__init__(message)
        self.worker_index = worker_index


class EnvFailedError(DomainError):
    """An environment raised an error while it was sampled.

    Attributes:
        row: which row of its worker it stood in.
    """

    reason = "ENV_FAILED"

    def __init__(self, message: str, row: int) -> None:
        super().__init__(message)
        self.row = row


def _restore(kind: type[DomainError], message: str, attributes: dict[str, object]) -> DomainError:
    error = kind.__new__(kind, message)
    error.__dict__.update(attributes)
    return error
