"""Measures Rollserve beside its peers: `python -m benchmarks.peers`, or `make bench-peers`.

Sets the peers up first, each in a virtual environment of its own; what cannot be set up or run is in the table with the
reason. Prints a table, and writes all figures to a JSON file and a chart to a PNG file. Takes about half an hour.

All figures are medians of rounds, in each of which Rollserve and its peers take turns, one at a time, each in
processes of its own that end with its turn. The policy is evaluated at every step and its actions are drawn; a step
counts when its arrays are in the trainer's process. Peers are warmed up first, and have the settings that made them
fastest of those that were tried. Those that collect by themselves are one kind, "library"; the others are environments
for which a loop was written that steps them in the trainer's own process, as fast as numpy allows: kind "loop".
Rollserve's client is a process of its own, and is timed as `make bench` does it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.peers.catalogue import PEERS, WORKLOADS, entries_of
from benchmarks.peers.chart import save_chart
from benchmarks.peers.environments import SetUpError, python_of
from benchmarks.peers.lines import SPEED, Line
from benchmarks.peers.table import print_table, ratios
from benchmarks.peers.turns import PeerTurn, Turn, rollserve_turns
from benchmarks.service.bulk import NUM_BULK_STEPS
from benchmarks.service.choosing import add_choice
from benchmarks.service.environments import Bulk
from benchmarks.service.machine import machine, versions
from benchmarks.service.results import Options

__all__: list[str] = []


def main() -> int:
    """Measures what is asked for; returns the exit status."""
    arguments = _parsed()
    console = Console(stderr=True)
    log = partial(console.print, highlight=False, markup=False)
    pythons = {peer: _python_or_error(peer, log) for peer in arguments.peers}
    report: dict[str, Any] = {
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "settings": {name: value for name, value in vars(arguments).items() if name not in ("json", "chart")},
    }
    lines: list[Line] = []
    for workload in arguments.workloads:
        turns, earlier = _turns(workload, arguments, pythons, log), lines
        for number in range(arguments.rounds):
            log(f"{workload}, round {number + 1} of {arguments.rounds}")
            for turn in turns:
                turn.take()
                for line in turn.lines:
                    log(f"  {line.who}, {line.title}: {line.failure or format(line.rounds[-1][SPEED], ',.0f')}")
            lines = [*earlier, *(line for turn in turns for line in turn.lines)]
            # After each round, for those who do not wait for all.
            report |= {"results": [line.to_json() for line in lines], "ratios": ratios(lines)}
            arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    save_chart(lines, arguments.chart)
    print_table(lines)
    log(f"figures in {arguments.json}, chart in {arguments.chart}")
    return 0


def _python_or_error(peer: str, log: Callable[[str], None]) -> Path | SetUpError:
    """The interpreter that has a peer, or why there is none."""
    log(f"{PEERS[peer].title} …")
    try:
        return python_of(peer)
    except SetUpError as error:
        log(str(error))
        return error


def _turns(
    workload: str,
    arguments: argparse.Namespace,
    pythons: Mapping[str, Path | SetUpError],
    log: Callable[[str], None],
) -> list[Turn]:
    """Rollserve's, and those of the peers that were asked for."""
    options = Options(num_workers=arguments.workers, num_rounds=1, scale=arguments.scale, worker_counts=(), log=log)
    entries = entries_of(workload, arguments.workers, options.scaled(NUM_BULK_STEPS, Bulk.num_steps))
    return [
        *rollserve_turns(workload, options),
        *(
            PeerTurn(workload, entry, pythons[entry.peer], arguments.seconds)
            for entry in entries
            if entry.peer in pythons
        ),
    ]


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="Measure Rollserve and its peers.")
    add_choice(parser, "--peers", PEERS)
    add_choice(parser, "--workloads", WORKLOADS)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--workers", type=int, default=cores, help="or threads (default: %(default)s, the cores)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median counts (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a peer in a round (default: %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies Rollserve's sizes (default: %(default)s)")
    parser.add_argument("--json", type=Path, default=Path("bench-peers.json"), help="(default: %(default)s)")
    parser.add_argument("--chart", type=Path, default=Path("bench-peers.png"), help="(default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
