"""How much of what is simulated is thrown away, when the agent is updated between calls.

    python benchmarks/surplus.py [--workers N] [--vectorization rows|native] [--rows M] [--episodes-per-row K]

CartPole-v1 with agents whose mean return is about 20, 200 and 500, in calls of 2,048 and of 20,000 steps. Episodes are
whole, so a call delivers more than was asked for by half an episode on average; that is not counted here, for it is
delivered. What is counted is what was begun beyond the last delivered episode, and dropped with the update; and, of
rows that are stepped all at once, what they make while they wait for the others of their block.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import rollserve
from rollserve_server.local import local_server

BALANCE = np.array([0.1, 0.5, 3.0, 1.5], np.float32)
"""Pushes towards where the pole falls: held to strictly, it never does."""
NUM_STEPS = (2048, 20_000)
NUM_CALLS = 40
NUM_WARM_UP_CALLS = 5


def linear_agent(firmness: float) -> rollserve.MlpAgent:
    """An agent that does what `BALANCE` says the more surely, the firmer it is; at 0 it acts at random."""
    weight = np.stack([-firmness * BALANCE, firmness * BALANCE])
    return rollserve.MlpAgent({"0/weight": weight, "0/bias": np.zeros(2, np.float32)}, "categorical")


def agent_with_return(sampler: rollserve.Sampler, wanted: float) -> tuple[rollserve.MlpAgent, float]:
    """An agent whose mean return is about the wanted one, and that return."""
    low, high, firmness = 0.0, 64.0, 0.0  # what acts at random has a mean return of about 22
    for _ in range(20):
        agent = linear_agent(firmness)
        sampler.update_agent(agent)
        mean = float(sampler.obtain_samples(60_000, seed=1).returns.mean())
        if abs(mean - wanted) < 0.1 * wanted:
            break
        low, high = (firmness, high) if mean < wanted else (low, firmness)
        firmness = (low + high) / 2
    return agent, mean


def thrown_away(sampler: rollserve.Sampler, agent: rollserve.MlpAgent, num_steps: int) -> tuple[float, float]:
    """The shares of the simulated steps that were dropped, and that were delivered beyond what was asked for."""
    simulated = dropped = delivered = 0
    for call in range(NUM_WARM_UP_CALLS + NUM_CALLS):
        sampler.update_agent(agent.parameters)
        account = sampler.obtain_samples(num_steps).account
        if account is not None and call >= NUM_WARM_UP_CALLS:
            simulated += account.num_simulated_steps
            dropped += account.num_dropped_steps
            delivered += account.num_steps
    return dropped / simulated, 1 - NUM_CALLS * num_steps / delivered


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description="Measure how much is simulated in vain.")
    parser.add_argument("--workers", default="2", help="how many workers (default: %(default)s)")
    parser.add_argument("--vectorization", default="rows", choices=("rows", "native"), help="how rows are stepped")
    parser.add_argument("--rows", type=int, default=16, help="rows of each worker (default: %(default)s)")
    parser.add_argument("--episodes-per-row", type=int, default=8, help="in a block (default: %(default)s)")
    options = parser.parse_args()
    table = Table("mean return", "steps asked for", "dropped", "delivered beyond")
    with (
        tempfile.TemporaryDirectory() as folder,
        local_server("--env", "CartPole-v1", "--workers", options.workers, log=Path(folder) / "log") as server,
        rollserve.connect(server.address) as sampler,
    ):
        env = rollserve.EnvSpec(
            "CartPole-v1",
            vectorization=options.vectorization,
            num_rows=options.rows,
            num_episodes_per_row=options.episodes_per_row,
        )
        sampler.update_env(env)
        for wanted in (20, 200, 500):
            agent, mean = agent_with_return(sampler, wanted)
            for num_steps in NUM_STEPS:
                dropped, beyond = thrown_away(sampler, agent, num_steps)
                table.add_row(f"{mean:.0f}", f"{num_steps:,}", f"{dropped:.1%}", f"{beyond:.1%}")
    Console().print(table)


if __name__ == "__main__":
    main()
