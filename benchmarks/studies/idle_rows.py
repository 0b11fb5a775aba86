"""How much the rows of a native vector environment wait for the last one of their block, and how fast they are.

    python benchmarks/idle_rows.py [--workers N]

CartPole-v1 with agents whose mean return is about 20, 200 and 500. A block ends when each of its rows has run its share
of episodes; a row that has done so goes on with the others, in vain. Many episodes of each row make that little: their
lengths add up to nearly the same.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table
from surplus import agent_with_return

import rollserve
from rollserve_server.local import local_server

ROWS = (16, 64, 256)
EPISODES_PER_ROW = (1, 2, 4, 8, 16, 32)
MAX_STEPS = 8_000_000


def measured(sampler: rollserve.Sampler, num_rows: int, num_episodes: int) -> tuple[float, float]:
    """The share of steps made in vain in whole blocks, and delivered steps per second."""
    env = rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=num_rows, num_episodes_per_row=num_episodes)
    sampler.update_env(env)
    idle = simulated = delivered = 0
    began = time.perf_counter()
    for _ in range(max(1, 32 // num_episodes)):
        batch = sampler.obtain_exact_episodes(num_rows * num_episodes)
        if batch.account is not None:
            idle += batch.account.num_idle_steps
            simulated += batch.account.num_simulated_steps
            delivered += batch.num_steps
    return idle / simulated, delivered / (time.perf_counter() - began)


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description="Measure how much rows wait for each other.")
    parser.add_argument("--workers", default="2", help="how many workers (default: %(default)s)")
    options = parser.parse_args()
    table = Table("mean return", "rows", "episodes per row", "idle", "steps/s")
    with (
        tempfile.TemporaryDirectory() as folder,
        local_server("--env", "CartPole-v1", "--workers", options.workers, log=Path(folder) / "log") as server,
        rollserve.connect(server.address) as sampler,
    ):
        for wanted in (20, 200, 500):
            sampler.update_env(rollserve.EnvSpec("CartPole-v1", vectorization="rows"))
            _, mean = agent_with_return(sampler, wanted)
            for num_rows in ROWS:
                for num_episodes in EPISODES_PER_ROW:
                    if num_rows * num_episodes * mean <= MAX_STEPS / 2:
                        idle, speed = measured(sampler, num_rows, num_episodes)
                        table.add_row(f"{mean:.0f}", f"{num_rows}", f"{num_episodes}", f"{idle:.1%}", f"{speed:,.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
