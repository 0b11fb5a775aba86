"""Displays of a call's progress on standard error: bars on terminals and in notebooks, lines elsewhere."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import sys
import time
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rollserve.progress import CallProgress

__all__ = ["Display", "open_display"]

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
