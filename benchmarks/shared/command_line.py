"""Command-line options that benchmarks share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path

__all__ = ["add_measurement_options", "add_names"]


def add_measurement_options(parser: argparse.ArgumentParser, *, file_name: str) -> None:
    """Add the options for sizes and output; figures go to `<file_name>.json` and `<file_name>.png` by default."""
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--workers", type=int, default=cores, help="number of workers (default: %(default)s, the number of cores)"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="number of rounds, whose median is shown (default: %(default)s)"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="factor of Rollserve's sizes (default: %(default)s)")
    parser.add_argument(
        "--json", type=Path, default=Path(f"{file_name}.json"), help="file for all figures (default: %(default)s)"
    )
    parser.add_argument(
        "--chart", type=Path, default=Path(f"{file_name}.png"), help="file for the chart (default: %(default)s)"
    )


def add_names(parser: argparse.ArgumentParser, option: str, names: Iterable[str]) -> None:
    """Add an option for a choice of names: beginnings of names, separated by commas; all names by default."""
    known = list(names)
    parser.add_argument(
        option,
        type=lambda text: _chosen(text, known),
        default=known,
        metavar="NAME,…",
        help=f"beginnings of names (default: all): {', '.join(known)}",
    )


def _chosen(text: str, names: list[str]) -> list[str]:
    beginnings = [part.strip() for part in text.split(",") if part.strip()] or [""]
    for beginning in beginnings:
        if not any(_begins_with(name, beginning) for name in names):
            raise argparse.ArgumentTypeError(f"expected one of {', '.join(names)}, got {beginning!r}")
    return [name for name in names if any(_begins_with(name, beginning) for beginning in beginnings)]


def _begins_with(name: str, beginning: str) -> bool:
    """Whether a name has a beginning that ends with no part of a number: `w1` begins no `w10`."""
    is_cut = beginning[-1:].isdigit() and name[len(beginning) :][:1].isdigit()
    return name.startswith(beginning) and not is_cut
