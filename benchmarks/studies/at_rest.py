"""What does a server cost that does nothing, and a further sampler?

    python -m benchmarks.studies.at_rest [--workers N] [--samplers N]

CartPole-v1 and no calls, measured a minute after the start, when processes of probes have ended. The table shows the
processes and their PSS, in which each counts its share of shared pages: first of the server alone, then with samplers
of one worker each. The last line is the time in which each of them was created. Other programs that use the same
libraries make the PSS smaller.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import time
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from rich.console import Console
from rich.table import Table

import rollserve
from benchmarks.studies.server import add_workers
from rollserve_server.local import LocalServer, local_server

REST_SECONDS = 60.0


def pss_of(server: LocalServer) -> dict[str, list[float]]:
    """Return the PSS in MiB of each of a server's processes, by their names."""
    found = defaultdict(list)
    root = psutil.Process(server.process.pid)
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.Error, OSError):  # it has ended
            command = process.cmdline()
            name = command[command.index("-m") + 1] if "-m" in command else Path(command[0].split()[0]).name
            found[name].append(process.memory_full_info().pss / (1 << 20))
    return found


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="Measure what a server costs that does nothing.")
    add_workers(parser)
    parser.add_argument("--samplers", type=int, default=3, help="number of further samplers (default: %(default)s)")
    arguments = parser.parse_args()
    num_workers, num_samplers = arguments.workers, arguments.samplers
    options = ["--env", "CartPole-v1", "--workers", str(num_workers), "--max-samplers", str(num_samplers + 1)]
    options += ["--max-workers", str(num_workers + num_samplers)]
    seconds = []
    with TemporaryDirectory() as folder, local_server(*options, log=Path(folder) / "log") as server:
        time.sleep(REST_SECONDS)
        before = pss_of(server)
        for number in range(num_samplers):
            with rollserve.connect(server.address, sampler=f"sampler-{number}") as sampler:
                began = time.perf_counter()
                sampler.create_sampler("CartPole-v1")
                seconds.append(time.perf_counter() - began)
        time.sleep(REST_SECONDS)
        after = pss_of(server)
    table = Table("process", "number", "MiB", "number", "MiB", title=f"alone, and with {num_samplers} further samplers")
    for name in sorted({*before, *after}):
        columns = [cell for found in (before, after) for cell in (str(len(found[name])), f"{sum(found[name]):.1f}")]
        table.add_row(name, *columns)
    totals = [list(itertools.chain.from_iterable(found.values())) for found in (before, after)]
    table.add_row("all", *(cell for values in totals for cell in (str(len(values)), f"{sum(values):.0f}")))
    console = Console()
    console.print(table)
    if num_samplers:
        console.print(f"{(sum(totals[1]) - sum(totals[0])) / num_samplers:.1f} MiB for each further sampler")
        console.print("created in", ", ".join(f"{each:.2f} s" for each in seconds))


if __name__ == "__main__":
    main()
