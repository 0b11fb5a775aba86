"""What does one gateway carry, and at what price?

    python -m benchmarks.cluster [--machines 2,4,8] [--delay-ms X] [--loss-percent X]

Each simulated machine has one worker, and reaches the gateway through Ray alone. The price is the processor time of the
server's process, which says what one core carries also where all machines share few cores: for each worker in a call
for one episode of CartPole-v1 of each, and for a gigabyte of observations of 1 MiB. Needs root, the program `ip`, and
for delay and loss `tc` and a kernel with netem.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

import rollserve
from benchmarks.cluster.machines import cluster_of
from benchmarks.service.workloads.bulk import BULK
from benchmarks.studies.server import cpu_seconds
from rollserve_server.local import LocalServer, local_server

NUM_SMALL_CALLS, NUM_LARGE_CALLS = 100, 5
NUM_STEPS = 64
NUM_ROWS = 64


def cost_of(server: LocalServer, work: Callable[[], object], count: int) -> tuple[float, float]:
    """Return processor time of the server, and elapsed time, of a piece of work that is done so many times."""
    work()  # the first one makes environments
    processes = [psutil.Process(server.process.pid)]
    before, began = cpu_seconds(processes), time.monotonic()
    for _ in range(count):
        work()
    return (cpu_seconds(processes) - before) / count, (time.monotonic() - began) / count


def row_of(num_machines: int, delay_ms: float, loss_percent: float) -> list[str]:
    """Measure with a number of machines; return the row of the table."""
    with cluster_of(num_machines, delay_ms, loss_percent) as cluster, tempfile.TemporaryDirectory() as folder:
        options = ["--env", "CartPole-v1", "--workers", str(num_machines), "--ray-address", cluster.address]
        options += ["--vectorization", "native", "--native-rows", str(NUM_ROWS), "--start-seconds", "300"]
        options += ["--allow-module", "benchmarks.service.environments"]
        began = time.monotonic()
        with (
            local_server(*options, log=Path(folder, "log"), environment=cluster.environment) as server,
            rollserve.connect(server.address) as sampler,
        ):
            server_seconds = time.monotonic() - began
            sampler.update_agent(rollserve.RandomAgent())
            small = cost_of(server, lambda: sampler.obtain_exact_episodes(1), NUM_SMALL_CALLS)
            sampler.update_env(BULK)
            sampler.update_agent(rollserve.RandomAgent())
            bytes_before = sampler.status().counters.message_bytes
            large = cost_of(server, lambda: sampler.obtain_samples(NUM_STEPS), NUM_LARGE_CALLS)
            num_bytes = (sampler.status().counters.message_bytes - bytes_before) / (NUM_LARGE_CALLS + 1)
    return [
        f"{num_machines}{'' if cluster.is_shaped else ' (no netem)'}",
        f"{cluster.start_seconds:.0f} + {server_seconds:.0f}",
        f"{1000 * small[0]:.1f}",
        f"{1000 * small[0] / num_machines:.2f}",
        f"{small[0] / small[1]:.0%}",
        f"{large[0] * 1e9 / num_bytes:.2f}",
        f"{large[0] / large[1]:.0%}",
    ]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="Measure what one gateway carries.")
    parser.add_argument("--machines", default="2,4,8", help="numbers of machines (default: %(default)s)")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="delay of packets (default: %(default)s)")
    parser.add_argument("--loss-percent", type=float, default=0.0, help="share of lost packets (default: %(default)s)")
    arguments = parser.parse_args()
    table = Table(
        "machines", "start, s", "CPU ms of a small call", "of each worker", "of a core", "CPU s of 1 GB", "of a core"
    )
    for number in map(int, arguments.machines.split(",")):
        table.add_row(*row_of(number, arguments.delay_ms, arguments.loss_percent))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
