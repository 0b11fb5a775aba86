"""Files that commands write."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["check_writable", "write"]


def check_writable(path: Path) -> None:
    """Raise OSError before sampling if a file cannot be written to."""
    if path.is_fifo():  # opening and closing it would end its reader's input
        return
    is_new = not os.path.lexists(path)
    path.open("ab").close()
    if is_new:
        path.unlink()


def write(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file, and say so; an OSError names the file."""
    try:
        write(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None
    print(f"written to {path}")
