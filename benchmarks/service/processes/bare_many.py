"""A plain loop over PettingZoo: `python -m benchmarks.service.processes.bare_many SEED`.

Runs simple_spread and the policy of w8-many, by the server's own code for agents, in a plain process: no Ray, no
messages, no gateway. The policy is evaluated once per step, for all agents, and steps are written into columns.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from benchmarks.service.workloads.many_agents import AGENT, SPREAD
from benchmarks.shared.commands import answer_commands
from rollserve_server.agents import MlpSpec, build_agent

__all__: list[str] = []

_NUM_COLUMN_STEPS = 64


class _BareLoop:
    """An environment, a policy, and columns for the last steps of each agent."""

    def __init__(self, seed: int) -> None:
        from mpe2 import simple_spread_v3

        self._env: Any = simple_spread_v3.parallel_env(**dict(SPREAD.kwargs))
        agents = self._env.possible_agents
        spaces = self._env.observation_space(agents[0]), self._env.action_space(agents[0])
        spec = MlpSpec(AGENT.layer_sizes, AGENT.activation, AGENT.head, AGENT.parameters)
        self._agent = build_agent(spec, *spaces, len(agents))
        self._generator, self._seed = np.random.default_rng(seed), seed << 20
        self._noise = np.empty((_NUM_COLUMN_STEPS, len(agents), self._agent.noise_width))
        self._columns: dict[str, np.ndarray] = {}

    def run(self, num_steps: int) -> dict[str, float]:
        """Make at least `num_steps` environment steps in whole episodes; report their number, wall and CPU time."""
        began, cpu_began = time.perf_counter(), time.process_time()
        num_made_steps = 0
        while num_made_steps < num_steps:
            num_made_steps += self._run_episode(num_made_steps)
        return {
            "num_steps": num_made_steps,
            "seconds": time.perf_counter() - began,
            "cpu_seconds": time.process_time() - cpu_began,
        }

    def _run_episode(self, first_step: int) -> int:
        env, self._seed = self._env, self._seed + 1
        observations, _ = env.reset(seed=self._seed)
        step = first_step
        while env.agents:
            position = step % _NUM_COLUMN_STEPS
            if position == 0:
                self._agent.draw_noise(self._generator, self._noise.reshape(-1, self._agent.noise_width))
            stacked = np.stack([observations[agent] for agent in env.agents])
            (actions,), infos = self._agent.act((stacked,), self._noise[position])
            acting = list(env.agents)
            observations, rewards, terminated, truncated, _ = env.step(dict(zip(acting, actions, strict=True)))
            values = {"observations": stacked, "actions": actions, **infos}
            for name, by_agent in (("rewards", rewards), ("terminated", terminated), ("truncated", truncated)):
                values[name] = np.array([by_agent[agent] for agent in acting])
            self._write(position, values)
            step += 1
        return step - first_step

    def _write(self, position: int, values: dict[str, np.ndarray]) -> None:
        for name, value in values.items():
            if name not in self._columns:
                self._columns[name] = np.empty((_NUM_COLUMN_STEPS, *value.shape), value.dtype)
            self._columns[name][position] = value


def main() -> None:
    """Answer commands until the end of standard input."""
    answer_commands({"run": _BareLoop(int(sys.argv[1])).run})


if __name__ == "__main__":
    main()
