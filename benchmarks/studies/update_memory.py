"""Whether memory stays flat, however often the agent is updated.

    python benchmarks/updates.py [--updates N] [--workers N] [--hidden SIZE] [--sample-every N]

CartPole-v1 and an MLP with two hidden layers, whose parameters are replaced again and again; after every so many
updates a call samples 200 steps. The table shows the memory of the gateway and of all workers together over the run:
what is resident (RSS, with what processes share), and each one's share of it (PSS); and the PSS of what Ray runs beside
them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table
from service.processes import processes_of_server

import rollserve
from rollserve_server.local import local_server

NUM_ROWS = 10
NUM_STEPS = 200


def mebibytes(processes: Sequence[psutil.Process], kind: str) -> str:
    """The memory of all of them together."""
    return f"{sum(getattr(process.memory_full_info(), kind) for process in processes) / (1 << 20):.1f}"


def update(sampler: rollserve.Sampler, agent: rollserve.MlpAgent, numbers: range, sample_every: int) -> float:
    """Updates the agent so often; returns the seconds that all of it took."""
    began = time.perf_counter()
    for number in numbers:
        # Other numbers each time, so that nothing is the same as before.
        sampler.update_agent({name: value + number * 1e-6 for name, value in agent.parameters.items()})
        if number % sample_every == 0:
            sampler.obtain_samples(NUM_STEPS)
    return time.perf_counter() - began


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description="Measure memory over many updates of the agent.")
    parser.add_argument("--updates", type=int, default=10_000, help="how many (default: %(default)s)")
    parser.add_argument("--workers", default="2", help="how many workers (default: %(default)s)")
    parser.add_argument("--hidden", type=int, default=64, help="size of a hidden layer (default: %(default)s)")
    parser.add_argument("--sample-every", type=int, default=50, help="updates before each call (default: %(default)s)")
    options = parser.parse_args()
    table = Table("updates", "ms each", "gateway RSS", "PSS", "workers RSS", "PSS", "Ray PSS", title="memory in MiB")
    with (
        tempfile.TemporaryDirectory() as folder,
        local_server("--env", "CartPole-v1", "--workers", options.workers, log=Path(folder) / "log") as server,
        rollserve.connect(server.address) as sampler,
    ):
        spaces = sampler.status()
        sizes = (options.hidden, options.hidden)
        agent = rollserve.MlpAgent.initial(spaces.observation_space, spaces.action_space, hidden_sizes=sizes, seed=0)
        sampler.update_agent(agent)
        processes, done = processes_of_server(server.process.pid), 0
        for row in range(NUM_ROWS + 1):
            goal = options.updates * row // NUM_ROWS
            seconds = update(sampler, agent, range(done, goal), options.sample_every)
            each = f"{seconds / (goal - done) * 1e3:.2f}" if goal > done else ""
            memory = [mebibytes(processes[group], kind) for group in ("gateway", "workers") for kind in ("rss", "pss")]
            table.add_row(f"{goal:,}", each, *memory, mebibytes(processes["ray"], "pss"))
            done = goal
    Console().print(table)


if __name__ == "__main__":
    main()
