"""Measures the whole service: `python -m benchmarks.service`, or `make bench`.

Prints a table, and writes all figures to a JSON file and a chart to a PNG file. Takes some minutes and no network.
Exits with 1 if what was moved in a workload is not what it should be; that one has no figures then.

All figures are medians of rounds, in each of which the service and what it is compared to take turns. "Of bare" is the
median of the rounds' ratios to the bare loop (see `bare.py`); where an environment sleeps, to that sleep alone. The
result of a call is timed whole, as one batch in a client process of its own; the latency to the first message is of
another call, message by message. CPU time is of all workers together, memory of the largest process of its kind.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.service.bulk import measure_bulk
from benchmarks.service.chart import save_chart
from benchmarks.service.choosing import add_choice
from benchmarks.service.growth import measure_growth, measure_slow_client
from benchmarks.service.machine import machine, versions
from benchmarks.service.results import Options, Result
from benchmarks.service.sampling import measure_sampling
from benchmarks.service.small import measure_round_trips, measure_updates
from benchmarks.service.stacks import measure_stacks
from benchmarks.service.table import print_table
from benchmarks.service.workloads import SAMPLING

__all__: list[str] = []

_MEASURES: dict[str, Callable[[str, Options], list[Result]]] = {
    **dict.fromkeys(SAMPLING, measure_sampling),
    "w4-bulk": measure_bulk,
    "w4-stacks": measure_stacks,
    "w5-round-trips": measure_round_trips,
    "w5-update": measure_updates,
    "w6-workers": measure_growth,
    "w6-slow-client": measure_slow_client,
}
_WORKER_COUNTS = (1, 4, 16, 64)


def main() -> int:
    """Measures what is asked for; returns the exit status."""
    arguments = _parsed()
    console = Console(stderr=True)
    options = Options(
        num_workers=arguments.workers,
        num_rounds=arguments.rounds,
        scale=arguments.scale,
        worker_counts=[count for count in _WORKER_COUNTS if count <= arguments.most_workers],
        log=lambda line: console.print(line, highlight=False),
    )
    report: dict[str, Any] = {
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "settings": {name: value for name, value in vars(arguments).items() if name not in ("json", "chart")},
        "failures": {},
    }
    results = _measured(arguments.workloads, options, report["failures"])
    report["results"] = [result.to_json() for result in results]
    arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    if results:
        save_chart(results, arguments.chart)
        print_table(results)
    console.print(f"figures in {arguments.json}, chart in {arguments.chart}", highlight=False)
    return 1 if report["failures"] else 0


def _measured(names: list[str], options: Options, failures: dict[str, str]) -> list[Result]:
    """The results of these workloads; says why others have none."""
    results = []
    for name in names:
        began = time.perf_counter()
        options.log(f"{name} …")
        try:
            results += _MEASURES[name](name, options)
        except Exception as error:  # the others are to be measured all the same
            failures[name] = f"{type(error).__name__}: {error}"
            options.log(traceback.format_exc())
        options.log(f"{name}: {time.perf_counter() - began:.0f} s")
    return results


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service", description="Measure the whole service.")
    add_choice(parser, "--workloads", _MEASURES)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--workers", type=int, default=cores, help="how many workers (default: %(default)s, the cores)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median counts (default: %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies all sizes (default: %(default)s)")
    parser.add_argument("--most-workers", type=int, default=64, help="of w6-workers (default: %(default)s)")
    parser.add_argument("--json", type=Path, default=Path("bench.json"), help="(default: %(default)s)")
    parser.add_argument("--chart", type=Path, default=Path("bench.png"), help="(default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
