"""Sandboxes of hosts: what a host behind a boundary may read, and the variables that it gets."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rollserve_server.children import BOUNDARY, SCRATCH, variables_for_models
from rollserve_server.envs.hosts.connection import HostError
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from rollserve_server.settings import SandboxSetting

__all__ = ["MAX_PRINTED_BYTES", "sandboxed", "variables_in_sandbox"]

MAX_PRINTED_BYTES = 64 << 10
"""Bytes that a host may print into the worker's log: each start of it has as many again."""

_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"),
    *("/etc/alternatives", "/etc/fonts", "/etc/ld.so.cache", "/etc/localtime"),
)
"""What programs need of a machine, and where nobody keeps secrets."""


def sandboxed(
    command: Sequence[str], sandbox: SandboxSetting, connection: int, package: Sequence[str] = ()
) -> Sequence[str]:
    """Return a command that runs another one behind a boundary.

    Args:
        command: the program with its arguments.
        sandbox: limits of the boundary.
        connection: the descriptor that the program keeps.
        package: folders that it reads, beside those of the boundary.

    Raises:
        HostError: there is no such program, or a path that it is to read.
    """
    program = shutil.which(command[0])
    if program is None:
        raise HostError(f"command: {mismatch('a program of this machine', repr(command[0]))}")
    for path in sandbox.paths:
        if not os.path.exists(path):
            raise HostError(f"sandbox.paths: {mismatch('paths of this machine', repr(path))}")
    program = os.path.abspath(program)
    own = [*sandbox.paths, *package, *_python_path(), program, *map(str, _prefixes(Path(program)))]
    setting = {
        "connection": connection,
        "processors": sandbox.processors,
        "paths": [(os.path.realpath(path), path) for path in _outermost([*_SYSTEM, *own])],
        "limits": sandbox.model_dump(include={"memory_bytes", "processes", "scratch_bytes"}),
    }
    return (sys.executable, "-I", "-S", BOUNDARY, json.dumps(setting), program, *command[1:])


def variables_in_sandbox() -> dict[str, str]:
    """Return the variables for a program behind a boundary."""
    variables = {**variables_for_models(), "HOME": SCRATCH, "TMPDIR": SCRATCH}
    return {**variables, "PYTHONPATH": os.pathsep.join(_python_path())}


def _python_path() -> list[str]:
    return [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def _prefixes(program: Path) -> Iterator[Path]:
    """Yield the folders that a Python, or a script for it, is installed in: of its virtual environment, and its own."""
    for folder in {program.parent.parent, program.resolve().parent.parent} - {Path("/")}:
        setting = folder / "pyvenv.cfg"
        if setting.exists():
            yield folder
            values = dict(line.split(" = ", 1) for line in setting.read_text().splitlines() if " = " in line)
            yield from _prefixes(Path(values["home"], "python3"))
        elif any(folder.glob("lib*/python3*/os.py")):
            yield folder


def _outermost(paths: Sequence[str]) -> list[str]:
    """Return the paths that exist, without those below others."""
    found = {Path(path) for path in paths if os.path.exists(path)}
    return sorted(str(path) for path in found if found.isdisjoint(path.parents))
