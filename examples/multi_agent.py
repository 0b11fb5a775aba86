"""Train the three agents of MPE's simple_spread with independent PPO: each has a policy and a learner of its own.

    python examples/multi_agent.py                         # starts a server of its own
    python examples/multi_agent.py --server HOST:PORT      # uses a running server

The agents have to cover three landmarks without colliding. `by_policy` has an EpisodeBatch for each policy, so that the
learner for one agent in numpy_ppo.py is enough.

Needs `rollserve[plot]`; without `--server`, `rollserve-server[pettingzoo]`.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# One thread is fastest for matrices this small. numpy reads the variable when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy_ppo import Ppo
from training_run import TrainingRun, parser_of, sampler_of, save_gif

import rollserve
from rollserve.spaces import Dict

STEPS_PER_ITERATION = 3000
"""Environment steps; all three agents act in each."""


class Team:
    """A learner for each agent of an environment."""

    def __init__(self, env: rollserve.EnvUpdate, seed: int) -> None:
        observations, actions = env.observation_space, env.action_space
        if not isinstance(observations, Dict) or not isinstance(actions, Dict):
            raise TypeError("env: expected an environment with many agents, got one with one agent")
        self.learners = {
            agent: Ppo(
                observations[agent].flat_size,
                actions[agent].flat_size,
                discount=0.95,
                learning_rate=1e-3,
                num_epochs=8,
                seed=seed + number,
            )
            for number, agent in enumerate(env.agents)
        }

    def agents(self) -> dict[str, rollserve.MlpAgent]:
        """Return the policy of each agent, by the agent's name."""
        return {agent: learner.agent() for agent, learner in self.learners.items()}

    def parameters(self) -> dict[str, dict[str, np.ndarray]]:
        """Return the parameters of all policies by name."""
        return {agent: learner.policy.parameters for agent, learner in self.learners.items()}

    def learn(self, batch: rollserve.MultiAgentBatch) -> None:
        """Let each learner learn from its own steps."""
        for agent, segments in batch.by_policy().items():
            self.learners[agent].learn(segments)

    def save(self, path: Path) -> None:
        """Write a checkpoint: the parameters of all policies."""
        arrays: dict[str, Any] = {
            f"{agent}/{name}": value for agent, its in self.parameters().items() for name, value in its.items()
        }
        with path.open("wb") as file:
            np.savez(file, **arrays)


def train(sampler: rollserve.Sampler, team: Team, run: TrainingRun, num_steps: int, target: float) -> float:
    """Train for a number of environment steps, or until the mean return of an agent reaches a target; return it."""
    sampler.update_agent(team.agents())
    while True:
        batch = sampler.multi_agent.obtain_samples(STEPS_PER_ITERATION)
        mean_return = float(np.concatenate([each.returns for each in batch.by_policy().values()]).mean())
        run.report(run.num_steps + batch.num_steps, mean_return)
        if run.num_steps >= num_steps or mean_return >= target:
            return mean_return
        team.learn(batch)
        sampler.update_agent(team.parameters())


def frames_of(batch: rollserve.MultiAgentBatch) -> Iterator[np.ndarray]:
    """Replay an episode in plain PettingZoo, compare its observations, and yield its pictures."""
    module: Any = importlib.import_module("mpe2.simple_spread_v3")  # here, because a trainer needs the client alone
    env, joint = module.parallel_env(render_mode="rgb_array"), batch.joint()
    observations, _ = env.reset(seed=int(batch.policies[0].batch.env_seeds[0]))
    yield env.render()
    for step in range(batch.num_steps):
        for agent, steps in joint.items():
            np.testing.assert_array_equal(observations[agent], steps.observations[step])
        observations, *_ = env.step({agent: steps.actions[step] for agent, steps in joint.items()})
        yield env.render()
    env.close()


def main() -> int:
    """Run the example; return 0 if the target was reached or none was given, else 1."""
    options = parser_of(
        "Train agents with independent PPO through Rollserve.", "mpe/simple_spread-v3", 400_000
    ).parse_args()
    with sampler_of(options.server, options.out) as sampler:
        env = sampler.update_env(rollserve.EnvSpec(options.env, num_rows=16, multi_agent="parallel"))
        team = Team(env, options.seed)
        title, label = f"Independent PPO learns {options.env} through Rollserve", "mean return of an agent and episode"
        run = TrainingRun(options, title, team.save, label)
        mean_return = train(sampler, team, run, options.steps, options.target)
        run.save()
        print(f"evaluation: {sampler.evaluate(100)}")
        if options.video:
            episode = sampler.multi_agent.evaluate(1, return_episodes=True).episodes
            save_gif(options.video, list(frames_of(episode)), fps=8)
    return 0 if mean_return >= options.target or options.target == float("inf") else 1


if __name__ == "__main__":
    sys.exit(main())
