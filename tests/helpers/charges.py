"""Charges: files in a folder that each trigger one fault, in the process that finds them first; and probes."""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path

__all__ = ["go_off", "hang", "in_probe", "lay"]

_SECONDS = 3600


def lay(folder: Path, name: str, count: int = 1) -> None:
    """Lay out charges of this name."""
    for number in range(count):
        (folder / f"{name}.{time.monotonic_ns()}-{number}").touch()


def go_off(folder: str | Path, name: str) -> bool:
    """Remove one charge of this name; return whether one existed."""
    for charge in Path(folder).glob(f"{name}.*"):
        try:
            charge.unlink()
        except FileNotFoundError:  # another process removed it first
            continue
        return True
    return False


def hang(*, native: bool = False) -> None:
    """Sleep for an hour; with `native`, in C code that keeps the interpreter's lock."""
    if native:
        ctypes.PyDLL(None).sleep(_SECONDS)
    else:
        time.sleep(_SECONDS)


def in_probe() -> bool:
    """Whether this process only tries environments, before the workers make them."""
    return getattr(sys.modules["__main__"].__spec__, "name", "") == "rollserve_server.envs.probing.child"
