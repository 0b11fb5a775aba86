"""Options that choose among names."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

__all__ = ["add_choice"]


def add_choice(parser: argparse.ArgumentParser, option: str, names: Iterable[str]) -> None:
    """Adds an option that takes what names begin with, separated by commas, and means all names by default."""
    known = list(names)
    parser.add_argument(
        option,
        type=lambda text: _chosen(text, known),
        default=known,
        metavar="NAME,…",
        help=f"which, by what their names begin with; all unless given: {', '.join(known)}",
    )


def _chosen(text: str, names: list[str]) -> list[str]:
    wanted = tuple(part.strip() for part in text.split(",") if part.strip())
    for part in wanted:
        if not any(name.startswith(part) for name in names):
            raise argparse.ArgumentTypeError(f"{part!r} came, one of {', '.join(names)} was expected")
    return [name for name in names if name.startswith(wanted or ("",))]
