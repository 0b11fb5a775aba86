"""Processes that do what lines of JSON on their standard input say, and answer with lines of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

__all__ = ["REPOSITORY", "Child", "answer_commands", "one_thread"]

REPOSITORY = Path(__file__).parents[2]
_END_SECONDS = 30.0


def one_thread() -> dict[str, str]:
    """The environment of this process, in which BLAS has one thread, as it has in workers."""
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH")]
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(names, "1"), "PYTHONPATH": os.pathsep.join(filter(None, paths))}


class Child:
    """A process that runs a module which calls `answer_commands`.

    Attributes:
        pid: the number of the process.
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
        assert self._process.stdin is not None  # noqa: S101  # it is a pipe
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def tell(self, command: str, **arguments: Any) -> None:
        """Has it do something; `answer` waits for what comes of it."""
        assert self._process.stdin is not None  # noqa: S101  # it is a pipe
        self._process.stdin.write(json.dumps([command, arguments]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """What came of the command.

        Raises:
            RuntimeError: it failed.
        """
        assert self._process.stdout is not None  # noqa: S101  # it is a pipe
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "the process ended"}
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """`tell`, then `answer`."""
        self.tell(command, **arguments)
        return self.answer()


def answer_commands(commands: Mapping[str, Callable[..., Mapping[str, Any]]]) -> None:
    """Does what comes on standard input, until its end. Whatever is printed meanwhile goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        command, arguments = json.loads(line)
        try:
            answer = dict(commands[command](**arguments))
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)
