"""Progress of a call: a bar on terminals, lines elsewhere."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from typing import Self, TextIO

__all__ = ["Progress"]

LINE_SECONDS = 10.0
"""Seconds between two lines, where the output is not a terminal."""

_BAR_SECONDS = 0.1
_BAR_WIDTH = 30


class Progress:
    """Progress of a block, which a thread shows meanwhile.

    On a terminal, it is a bar on one line that is overwritten, and erased at the end. Elsewhere, such as in a log, it
    is a line every 10 seconds.

    >>> import sys
    >>> with Progress(lambda: 50, 100, unit="steps", file=sys.stderr):
    ...     pass
    """

    def __init__(self, done: Callable[[], int], total: int, *, unit: str, file: TextIO) -> None:
        """Describe the progress.

        Args:
            done: returns how much is done; called from another thread.
            total: how much there is to do.
            unit: name of what is counted, in plural.
            file: where to show the progress.
        """
        self._done = done
        self._total = total
        self._unit = unit
        self._file = file
        self._is_bar = file.isatty()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rollserve-progress", daemon=True)

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._is_bar:
            self._draw()
            self._overwrite("")

    def _run(self) -> None:
        while not self._ended.wait(_BAR_SECONDS if self._is_bar else LINE_SECONDS):
            if self._is_bar:
                self._draw()
            else:
                self._file.write(f"rollserve: {self._text()}\n")
                self._file.flush()

    def _draw(self) -> None:
        filled = round(_BAR_WIDTH * min(self._done() / max(self._total, 1), 1))
        self._overwrite(f"{'█' * filled}{'░' * (_BAR_WIDTH - filled)} {self._text()}")

    def _text(self) -> str:
        done = min(self._done(), self._total)
        rate = done / max(time.monotonic() - self._began, 1e-9)
        return f"{done}/{self._total} {self._unit}, {rate:.0f} {self._unit}/s"

    def _overwrite(self, line: str) -> None:
        """Overwrite the line, cut to the width of the terminal."""
        width = shutil.get_terminal_size().columns - 1
        self._file.write(f"\r\x1b[K{line[:width]}")
        self._file.flush()
