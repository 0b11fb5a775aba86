"""Child processes that are driven by commands: lines of JSON on standard input, answered by lines of JSON."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Self

from benchmarks.shared.processes import claim_stdout, one_thread

__all__ = ["Child", "answer_commands"]

_END_SECONDS = 30.0


class Child:
    """A process that runs a module which calls `answer_commands`.

    Attributes:
        pid: id of the process.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(  # noqa: S603  # modules of this package
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=one_thread(),
        )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._process.stdin is not None  # noqa: S101  # a pipe
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def send(self, command: str, **arguments: Any) -> None:
        """Send a command, whose answer `receive` returns."""
        assert self._process.stdin is not None  # noqa: S101  # a pipe
        self._process.stdin.write(json.dumps([command, arguments]) + "\n")
        self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Return the answer to the oldest command that has none yet.

        Raises:
            RuntimeError: the command failed, or the process ended.
        """
        assert self._process.stdout is not None  # noqa: S101  # a pipe
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "the process ended without an answer"}
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a command and return its answer; raises as `receive`."""
        self.send(command, **arguments)
        return self.receive()


def answer_commands(commands: Mapping[str, Callable[..., Mapping[str, Any]]]) -> None:
    """Answer commands from standard input until its end. Prints of the commands go to standard error."""
    output = claim_stdout()
    for line in sys.stdin:
        command, arguments = json.loads(line)
        try:
            answer = dict(commands[command](**arguments))
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=output, flush=True)
