"""The adapter of a client: a program that is sent one case after the other."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, cast

__all__ = ["Adapter", "AdapterError", "running_adapter"]

_STOP_SECONDS = 10.0
_MAX_ERROR_CHARACTERS = 2000


class AdapterError(Exception):
    """The adapter has ended, is too slow, or has written something else than an answer."""


class Adapter:
    """A running adapter."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._errors: list[str] = []
        for target in (self._read_lines, self._read_errors):
            threading.Thread(target=target, daemon=True).start()

    def answer(self, case: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Send a case; return the answer.

        Raises:
            AdapterError: there is no answer within so many seconds.
        """
        try:
            _pipe(self._process.stdin).write(f"{json.dumps(case)}\n")
            _pipe(self._process.stdin).flush()
            line = self._lines.get(timeout=seconds)
        except OSError:
            line = ""
        except queue.Empty:
            raise AdapterError(f"the adapter has not answered within {seconds:g} s{self._error_text()}") from None
        if not line:
            raise AdapterError(f"the adapter has ended{self._error_text()}")
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or answer.get("case") != case["case"]:
            raise AdapterError(f"expected the answer to {case['case']!r}, got {line[:200]!r}")
        return answer

    def _read_lines(self) -> None:
        for line in _pipe(self._process.stdout):
            self._lines.put(line)
        self._lines.put("")

    def _read_errors(self) -> None:
        for line in _pipe(self._process.stderr):
            self._errors.append(line)
            del self._errors[:-100]

    def _error_text(self) -> str:
        text = "".join(self._errors)[-_MAX_ERROR_CHARACTERS:].strip()
        return f"; its standard error ends with\n{text}" if text else ""


@contextlib.contextmanager
def running_adapter(command: Sequence[str]) -> Iterator[Adapter]:
    """Start an adapter, and end it after the block.

    Raises:
        AdapterError: it cannot be started.
    """
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)  # noqa: S603
    except OSError as error:
        raise AdapterError(f"{command[0]}: {error.strerror}") from None
    try:
        yield Adapter(process)
    finally:
        with contextlib.suppress(OSError):
            _pipe(process.stdin).close()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _pipe(file: IO[str] | None) -> IO[str]:
    """Return a pipe of a process that was started with it."""
    return cast("IO[str]", file)
