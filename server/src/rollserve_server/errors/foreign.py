"""Texts of errors that third-party code raises: bounded in length, and safe whatever that code does."""

from __future__ import annotations

import itertools
import re
import traceback
from collections.abc import Callable, Collection, Sequence
from typing import Any

from rollserve_server.errors.domain import DomainError, WorkerLostError

__all__ = ["FaultError", "describe", "listed", "portable", "shorten", "show", "traceback_of", "without_folders"]

_MAX_TEXT, _MAX_TRACE = 1000, 8000  # characters
_MAX_LISTED = 8  # names
_NAME = r"/[^\s/:;,'\"<>|()\[\]{}]++"
_FOLDERS = re.compile(rf"(?<![\w.~/:…-])(?:{_NAME})+(?={_NAME})")
"""Folders at the beginning of an absolute path. The path of a URL is behind its host, and not absolute here."""


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
