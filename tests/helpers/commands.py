"""The commands `rollserve`, as a process or in this one, and `rollserve-server`, in this one."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from rollserve.cli import main
from rollserve_server.cli import main as server_main

ROLLSERVE = Path(sys.executable).with_name("rollserve")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROLLSERVE, *arguments], capture_output=True, text=True, timeout=120, check=False)


def run_here(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, which saves the 0.6 s of processor time that a process of its own imports."""
    given = [str(argument) for argument in arguments]
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            status: object = main(given)
        except SystemExit as end:  # the parser's
            status = end.code
    assert isinstance(status, int)
    return subprocess.CompletedProcess(given, status, output.getvalue(), errors.getvalue())


def run_server_command(*arguments: str | Path, **environment: str) -> Result:
    """Run a command of `rollserve-server` in this process: one that ends by itself, or settings that it refuses."""
    return CliRunner().invoke(server_main, [*map(str, arguments)], obj=_accept, env=environment)


def _accept(_: object, __: object) -> None:
    raise AssertionError("the command line was accepted, and would be served")
