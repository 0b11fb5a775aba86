"""Figures of Rollserve and its peers as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from rich.markup import escape
from rich.table import Table

from benchmarks.peers.catalogue import NUM_ITERATION_STEPS, WORKLOADS, Kind
from benchmarks.peers.measurements import ROLLSERVE, Measurement, best_of, ratio
from benchmarks.shared.report import wide_console

__all__ = ["print_table", "ratios"]

_MIN_WIDTH = 150


def ratios(measurements: Sequence[Measurement]) -> list[dict[str, Any]]:
    """Return how many times as fast as the best peer of each kind Rollserve's best way is, for each workload."""
    rows = []
    for workload in WORKLOADS:
        candidates = [each for each in measurements if each.workload == workload]
        own = best_of(candidates, ("service",))
        for kind in get_args(Kind):
            peer = best_of(candidates, (kind,))
            if own and peer:
                titles = {"rollserve": own.title, "peer": peer.who, "peer_title": peer.title}
                rows.append({"workload": workload, "kind": kind, **titles, "ratio": ratio(own, peer)})
    return rows


def print_table(measurements: Sequence[Measurement]) -> None:
    """Print the medians of all measurements, the fastest first, and the ratios to the best peers."""
    console = wide_console(_MIN_WIDTH)
    for workload, title in WORKLOADS.items():
        shown = [each for each in measurements if each.workload == workload]
        if shown:
            console.print(_table(f"{workload}: {title}; medians", shown))
    for row in ratios(measurements):
        console.print(
            f"{row['workload']}: Rollserve ({row['rollserve']}) is {row['ratio']:.3g} times as fast as the best "
            f"{row['kind']}, {row['peer']} ({row['peer_title']})",
            highlight=False,
        )


def _table(title: str, measurements: Sequence[Measurement]) -> Table:
    table = Table("who", "kind", "how", title=title, title_justify="left")
    unit, _ = _speed_in_unit(measurements[0].workload, 1.0)
    for heading in (unit, "Rollserve\nto it", "peak MB of the\ntrainer / a worker"):
        table.add_column(heading, justify="right")
    own = best_of(measurements, ("service",))
    for each in sorted(measurements, key=lambda each: -each.speed):
        how = f"{each.title}\n{escape(each.failure)}" if each.failure else each.title
        table.add_row(each.who, each.kind, how, *_cells(each, own), style=_style(each))
    return table


def _cells(measurement: Measurement, own: Measurement | None) -> list[str]:
    if not measurement.speed:
        return ["-", "-", "-"]
    _, speed = _speed_in_unit(measurement.workload, measurement.speed)
    peaks = (measurement.medians[f"{who}_peak_bytes"] / 1e6 for who in ("trainer", "worker"))
    return [
        speed,
        f"{ratio(own, measurement):.3g}" if own else "-",
        " / ".join(f"{peak:,.0f}" if peak else "-" for peak in peaks),
    ]


def _speed_in_unit(workload: str, speed: float) -> tuple[str, str]:
    """Return the unit of a workload's speed, and the speed, given in steps per second."""
    if workload == "w4":
        return "MB/s", f"{speed * (1 << 20) / 1e6:,.0f}"
    if workload.startswith("w10"):
        return "ms an\niteration", f"{NUM_ITERATION_STEPS / speed * 1e3:.1f}"
    return "steps/s", f"{speed:,.0f}"


def _style(measurement: Measurement) -> str:
    if measurement.failure:
        return "red"
    return "bold" if measurement.who == ROLLSERVE else ""
