"""Faults that a test lays out in a folder, and that go off in whichever process comes upon one first."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

__all__ = ["go_off", "hang", "lay"]

_SECONDS = 3600


def lay(folder: Path, name: str, count: int = 1) -> None:
    """Lays out so many charges of this name."""
    for number in range(count):
        (folder / f"{name}.{time.monotonic_ns()}-{number}").touch()


def go_off(folder: str | Path, name: str) -> bool:
    """Takes one charge of this name away; returns whether there was any."""
    for charge in Path(folder).glob(f"{name}.*"):
        try:
            charge.unlink()
        except FileNotFoundError:  # somebody else has it
            continue
        return True
    return False


def hang(*, native: bool = False) -> None:
    """Does nothing for an hour, natively without letting any other thread of the process run."""
    if native:
        ctypes.PyDLL(None).sleep(_SECONDS)
    else:
        time.sleep(_SECONDS)
