"""Programs whose standard error is a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import termios
from collections.abc import Sequence
from pathlib import Path

__all__ = ["run_on_a_terminal"]


def run_on_a_terminal(*command: str | Path) -> tuple[str, str]:
    """Run a program that has to succeed; return its standard output, and what it draws on a terminal of 150 columns."""
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 150))
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, env=environment, text=True) as process:
        os.close(terminal)
        drawn = b"".join(_reads(controller))
        assert process.stdout is not None
        output = process.stdout.read()
    os.close(controller)
    assert process.returncode == 0, drawn.decode()
    return output, drawn.decode()


def _reads(controller: int) -> Sequence[bytes]:
    """Return what comes out of a terminal until the last program has closed it."""
    parts = []
    while True:
        try:
            parts.append(os.read(controller, 4096))
        except OSError:  # the terminal was closed
            return parts
