"""Processes: environment variables, standard output and peak memory.

Imports the standard library alone, because the peers' virtual environments have little else.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TextIO

__all__ = ["REPOSITORY", "claim_stdout", "one_thread", "peak_bytes", "reset_peak"]

REPOSITORY = Path(__file__).parents[2]
"""Root of the repository."""


def one_thread() -> dict[str, str]:
    """Return this process's environment variables, with one BLAS thread, as in workers, and with the benchmarks."""
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH")]
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(names, "1"), "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def claim_stdout() -> TextIO:
    """Return standard output for the caller alone; everything else that is printed goes to standard error."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return output


def peak_bytes(pid: int) -> int:
    """Return the peak of a process's resident memory, since its start or since `reset_peak`; 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def reset_peak(pid: int) -> None:
    """Make a process's present resident memory its peak, where the system allows that."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")
