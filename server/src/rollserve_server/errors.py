"""Errors that reach the client, and texts of errors that third-party code raises.

The gateway alone knows the gRPC status of each. Messages are for the caller: they name the field, the expected and the
given value, and no file or line of the server.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Self

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
    "FaultError",
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
    "describe",
    "joined",
    "listed",
    "portable",
    "shorten",
    "show",
    "traceback_of",
    "within",
    "without_folders",
]

_MAX_TEXT, _MAX_TRACE = 1000, 8000  # characters
_MAX_LISTED = 8  # names
_NAME = r"/[^\s/:;,'\"<>|()\[\]{}]++"
_FOLDERS = re.compile(rf"(?<![\w.~/:…-])(?:{_NAME})+(?={_NAME})")
"""Folders at the beginning of an absolute path. The path of a URL is behind its host, and not absolute here."""


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


class FaultError(RuntimeError):
    """An error that nobody foresaw, in another thread or process. Its text is the traceback.

    Attributes:
        summary: type and text of the error, as of `describe`.
        is_of_child: whether it was in a child process that tries foreign code, so that it says nothing of the worker.
    """

    def __init__(self, text: str, summary: str = "") -> None:
        super().__init__(text)
        self.summary = summary
        self.is_of_child = False

    def loss_of(self, worker_index: int) -> WorkerLostError:
        """Return the error for the calls of the worker that it was in, which is replaced."""
        return WorkerLostError(f"worker {worker_index} failed: {self.summary}", worker_index)


def describe(error: BaseException) -> str:
    """Return the type and text of an error, such as `ValueError: no such level`, in at most 1,000 characters.

    Never raises, although the error's own class decides about both.
    """
    name, text = show(type(error), lambda kind: kind.__name__), show(error, str)
    return shorten(f"{name}: {text}" if text else name)


def show(value: Any, to_text: Callable[[Any], str] = repr) -> str:
    """Return what third-party code makes of its own value as text, in at most 1,000 characters. Never raises."""
    try:
        # A subclass of str could do anything when it is sliced, so take str's own text.
        return shorten(str.__str__(to_text(value)))
    except BaseException:
        return "(no text can be made of it)"


def listed(names: Collection[str]) -> str:
    """Return the names in brackets, at most 8 of them, for the text of an error."""
    first = ", ".join(show(name) for name in itertools.islice(names, _MAX_LISTED))
    more = f", and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"[{first}{more}]"


def shorten(text: str, max_characters: int = _MAX_TEXT) -> str:
    """Return the text, or its beginning with an ellipsis, in at most that many characters."""
    return text if len(text) <= max_characters else f"{text[: max_characters - 1]}…"


def without_folders(text: str) -> str:
    """Return the text with absolute paths reduced to their last parts, such as `…/ant.xml`.

    The names of folders tell how a server is installed.
    """
    return _FOLDERS.sub("…", text)


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an error for the log: the innermost calls, in at most 8,000 characters."""
    return _innermost(error, lambda: traceback.format_tb(error.__traceback__))


def portable(error: BaseException) -> Exception:
    """Return an error that can travel from a worker's thread or process to the pool.

    A `DomainError` travels as it is. Any other error becomes a `FaultError`: the error itself may not be picklable, or
    may mean something to asyncio, such as that a task is cancelled.
    """
    if isinstance(error, DomainError | FaultError):
        return error
    trace = _innermost(error, lambda: traceback.format_exception(error))
    return FaultError(trace.encode(errors="backslashreplace").decode(), describe(error))


def _innermost(error: BaseException, trace: Callable[[], Sequence[str]]) -> str:
    try:
        text = "".join(f"{shorten(part.rstrip())}\n" for part in trace())
    except BaseException:  # sources may be unreadable
        return describe(error)
    return text if len(text) <= _MAX_TRACE else f"…{text[1 - _MAX_TRACE :]}"
