"""Types of command-line arguments: counts, lists of numbers, and JSON objects."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
    """The commands that a parser has, to which each module adds its own."""

__all__ = ["count", "json_object", "numbers"]


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(mismatch("a JSON object", repr(text)))
    return value


def count(text: str) -> int:
    """Parse a whole number, which may be written as 1e6."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
        if number.is_integer():
            return int(number)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(mismatch("a whole number, such as 10000 or 1e4", repr(text)))


def numbers(text: str) -> list[float]:
    """Parse numbers with commas between them."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(mismatch("numbers with commas between them", repr(text))) from None
