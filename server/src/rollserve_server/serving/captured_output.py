"""Standard output and error of the server, whose lines become JSON in a process of their own.

Libraries in C, Python's report of a crash, and child processes write to the descriptors. A process, because a thread
would end with a crash, before the last lines of its report.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO

from typing_extensions import override

__all__ = ["CapturingHandler"]

_PROGRAM = Path(__file__).with_name("json_lines.py")
_OUTPUT, _ERROR = 1, 2
_END_SECONDS = 1.0
"""How long the last lines may take to be written, unless a child process holds the pipe."""


class CapturingHandler(logging.StreamHandler[IO[str]]):
    """Writes events to standard error, and has all other lines of this process and its children written as events."""

    def __init__(self) -> None:
        """Redirect both descriptors."""
        self._output, self._error = os.dup(_OUTPUT), os.dup(_ERROR)
        reading, writing = os.pipe()
        command = [sys.executable, "-I", "-S", str(_PROGRAM)]
        self._wrapper = subprocess.Popen(command, stdin=reading, stdout=self._error, cwd="/")  # noqa: S603  # our own
        for descriptor in (_OUTPUT, _ERROR):
            os.dup2(writing, descriptor)
        for descriptor in (reading, writing):
            os.close(descriptor)
        super().__init__(open(self._error, "w", encoding="utf-8", errors="backslashreplace", closefd=False))  # noqa: SIM115  # it lives as long as this

    @override
    def close(self) -> None:
        """Wait until the lines so far are written, and redirect the descriptors no more."""
        for stream, descriptor, original in (
            (sys.stdout, _OUTPUT, self._output),
            (sys.stderr, _ERROR, self._error),
        ):
            stream.flush()
            os.dup2(original, descriptor)
        with suppress(subprocess.TimeoutExpired):
            self._wrapper.wait(_END_SECONDS)
        super().close()
