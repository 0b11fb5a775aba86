"""Command-line arguments: counts, lists of numbers, JSON objects, and files that commands write."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
    """The commands that a parser has, to which each module adds its own."""

__all__ = ["check_writable", "count", "json_object", "numbers", "write"]


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(mismatch("a JSON object", repr(text)))
    return value


def count(text: str, at_least: int = 0) -> int:
    """Parse a whole number that is not negative, which may be written as 1e6."""
    with contextlib.suppress(OverflowError, ValueError):
        number = int(text) if text.lstrip("+-").isdecimal() else float(text)
        if number == int(number) >= at_least:
            return int(number)
    kind = "positive whole" if at_least else "whole"
    raise argparse.ArgumentTypeError(mismatch(f"a {kind} number, such as 10000 or 1e4", repr(text)))


def positive(text: str) -> int:
    """Parse a whole number above 0, which may be written as 1e6."""
    return count(text, at_least=1)


def numbers(text: str) -> list[float]:
    """Parse numbers with commas between them."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(mismatch("numbers with commas between them", repr(text))) from None


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
