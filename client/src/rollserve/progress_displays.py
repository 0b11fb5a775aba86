"""Reports of a call's progress: to the caller's function, or displays on standard error.

Displays are bars on terminals and in notebooks, and lines elsewhere.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol, Self, TextIO

from rollserve_wire.checks import type_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollserve.progress import CallProgress, ProgressOption

__all__ = ["Reporter", "check_progress"]

_REPORT_SECONDS = 0.1
"""Time between two reports, except for the last one."""

LINE_SECONDS = 10.0
"""Seconds between two lines, where standard error is no terminal."""

_BAR_WIDTH, _USUAL_COLUMNS = 30, 80
_REFRESHES_PER_SECOND = 5


class Display(Protocol):
    """Display of one call's progress."""

    def show(self, progress: CallProgress) -> None:
        """Show the progress."""

    def close(self) -> None:
        """Remove what is shown."""


def open_display() -> Display:
    """Return a display for standard error.

    On terminals and in notebooks, it is a bar: of rich if that is installed, else of tqdm, else of plain characters.
    Elsewhere, such as in a log, it is a line every 10 seconds.
    """
    file = sys.stderr
    if file is None or file.closed:  # a process without one
        return _Nothing()
    is_notebook = type(file).__module__ == "ipykernel.iostream"
    if not (is_notebook or file.isatty()):
        return _Lines(file)
    if _has("rich") and (_has("ipywidgets") or not is_notebook):  # in notebooks, rich needs them
        return _RichBar()
    if _has("tqdm"):
        return _TqdmBar(file)
    _say_once(file, "rich with ipywidgets" if is_notebook else "rich")
    return _TextBar(file)


class _Nothing:
    def show(self, progress: CallProgress) -> None:
        pass

    def close(self) -> None:
        pass


class _RichBar:
    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = BarColumn(_BAR_WIDTH), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
        self._progress = Progress(
            *columns,
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,  # rich would send it to standard error
            refresh_per_second=_REFRESHES_PER_SECOND,
        )
        self._task = self._progress.add_task("", total=None)
        self._progress.start()

    def show(self, progress: CallProgress) -> None:
        done = progress.fraction
        total = None if done is None else 1.0
        self._progress.update(self._task, completed=done or 0.0, total=total, description=_text(progress))

    def close(self) -> None:
        self._progress.refresh()  # otherwise a short call would never show its last state
        self._progress.stop()


class _TqdmBar:
    def __init__(self, file: TextIO) -> None:
        from tqdm import tqdm

        bar_format = f"{{bar:{_BAR_WIDTH}}} {{desc}} {{elapsed}}"
        self._bar = tqdm(file=file, leave=False, bar_format=bar_format, dynamic_ncols=True)

    def show(self, progress: CallProgress) -> None:
        done = progress.fraction
        self._bar.total = None if done is None else 1.0
        self._bar.n = done or 0.0
        self._bar.set_description_str(_text(progress))

    def close(self) -> None:
        self._bar.close()


class _TextBar:
    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._length = 0

    def show(self, progress: CallProgress) -> None:
        filled = round(_BAR_WIDTH * (progress.fraction or 0.0))
        self._overwrite(f"{'█' * filled}{'░' * (_BAR_WIDTH - filled)} {_text(progress)}")

    def close(self) -> None:
        self._overwrite("")
        self._overwrite("")  # back to the beginning of the line

    def _overwrite(self, line: str) -> None:
        """Overwrite the line, cut to the width of the terminal."""
        width = 0
        with contextlib.suppress(OSError, ValueError):  # notebooks have no terminal
            width = os.get_terminal_size(self._file.fileno()).columns
        line = line[: (width or _USUAL_COLUMNS) - 1]
        _write(self._file, f"\r{line.ljust(self._length)}")  # notebooks know no sequence that clears a line
        self._length = len(line)


class _Lines:
    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._due = time.monotonic() + LINE_SECONDS

    def show(self, progress: CallProgress) -> None:
        if time.monotonic() >= self._due:
            _write(self._file, f"rollserve: {_text(progress)}\n")
            self._due = time.monotonic() + LINE_SECONDS

    def close(self) -> None:
        pass


def _text(progress: CallProgress) -> str:
    """Describe the progress in one line."""
    num_steps, num_requested = progress.num_simulated_steps, progress.num_requested_steps
    rate = f"{num_steps / max(progress.seconds, 1e-9):.0f} steps/s"
    if num_requested is not None:
        counts = f"{min(num_steps, num_requested)}/{num_requested} steps"
    elif progress.num_requested_episodes is not None and progress.num_ended_episodes:
        num_episodes = min(progress.num_ended_episodes, progress.num_requested_episodes)
        counts = f"{num_episodes}/{progress.num_requested_episodes} episodes, {num_steps} steps"
    else:
        counts = f"{num_steps} steps"
    waiting = f"; waits for {progress.waiting_for}" if progress.waiting_for else ""
    return "".join(character if character.isprintable() else " " for character in f"{counts}, {rate}{waiting}")


@functools.cache
def _say_once(file: TextIO, missing: str) -> None:
    _write(file, f"rollserve: a plain progress bar, because neither {missing} nor tqdm is installed\n")


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _write(file: TextIO, text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # a display that nobody sees must not end the call
        file.write(text)
        file.flush()


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
