"""What can go wrong below the gateway, which alone knows the gRPC status of each.

Messages are for the caller: they name the field, what came and what was expected, and no file or line of the server.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

__all__ = [
    "AgentFailedError",
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
    "WorkerLostError",
    "at_row",
    "described",
    "place_of",
    "portable",
    "shortened",
    "shown",
    "within",
]

_MOST_TEXT, _MOST_TRACE = 1000, 8000
"""Characters: code that is not ours may say anything, of any length."""


class DomainError(Exception):
    """An error that the caller is told of.

    Attributes:
        text: what happened, for people.
        reason: a constant, for programs.
        field: the field of the request that it is about, as a path; empty if it is about none.
        row: which row of its worker the environment stands in that it is about; None if it is about none, or any.
    """

    reason = "INTERNAL"
    row: int | None = None

    def __init__(self, text: str, *, reason: str | None = None, field: str = "") -> None:
        # What an environment says may hold what no encoding takes, such as parts of names of files.
        text = text.encode(errors="backslashreplace").decode()
        super().__init__(text)
        self.text = text
        self.field = field
        if reason is not None:
            self.reason = reason

    @property
    def message(self) -> str:
        """The text, with the field in front."""
        return f"{self.field}: {self.text}" if self.field else self.text

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        # Errors come out of workers as pickles, and their constructors differ.
        return _restore, (type(self), self.__dict__)


@contextlib.contextmanager
def within(field: str) -> Iterator[None]:
    """Completes the paths of the fields that errors are about: they are parts of this one."""
    try:
        yield
    except DomainError as error:
        error.field = f"{field}.{error.field}" if error.field else field
        raise


@contextlib.contextmanager
def at_row(row: int) -> Iterator[None]:
    """Tells which row errors are about."""
    try:
        yield
    except DomainError as error:
        error.row = row
        raise


class InvalidValueError(DomainError):
    """A value of the request is malformed, out of range, or does not fit."""

    reason = "INVALID_VALUE"

    @classmethod
    def of(cls, field: str, came: object, expected: object) -> InvalidValueError:
        """The error for a field that holds one thing where another was expected."""
        return cls(f"{came} came, {expected} was expected", field=field)


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
    """A worker's process is gone, or was given up because it hangs: the reason is then `WORKER_HUNG`.

    Attributes:
        worker_index: which worker.
    """

    reason = "WORKER_LOST"

    def __init__(self, text: str, worker_index: int, *, reason: str | None = None) -> None:
        super().__init__(text, reason=reason)
        self.worker_index = worker_index

    def again(self, text: str) -> WorkerLostError:
        """The error of work that was lost with one worker after the other, at last with this error."""
        reason = "WORKER_LOST_AGAIN" if self.reason == WorkerLostError.reason else self.reason
        return WorkerLostError(text, self.worker_index, reason=reason)


class ClientStalledError(DomainError):
    """The client has not taken what is there for it, or not sent what it began to, for too long."""

    reason = "CLIENT_STALLED"


class StoppingError(DomainError):
    """The server is stopping."""

    reason = "SERVER_STOPPING"


class TooFewWorkersError(DomainError):
    """Fewer workers are there than the operator wants calls to begin with."""

    reason = "TOO_FEW_WORKERS"


class SamplerLostError(DomainError):
    """Another server has the sampler now, or what keeps its state cannot be reached."""

    reason = "SAMPLER_TAKEN"


class EpisodeFailedError(DomainError):
    """Something went wrong in an episode.

    Attributes:
        row: see the base class.
        episode_index: which episode it ran, where that is known.
    """

    row: int

    def __init__(self, text: str, row: int = 0, episode_index: int | None = None) -> None:
        super().__init__(text)
        self.row = row
        self.episode_index = episode_index


class EnvFailedError(EpisodeFailedError):
    """An environment raised an error while it was sampled."""

    reason = "ENV_FAILED"


class AgentFailedError(EpisodeFailedError):
    """An agent raised an error, or gave something of no use, while it was sampled with."""

    reason = "AGENT_FAILED"


def described(error: BaseException) -> str:
    """The type and the text of an error of code that is not ours, as `ValueError: no such level`.

    At most 1000 characters. Never raises, though that code has a say in both.
    """
    name, text = shown(type(error), lambda kind: kind.__name__), shown(error, str)
    return shortened(f"{name}: {text}" if text else name)


def shown(value: Any, show: Callable[[Any], str] = repr) -> str:
    """The text that code which is not ours makes of what is its own: at most 1000 characters. Never raises."""
    try:
        # Not of a subclass, which could do anything when it is cut.
        return shortened(str.__str__(show(value)))
    except BaseException:
        return "(no text can be made of it)"


def shortened(text: str, most: int = _MOST_TEXT) -> str:
    """The text, or as much of its beginning as fits into so many characters with a mark behind."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def place_of(error: BaseException) -> str:
    """Where an error was raised, for the log: the innermost calls, if there are very many."""
    return _innermost(error, lambda: traceback.format_tb(error.__traceback__))


def portable(error: BaseException) -> Exception:
    """An error of a worker as whoever asked it gets it, from another thread or process.

    Of one that is not for the caller there is only a text, for the server's log. The error itself may be none that can
    be pickled, or one by which asyncio understands something else: that a task is cancelled, or that all is to end.
    """
    if isinstance(error, DomainError):
        return error
    trace = _innermost(error, lambda: traceback.format_exception(error))
    return RuntimeError(trace.encode(errors="backslashreplace").decode())


def _innermost(error: BaseException, trace: Callable[[], Sequence[str]]) -> str:
    try:
        text = "".join(f"{shortened(part.rstrip())}\n" for part in trace())
    except BaseException:  # where no source can be read, say
        return described(error)
    return text if len(text) <= _MOST_TRACE else f"…{text[1 - _MOST_TRACE :]}"


def _restore(kind: type[DomainError], attributes: dict[str, object]) -> DomainError:
    error = kind.__new__(kind)
    error.__dict__.update(attributes)
    return error
