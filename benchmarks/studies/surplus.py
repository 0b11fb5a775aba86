"""How many simulated steps are discarded, when the agent is updated between calls?

    python -m benchmarks.studies.surplus [--workers N] [--vectorization rows|native] [--rows M] [--episodes-per-row K]

CartPole-v1 with agents whose mean return is about 20, 200 and 500, in calls for 2,048 and 20,000 steps. Two shares are
shown. "dropped": steps that are simulated and not delivered, because they belong to episodes beyond the last delivered
one, which the update discards, or because they are idle steps of rows that wait for others of their block. "delivered
beyond": steps delivered in addition to the request, half an episode on average, because episodes are whole.
"""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

import rollserve
from benchmarks.studies.graded_agents import MEAN_RETURNS, agent_with_return
from benchmarks.studies.server import add_workers, cartpole_server

NUM_STEPS = (2048, 20_000)
NUM_CALLS = 40
NUM_WARM_UP_CALLS = 5


def measure(sampler: rollserve.Sampler, agent: rollserve.MlpAgent, num_steps: int) -> tuple[float, float]:
    """Return the dropped share of simulated steps, and the share of delivered steps beyond the request."""
    num_simulated = num_dropped = num_delivered = 0
    for call in range(NUM_WARM_UP_CALLS + NUM_CALLS):
        sampler.update_agent(agent.parameters)
        account = sampler.obtain_samples(num_steps).account
        if call >= NUM_WARM_UP_CALLS:
            num_simulated += account.num_simulated_steps
            num_dropped += account.num_dropped_steps
            num_delivered += account.num_steps
    return num_dropped / num_simulated, 1 - NUM_CALLS * num_steps / num_delivered


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="Measure how many simulated steps are discarded.")
    add_workers(parser)
    parser.add_argument("--vectorization", default="rows", choices=("rows", "native"), help="how rows are stepped")
    parser.add_argument("--rows", type=int, default=16, help="number of rows of each worker (default: %(default)s)")
    parser.add_argument(
        "--episodes-per-row", type=int, default=8, help="number of episodes of a row in a block (default: %(default)s)"
    )
    arguments = parser.parse_args()
    env = rollserve.EnvSpec(
        "CartPole-v1",
        vectorization=arguments.vectorization,
        num_rows=arguments.rows,
        num_episodes_per_row=arguments.episodes_per_row,
    )
    table = Table("mean return", "steps requested", "dropped", "delivered beyond")
    with cartpole_server(arguments.workers) as (_, sampler):
        sampler.update_env(env)
        for target in MEAN_RETURNS:
            agent, mean = agent_with_return(sampler, target)
            for num_steps in NUM_STEPS:
                dropped, beyond = measure(sampler, agent, num_steps)
                table.add_row(f"{mean:.0f}", f"{num_steps:,}", f"{dropped:.1%}", f"{beyond:.1%}")
    Console().print(table)


if __name__ == "__main__":
    main()
