"""Does memory stay flat over many updates of the agent?

    python -m benchmarks.studies.update_memory [--updates N] [--workers N] [--hidden SIZE] [--sample-every N]

CartPole-v1 and an MLP with two hidden layers, whose parameters are updated again and again; every few updates, a call
samples 200 steps. The table shows the memory of the gateway and of all workers together as the updates go on: RSS, the
resident memory, shared pages included; and PSS, in which each process counts its share of shared pages. The last column
is the PSS of Ray's other processes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import psutil
from rich.console import Console
from rich.table import Table

import rollserve
from benchmarks.service.processes.meter import processes_of_server
from benchmarks.studies.server import add_workers, cartpole_server

NUM_TABLE_ROWS = 10
NUM_STEPS = 200


def mebibytes(processes: Sequence[psutil.Process], kind: str) -> str:
    """Return the memory of processes together, of kind `rss` or `pss`."""
    return f"{sum(getattr(process.memory_full_info(), kind) for process in processes) / (1 << 20):.1f}"


def update(sampler: rollserve.Sampler, agent: rollserve.MlpAgent, numbers: range, sample_every: int) -> float:
    """Update the agent once for each number; return the seconds per update."""
    began = time.perf_counter()
    for number in numbers:
        # Different parameters in each update, so that nothing can be reused.
        sampler.update_agent({name: value + number * 1e-6 for name, value in agent.parameters.items()})
        if number % sample_every == 0:
            sampler.obtain_samples(NUM_STEPS)
    return (time.perf_counter() - began) / len(numbers)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="Measure memory over many updates of the agent.")
    parser.add_argument("--updates", type=int, default=10_000, help="number of updates (default: %(default)s)")
    add_workers(parser)
    parser.add_argument("--hidden", type=int, default=64, help="size of a hidden layer (default: %(default)s)")
    parser.add_argument("--sample-every", type=int, default=50, help="updates between calls (default: %(default)s)")
    arguments = parser.parse_args()
    table = Table("updates", "ms each", "gateway RSS", "PSS", "workers RSS", "PSS", "Ray PSS", title="memory in MiB")
    with cartpole_server(arguments.workers) as (server, sampler):
        status = sampler.status()
        sizes = (arguments.hidden, arguments.hidden)
        agent = rollserve.MlpAgent.initial(status.observation_space, status.action_space, hidden_sizes=sizes, seed=0)
        sampler.update_agent(agent)
        groups = processes_of_server(server.process.pid, {worker.process_id for worker in status.workers})
        num_done = 0
        for row in range(NUM_TABLE_ROWS + 1):
            numbers = range(num_done, arguments.updates * row // NUM_TABLE_ROWS)
            num_done = numbers.stop
            seconds = update(sampler, agent, numbers, arguments.sample_every) if numbers else None
            memory = [mebibytes(groups[group], kind) for group in ("gateway", "workers") for kind in ("rss", "pss")]
            table.add_row(
                f"{num_done:,}",
                "" if seconds is None else f"{seconds * 1e3:.2f}",
                *memory,
                mebibytes(groups["ray"], "pss"),
            )
    Console().print(table)


if __name__ == "__main__":
    main()
