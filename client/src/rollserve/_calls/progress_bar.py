"""Progress bar for terminals."""

from __future__ import annotations

import shutil
import time
from typing import Self, TextIO

__all__ = ["ProgressBar"]

_SECONDS_BETWEEN = 0.1
_BAR_WIDTH = 30


class ProgressBar:
    """Progress bar on one line that is overwritten; shows nothing if the output is not a terminal.

    >>> import sys
    >>> with ProgressBar(100, unit="steps", file=sys.stderr) as bar:
    ...     bar.update(50)
    """

    def __init__(self, total: int, *, unit: str, file: TextIO) -> None:
        self._total = total
        self._unit = unit
        self._file = file
        self._shown = file.isatty()
        self._began = self._drawn = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._shown:
            self._write("")

    def update(self, done: int) -> None:
        """Show how much of the total is done."""
        now = time.monotonic()
        if not self._shown or (now - self._drawn < _SECONDS_BETWEEN and done < self._total):
            return
        self._drawn = now
        filled = round(_BAR_WIDTH * done / self._total)
        rate = done / max(now - self._began, 1e-9)
        bar = "█" * filled + "░" * (_BAR_WIDTH - filled)
        self._write(f"{bar} {done}/{self._total} {self._unit}, {rate:.0f} {self._unit}/s")

    def _write(self, line: str) -> None:
        """Overwrite the line, cut to the width of the terminal."""
        width = shutil.get_terminal_size().columns - 1
        self._file.write(f"\r\x1b[K{line[:width]}")
        self._file.flush()
