"""Lifelines, pipes that child processes live by, and the environment variables of such processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

from rollserve_wire.receipts import HASH_SEED, HASH_SEED_NAME

__all__ = [
    "Lifeline",
    "launching",
    "launching_command",
    "launching_module",
    "variables_for_code",
    "variables_for_models",
]

_LAUNCHER = Path(__file__).with_name("launcher.py")
_RUN_MODULE = """
import json, runpy, sys
sys.path[:] = json.loads(sys.argv[1])
del sys.argv[1]
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""

_open: weakref.WeakSet[Lifeline] = weakref.WeakSet()
"""Lifelines that this process has opened and not closed."""


class Lifeline:
    """A pipe that a group of processes lives by: the kernel kills the group once this process closes it, or has ended.

    That holds whatever the group does, whatever this process dies of, and whichever thread has started the group. Linux
    knows a signal for the end of a parent, too (`PR_SET_PDEATHSIG`), but sends it to one process, and when the thread
    ends that started it. The group is the one that the child leads.
    """

    def __init__(self) -> None:
        self._end, self._held = os.pipe()
        self._is_closed = False
        _open.add(self)

    @contextlib.contextmanager
    def end(self) -> Iterator[int]:
        """Yield the descriptor for the child, which this process holds until the child has begun: for the block."""
        try:
            yield self._end
        finally:
            os.close(self._end)

    def close(self) -> None:
        """Have the group killed, unless it let go of the pipe, as foreign code may. May be called more than once."""
        if not self._is_closed:
            self._is_closed = True
            os.close(self._held)


def _close_all() -> None:
    """Close the copies that a forked process inherits: they would let children outlive the process that opened them."""
    for lifeline in list(_open):
        lifeline.close()


os.register_at_fork(after_in_child=_close_all)


def launching(end: int, *arguments: str, confined: bool = False) -> Sequence[str]:
    """Return a command that runs `python -P` with arguments in a group that lives by a pipe.

    Args:
        end: the descriptor for the child; the command has to get it, and to lead a group of processes.
        arguments: arguments of Python. Without -P, modules beside a program would shadow installed ones.
        confined: whether the program has no network and cannot write files, as far as the kernel allows that.
    """
    return launching_command(end, (sys.executable, "-P", *arguments), confined=confined)


def launching_module(end: int, module: str, *arguments: str) -> Sequence[str]:
    """Return a command that runs a module as `launching` runs Python, with the paths that this process imports from.

    A variable would tell them to all programs that the module starts, and to other versions of Python among these.
    """
    paths = json.dumps([path or os.getcwd() for path in sys.path])
    return launching(end, "-c", _RUN_MODULE, paths, module, *arguments)


def launching_command(end: int, command: Sequence[str], *, confined: bool = False) -> Sequence[str]:
    """Return a command that runs another one as `launching` runs Python."""
    mode = "confined" if confined else "free"
    return (sys.executable, "-I", "-S", str(_LAUNCHER), str(end), mode, *command)


_SECRET = re.compile(
    r"^RAY_|TOKEN|SECRET|PASSW|CREDENTIAL|PRIVATE|AUTH|COOKIE|(^|_)(API|ACCESS)?_?KEYS?(_|$)", re.IGNORECASE
)
"""Names of variables that may hold secrets; `RAY_AUTH_TOKEN` opens the server's own cluster."""

_FOR_MODELS = re.compile(
    r"(PATH|HOME|USER|LANG|LC_\w+|TZ|TMPDIR|(LD|OMP|OPENBLAS|MKL|ORT|CUDA|NVIDIA|ROCM|HIP)_\w+|PYTHON\w+)"
)
"""Names of variables that Python and ONNX Runtime read."""


def variables_for_code() -> dict[str, str]:
    """Return this process's variables without secrets and with the hash seed, for code that may need any of them."""
    variables = {name: value for name, value in os.environ.items() if not _SECRET.search(name)}
    return {**variables, HASH_SEED_NAME: HASH_SEED}


def variables_for_models() -> dict[str, str]:
    """Return the variables of this process that running a model needs."""
    return {name: value for name, value in variables_for_code().items() if _FOR_MODELS.fullmatch(name)}
