"""An evolution strategy learns CartPole-v1 through Rollserve, with nothing but the public client and numpy.

    python examples/evolution.py                            # starts a server of its own
    python examples/evolution.py --server HOST:PORT         # uses the one that is there

Each generation tries numbers around those of the agent, in pairs, and goes to where the returns are (Salimans et al.,
"Evolution Strategies as a Scalable Alternative to Reinforcement Learning", 2017). Exits with 0 only if 100 episodes
come to a mean return of 475.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import rollserve

ENV = rollserve.EnvSpec("CartPole-v1", vectorization="rows")
NUM_GENERATIONS, NUM_PAIRS, NUM_EPISODES = 40, 32, 2
NOISE, RATE = 0.3, 0.3
TRAINED_RETURN, SOLVED_RETURN = 250.0, 475.0


def evolve(sampler: rollserve.Sampler, seed: int) -> None:
    """Improves the agent that is there."""
    env = sampler.update_env(ENV)
    agent = rollserve.MlpAgent.initial(env.observation_space, env.action_space, hidden_sizes=(16,), seed=seed)
    sampler.update_agent(agent)
    centre = {name: np.array(value) for name, value in agent.parameters.items()}
    source = np.random.default_rng(seed)
    for generation in range(NUM_GENERATIONS):
        noise = {name: source.standard_normal((NUM_PAIRS, *value.shape), np.float32) for name, value in centre.items()}
        both = {name: np.concatenate([value, -value]) for name, value in noise.items()}
        members = {name: value + np.float32(NOISE) * both[name] for name, value in centre.items()}
        result = sampler.evaluate_population(members, NUM_EPISODES, deterministic=True, seed=generation)
        ranks = result.mean_returns.argsort().argsort() / (2 * NUM_PAIRS - 1) - 0.5
        weights = ((ranks[:NUM_PAIRS] - ranks[NUM_PAIRS:]) / NUM_PAIRS).astype(np.float32)
        for name, value in centre.items():
            value += np.float32(RATE / NOISE) * np.tensordot(weights, noise[name], axes=1)
        best, mean = result.mean_returns.max(), result.returns.mean()
        print(f"generation {generation + 1:>2}: mean return {mean:5.1f}, best {best:5.1f}", flush=True)
        sampler.update_agent(centre)
        if mean >= TRAINED_RETURN and sampler.evaluate(20, deterministic=True).return_summary.mean >= SOLVED_RETURN:
            break


@contextlib.contextmanager
def server_address(given: str | None) -> Iterator[str]:
    """The address of the server that was named, or of one that runs for as long as the block."""
    if given is not None:
        yield given
        return
    from rollserve_server.local import local_server  # a trainer elsewhere has no server

    with tempfile.TemporaryDirectory() as folder, local_server("--env", ENV.id, log=Path(folder) / "log") as server:
        yield server.address


def main() -> int:
    """Runs the example; returns its exit status."""
    parser = argparse.ArgumentParser(description=f"Learn {ENV.id} with an evolution strategy.")
    parser.add_argument("--server", metavar="HOST:PORT", help="a server that is there; else one is started")
    parser.add_argument("--seed", type=int, default=0, help="of the noise (default: %(default)s)")
    options = parser.parse_args()
    with server_address(options.server) as address, rollserve.connect(address) as sampler:
        evolve(sampler, options.seed)
        result = sampler.evaluate(100, deterministic=True)
    print(f"evolution: {result}")
    return 0 if result.return_summary.mean >= SOLVED_RETURN else 1


if __name__ == "__main__":
    sys.exit(main())
