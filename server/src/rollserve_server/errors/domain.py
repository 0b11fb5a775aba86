"""Errors that reach the client. The gateway alone knows the gRPC status of each.

Messages are for the caller: they name the field, the expected and the given value, and no file or line of the server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Self

from rollserve_wire.errors import mismatch
from rollserve_wire.reasons import Reason

__all__ = [
    "AgentFailedError",
    "AlreadyExistsError",
    "AtWorkError",
    "CallTooLongError",
    "ClientStalledError",
    "DomainError",
    "EnvFailedError",
    "EpisodeFailedError",
    "InvalidValueError",
    "NotAllowedError",
    "NotFoundError",
    "NotReadyError",
    "OverLimitError",
    "SamplerLostError",
    "StoppingError",
    "TooFewWorkersError",
    "UnauthenticatedError",
    "WorkerLostError",
    "at_row",
    "joined",
    "within",
]


class DomainError(Exception):
    """An error that the client gets as a status.

    Attributes:
        text: what happened, without the field.
        reason: why, for programs.
        field: path of the request's field that is at fault; empty if no field is.
        row: index of the row, within its worker, whose environment is at fault; None if no single row is.
    """

    reason = Reason.INTERNAL
    row: int | None = None

    def __init__(self, text: str, *, reason: Reason | None = None, field: str = "") -> None:
        # Texts of environments may hold lone surrogates, as file names do, which no encoding takes.
        text = text.encode(errors="backslashreplace").decode()
        super().__init__(text)
        self.text = text
        self.field = field
        if reason is not None:
            self.reason = reason

    @classmethod
    def of(cls, field: str, *, expected: object, got: object, hint: str = "", reason: Reason | None = None) -> Self:
        """Return the error for a field with an unexpected value; see `mismatch`."""
        return cls(mismatch(expected, got, hint), reason=reason, field=field)

    @property
    def message(self) -> str:
        """The text, with the field in front."""
        return f"{self.field}: {self.text}" if self.field else self.text

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        # Workers send errors as pickles, and the constructors of the classes differ.
        return _restore, (type(self), self.__dict__)


@contextlib.contextmanager
def within(field: str) -> Iterator[None]:
    """Prefix the fields of errors raised in the block with this path."""
    try:
        yield
    except DomainError as error:
        error.field = joined(field, error.field)
        raise


def joined(field: str, inner: str) -> str:
    """Return the path of a field within another one; a position or name in brackets follows without a dot."""
    return f"{field}.{inner}" if field and inner and not inner.startswith("[") else f"{field}{inner}"


@contextlib.contextmanager
def at_row(row: int) -> Iterator[None]:
    """Set the row of errors raised in the block."""
    try:
        yield
    except DomainError as error:
        error.row = row
        raise


class InvalidValueError(DomainError):
    """A value of the request is malformed, out of range, or does not fit."""

    reason = Reason.INVALID_VALUE


class NotFoundError(DomainError):
    """The request names something that the server does not have."""


class NotAllowedError(DomainError):
    """The request names something that the operator does not allow."""


class UnauthenticatedError(DomainError):
    """The client does not prove who it is."""


class NotReadyError(DomainError):
    """The sampler is not in the state that the request needs."""


class AlreadyExistsError(DomainError):
    """The request creates something of a name that is taken."""

    reason = Reason.SAMPLER_EXISTS


class OverLimitError(DomainError):
    """The request, or its result, is larger than a limit allows."""


class WorkerLostError(DomainError):
    """A worker's process is gone, or was killed.

    The reason is `WORKER_HUNG` if it hung, and `WORKER_OUT_OF_MEMORY` if it took too much memory.

    Attributes:
        worker_index: the worker's index.
        episode_index: index of the episode that the worker hung in; None if it did not hang, or not in an episode.
    """

    reason = Reason.WORKER_LOST

    def __init__(
        self, text: str, worker_index: int, *, reason: Reason | None = None, episode_index: int | None = None
    ) -> None:
        super().__init__(text, reason=reason)
        self.worker_index = worker_index
        self.episode_index = episode_index

    def again(self, text: str) -> WorkerLostError:
        """Return the error of work that was lost with one worker after the other, the last time with this error."""
        reason = Reason.WORKER_LOST_AGAIN if self.reason == Reason.WORKER_LOST else self.reason
        return WorkerLostError(text, self.worker_index, reason=reason)


class ClientStalledError(DomainError):
    """The client did not read what was ready for it, or did not send what it began to, for too long."""

    reason = Reason.CLIENT_STALLED


class AtWorkError(DomainError):
    """The server is still at work when the client's time for the call ends."""

    reason = Reason.NO_PROGRESS


class CallTooLongError(DomainError):
    """The call has run for as long as the operator allows, or paused when its place was needed."""

    reason = Reason.CALL_TOO_LONG


class StoppingError(DomainError):
    """The server is stopping."""

    reason = Reason.SERVER_STOPPING


class TooFewWorkersError(DomainError):
    """Fewer workers are healthy than the operator requires for a call to start."""

    reason = Reason.TOO_FEW_WORKERS


class SamplerLostError(DomainError):
    """Another server has taken the sampler over, or its journal cannot be reached."""

    reason = Reason.SAMPLER_TAKEN


class EpisodeFailedError(DomainError):
    """An episode failed.

    Attributes:
        row: index of the row, within its worker, that ran the episode.
        episode_index: the episode's index, or None where it is not known.
    """

    row: int

    def __init__(self, text: str, row: int = 0, episode_index: int | None = None) -> None:
        super().__init__(text)
        self.row = row
        self.episode_index = episode_index


class EnvFailedError(EpisodeFailedError):
    """An environment raised an error while it was sampled."""

    reason = Reason.ENV_FAILED


class AgentFailedError(EpisodeFailedError):
    """An agent raised an error, or returned something invalid, while it was sampled."""

    reason = Reason.AGENT_FAILED


def _restore(kind: type[DomainError], attributes: dict[str, object]) -> DomainError:
    error = kind.__new__(kind)
    error.__dict__.update(attributes)
    return error
