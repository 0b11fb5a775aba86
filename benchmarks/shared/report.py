"""Reports: figures of all rounds with their medians, machine, versions and settings."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.shared.machine import machine, versions

__all__ = ["medians", "new_report", "wide_console", "write_report"]

_FILES = ("json", "chart")


def new_report(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the beginning of a report: time, machine, versions and settings of the command line."""
    return {
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "settings": {name: value for name, value in vars(arguments).items() if name not in _FILES},
    }


def write_report(report: Mapping[str, Any], path: Path) -> None:
    """Write a report to a JSON file."""
    path.write_text(json.dumps(report, indent=1) + "\n")


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each figure over the rounds."""
    return {name: statistics.median(figures[name] for figures in rounds) for name in rounds[0]}


def wide_console(min_width: int) -> Console:
    """Return a console for a table that needs a width, also where the terminal is narrower."""
    console = Console()
    return console if console.width >= min_width else Console(width=min_width)
