"""Reports of a call's progress, to a function or a display."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from rollserve._calls.progress_displays import Display, open_display
from rollserve_wire.checks import type_error

if TYPE_CHECKING:
    from rollserve.progress import CallProgress, ProgressOption

__all__ = ["Reporter", "check_progress"]

_REPORT_SECONDS = 0.1
"""Time between two reports, except for the last one."""


class Reporter:
    """Reporter of one call's progress: at most ten times a second, and once the result is complete."""

    def __init__(self, option: Callable[[CallProgress], object] | None) -> None:
        """Begin to count the call's time.

        Args:
            option: function to call; None to show the progress.
        """
        self._function = option
        self._display: Display | None = None
        self._began, self._due = time.monotonic(), 0.0

    @classmethod
    def of(cls, option: ProgressOption | None) -> Self | None:
        """Return the reporter for the option `progress`; None if nobody wants to know."""
        if option is None or option is False:
            return None
        return cls(None if option is True else option)

    def report(self, progress: Callable[[float], CallProgress], *, is_over: bool) -> None:
        """Report the progress, unless the last report was just now.

        Args:
            progress: returns the progress, given the seconds since the beginning.
            is_over: whether the result is complete.

        Raises:
            BaseException: the function's own.
        """
        now = time.monotonic()
        if now < self._due and not is_over:
            return
        self._due = now + _REPORT_SECONDS
        self._show(progress(now - self._began))
        if is_over:
            self.close()

    def close(self) -> None:
        """Remove the display, if there is one."""
        display, self._display = self._display, None
        self._due = float("inf")
        if display is not None:
            display.close()

    def _show(self, progress: CallProgress) -> None:
        if self._function is None:
            self._display = self._display or open_display()
            self._display.show(progress)
            return
        try:
            self._function(progress)
        except StopIteration as error:  # would look like the end of a stream
            raise RuntimeError("progress: the function raised StopIteration") from error


def check_progress(option: Any) -> None:
    """Raise TypeError unless a value can be the option `progress`."""
    expected = "True, False or a function of a CallProgress"
    if inspect.iscoroutinefunction(option):
        raise type_error("progress", f"{expected} that is not a coroutine", option)
    if not (option is None or isinstance(option, bool) or callable(option)):
        raise type_error("progress", expected, option)
