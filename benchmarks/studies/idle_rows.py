"""How long do the rows of a native vector environment wait for the last row of their block, and how fast are they?

    python -m benchmarks.studies.idle_rows [--workers N]

CartPole-v1 with agents whose mean return is about 20, 200 and 500. A block ends when each row has run its share of
episodes; until then, rows that are done keep stepping, and these idle steps are discarded. With many episodes for each
row there are few of them, because the sums of the rows' episode lengths are nearly equal.
"""

from __future__ import annotations

import argparse
import time

from rich.console import Console
from rich.table import Table

import rollserve
from benchmarks.studies.graded_agents import MEAN_RETURNS, agent_with_return
from benchmarks.studies.server import add_workers, cartpole_server

NUM_ROWS = (16, 64, 256)
NUM_EPISODES_PER_ROW = (1, 2, 4, 8, 16, 32)
MAX_BLOCK_STEPS = 4_000_000
NUM_EPISODES_OF_A_ROW = 32
"""Number of episodes of each row, in all calls of a measurement together."""


def measure(sampler: rollserve.Sampler, num_rows: int, num_episodes_per_row: int) -> tuple[float, float]:
    """Return the share of idle steps in calls for whole blocks, and the delivered steps per second."""
    env = rollserve.EnvSpec(
        "CartPole-v1", vectorization="native", num_rows=num_rows, num_episodes_per_row=num_episodes_per_row
    )
    sampler.update_env(env)
    num_idle = num_simulated = num_delivered = 0
    began = time.perf_counter()
    for _ in range(max(1, NUM_EPISODES_OF_A_ROW // num_episodes_per_row)):
        batch = sampler.obtain_exact_episodes(num_rows * num_episodes_per_row)
        num_idle += batch.account.num_idle_steps
        num_simulated += batch.account.num_simulated_steps
        num_delivered += batch.num_steps
    return num_idle / num_simulated, num_delivered / (time.perf_counter() - began)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="Measure how long rows of a vector environment wait for each other.")
    add_workers(parser)
    arguments = parser.parse_args()
    table = Table("mean return", "rows", "episodes per row", "idle", "steps/s")
    with cartpole_server(arguments.workers) as (_, sampler):
        for target in MEAN_RETURNS:
            sampler.update_env(rollserve.EnvSpec("CartPole-v1", vectorization="rows"))
            _, mean = agent_with_return(sampler, target)
            for num_rows in NUM_ROWS:
                for num_episodes in NUM_EPISODES_PER_ROW:
                    if num_rows * num_episodes * mean <= MAX_BLOCK_STEPS:
                        idle, speed = measure(sampler, num_rows, num_episodes)
                        table.add_row(f"{mean:.0f}", f"{num_rows}", f"{num_episodes}", f"{idle:.1%}", f"{speed:,.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
