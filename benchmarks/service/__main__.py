"""Measure the whole service: `python -m benchmarks.service`, or `make bench`.

Prints a table, and writes all figures to a JSON file and a chart to a PNG file. Takes some minutes and no network.
Exits with 1 if a workload failed, for example because its calls delivered wrong data; such a workload has no figures.

All figures are medians of rounds. In each round, the service and what it is compared with are measured in turns. "Of
bare" is the median of the rounds' ratios to the bare loop (see `processes/bare_loop.py`); where an environment sleeps,
to that sleep alone. A call is timed as a whole, for one batch in a client process of its own; the latency of the first
message is from another call, message by message. CPU time is the sum over all workers, memory is the largest process
of its kind.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Sequence

from rich.console import Console

from benchmarks.service.catalogue import WORKLOADS
from benchmarks.service.chart import save_chart
from benchmarks.service.results import Options, Result
from benchmarks.service.table import print_table
from benchmarks.shared.command_line import add_measurement_options, add_names
from benchmarks.shared.report import new_report, write_report

__all__: list[str] = []

_WORKER_COUNTS = (1, 4, 16, 64)


def main() -> int:
    """Measure the workloads of the command line; return the exit status."""
    arguments = _parse_arguments()
    console = Console(stderr=True)
    options = Options(
        num_workers=arguments.workers,
        num_rounds=arguments.rounds,
        scale=arguments.scale,
        worker_counts=[count for count in _WORKER_COUNTS if count <= arguments.max_workers],
        log=lambda line: console.print(line, highlight=False),
    )
    report = new_report(arguments)
    results, failures = _measure(arguments.workloads, options)
    report |= {"failures": failures, "results": [result.to_json() for result in results]}
    write_report(report, arguments.json)
    if results:
        save_chart(results, arguments.chart)
        print_table(results)
    console.print(f"figures in {arguments.json}, chart in {arguments.chart}", highlight=False)
    return 1 if failures else 0


def _measure(names: Sequence[str], options: Options) -> tuple[list[Result], dict[str, str]]:
    """Return the results of the workloads, and the errors of failed workloads by name."""
    results: list[Result] = []
    failures = {}
    for name in names:
        began = time.perf_counter()
        options.log(f"{name} …")
        try:
            results += WORKLOADS[name](name, options)
        except Exception as error:  # the other workloads are still measured
            failures[name] = f"{type(error).__name__}: {error}"
            options.log(traceback.format_exc())
        options.log(f"{name}: {time.perf_counter() - began:.0f} s")
    return results, failures


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service", description="Measure the whole service.")
    add_names(parser, "--workloads", WORKLOADS)
    add_measurement_options(parser, file_name="bench")
    parser.add_argument(
        "--max-workers", type=int, default=64, help="largest number of workers of w6-workers (default: %(default)s)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
