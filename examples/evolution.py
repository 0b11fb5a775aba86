"""Train an agent for CartPole-v1 with an evolution strategy, through Rollserve's public client and numpy alone.

    python examples/evolution.py                            # starts a server of its own
    python examples/evolution.py --server HOST:PORT         # uses a running server

Each generation evaluates parameters around the agent's own, in pairs of opposite directions, and moves the agent to
where returns are higher (Salimans et al., "Evolution Strategies as a Scalable Alternative to Reinforcement Learning",
2017). The exit status is 0 if the mean return of 100 episodes reaches 475, else 1.

Needs `rollserve`; without `--server`, `rollserve-server`.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import numpy as np

import rollserve

ENV = rollserve.EnvSpec("CartPole-v1", vectorization="rows")
MAX_GENERATIONS, NUM_PAIRS, NUM_EPISODES = 40, 32, 2
NOISE_SCALE, LEARNING_RATE = np.float32(0.3), np.float32(0.3)
TRAINED_RETURN, SOLVED_RETURN = 250.0, 475.0


def evolve(sampler: rollserve.Sampler, seed: int) -> None:
    """Train the sampler's agent until an evaluation reaches SOLVED_RETURN, for at most MAX_GENERATIONS."""
    env = sampler.update_env(ENV)
    agent = rollserve.MlpAgent.initial(env.observation_space, env.action_space, hidden_sizes=(16,), seed=seed)
    sampler.update_agent(agent)
    centre = {name: np.array(value) for name, value in agent.parameters.items()}
    source = np.random.default_rng(seed)
    for generation in range(MAX_GENERATIONS):
        # Parameters of 64 members, (64, *shape) each: the centre plus noise, and the centre minus the same noise.
        noise = {name: source.standard_normal((NUM_PAIRS, *value.shape), np.float32) for name, value in centre.items()}
        members = {
            name: value + NOISE_SCALE * np.concatenate([noise[name], -noise[name]]) for name, value in centre.items()
        }

        # All members in one call, with the same episodes: (64, 2) returns.
        result = sampler.evaluate_population(members, NUM_EPISODES, deterministic=True, seed=generation)

        # Move towards the better member of each pair, weighted by the difference of their ranks.
        ranks = result.mean_returns.argsort().argsort() / (2 * NUM_PAIRS - 1) - 0.5
        weights = ((ranks[:NUM_PAIRS] - ranks[NUM_PAIRS:]) / NUM_PAIRS).astype(np.float32)
        for name, value in centre.items():
            value += LEARNING_RATE / NOISE_SCALE * np.tensordot(weights, noise[name], axes=1)
        sampler.update_agent(centre)

        mean, best = result.returns.mean(), result.mean_returns.max()
        print(f"generation {generation + 1:>2}: mean return {mean:5.1f}, best {best:5.1f}", flush=True)
        if mean >= TRAINED_RETURN and sampler.evaluate(20, deterministic=True).return_summary.mean >= SOLVED_RETURN:
            break


@contextlib.contextmanager
def server_address(address: str | None) -> Generator[str]:
    """Yield the address of a running server, or run a server of its own for as long as the block."""
    if address is not None:
        yield address
        return
    from rollserve_server.local import local_server  # here, because a trainer needs the client alone

    with tempfile.TemporaryDirectory() as folder, local_server("--env", ENV.id, log=Path(folder) / "log") as server:
        yield server.address


def main() -> int:
    """Run the example; return its exit status."""
    parser = argparse.ArgumentParser(description=f"Train an agent for {ENV.id} with an evolution strategy.")
    parser.add_argument("--server", metavar="HOST:PORT", help="address of a running server (default: start one)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the noise (default: %(default)s)")
    options = parser.parse_args()
    with server_address(options.server) as address, rollserve.connect(address) as sampler:
        evolve(sampler, options.seed)
        result = sampler.evaluate(100, deterministic=True)
    print(f"evolution: {result}")
    return 0 if result.return_summary.mean >= SOLVED_RETURN else 1


if __name__ == "__main__":
    sys.exit(main())
