"""The figures as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.peers.catalogue import WORKLOADS
from benchmarks.peers.lines import ROLLSERVE, Line, best_of, ratio

__all__ = ["print_table", "ratios"]

_LEAST_WIDTH = 150
_GROUPS = {"library": ("library",), "loop": ("loop",), "transport": ("transport",)}


def ratios(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """For each workload, and each kind of peer that has figures: how many times as fast as its best Rollserve is."""
    found = []
    for workload in WORKLOADS:
        of_workload = [line for line in lines if line.workload == workload]
        own = best_of(of_workload, ("service",))
        for kind in _GROUPS:
            best = best_of(of_workload, (kind,))
            if own and best:
                names = {"rollserve": own.title, "peer": best.who, "peer_title": best.title}
                found.append({"workload": workload, "kind": kind, **names, "ratio": ratio(own, best)})
    return found


def print_table(lines: Sequence[Line]) -> None:
    """Prints the medians of all lines, the fastest first, and the ratios to the best peers."""
    console = Console()
    if console.width < _LEAST_WIDTH:
        console = Console(width=_LEAST_WIDTH)
    for workload, title in WORKLOADS.items():
        of_workload = [line for line in lines if line.workload == workload]
        if of_workload:
            console.print(_table(f"{workload}: {title}; medians", of_workload))
    for found in ratios(lines):
        console.print(
            f"{found['workload']}: Rollserve ({found['rollserve']}) is {found['ratio']:.3g} times as fast as the best "
            f"{found['kind']}, {found['peer']} ({found['peer_title']})",
            highlight=False,
        )


def _table(title: str, lines: Sequence[Line]) -> Table:
    table = Table("who", "kind", "how", title=title, title_justify="left")
    bulk = lines[0].workload == "w4"
    for heading in ("MB/s" if bulk else "steps/s", "Rollserve\nto it", "peak MB of\nthe trainer"):
        table.add_column(heading, justify="right")
    own = best_of(lines, ("service",))
    for line in sorted(lines, key=lambda line: -line.speed):
        how = f"{line.title}\n{escape(line.failure)}" if line.failure else line.title
        table.add_row(line.who, line.kind, how, *_cells(line, own), style=_style(line))
    return table


def _cells(line: Line, own: Line | None) -> list[str]:
    if not line.speed:
        return ["-", "-", "-"]
    speed = line.speed * (1 << 20) / 1e6 if line.workload == "w4" else line.speed
    return [
        f"{speed:,.0f}",
        f"{ratio(own, line):.3g}" if own else "-",
        f"{line.medians['trainer_peak_bytes'] / 1e6:,.0f}",
    ]


def _style(line: Line) -> str:
    if line.failure:
        return "red"
    return "bold" if line.who == ROLLSERVE else ""
