"""The bare loop of a workload: `python -m benchmarks.service.bare WORKLOAD SEED`.

The same vector environment and the same policy, by the server's own code for agents, in a plain process: no Ray, no
messages, no gateway. What the loop makes is written into columns as a trainer would want them, and overwritten.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import envpool
import gymnasium
import numpy as np

import rollserve
from benchmarks.service.children import Child, answer_commands
from benchmarks.service.workloads import SAMPLING, SamplingWorkload
from rollserve.agents import Agent
from rollserve_server.agents import AgentSpec, MlpSpec, RandomSpec, build_agent
from rollserve_server.envs.making import make_env

__all__ = ["run_bare_loops"]

_NUM_COLUMN_STEPS = 64


def run_bare_loops(loops: list[Child], num_steps: int) -> dict[str, float]:
    """Has all processes make so many steps in all; returns their rate, and the CPU seconds that a million took."""
    for loop in loops:
        loop.tell("run", num_steps=num_steps // len(loops))
    answers = [loop.answer() for loop in loops]
    num_made = sum(answer["num_steps"] for answer in answers)
    return {
        "bare_steps_per_second": num_made / max(answer["seconds"] for answer in answers),
        "bare_cpu_seconds_per_million_steps": sum(answer["cpu_seconds"] for answer in answers) / num_made * 1e6,
    }


class _BareLoop:
    """Steps a vector environment, and keeps what came of the last steps."""

    def __init__(self, workload: SamplingWorkload, seed: int) -> None:
        self._env = _vector_env(workload, seed)
        self._num_rows = workload.num_rows
        spaces, together = _row_spaces(self._env), workload.env.vectorization != "rows"
        self._agent = build_agent(_agent_spec(workload.agent), *spaces, workload.num_rows, together=together)
        self._generator = np.random.default_rng(seed)
        self._noise = np.empty((_NUM_COLUMN_STEPS, workload.num_rows, self._agent.noise_width))
        self._columns: dict[str, np.ndarray] = {}
        # EnvPool takes its seed when it is made.
        seeds = {} if workload.env.vectorization == "envpool" else {"seed": seed}
        self._observations, _ = self._env.reset(**seeds)

    def run(self, num_steps: int) -> dict[str, float]:
        """Makes at least so many steps of all rows together."""
        began, cpu_began = time.perf_counter(), time.process_time()
        num_made = 0
        while num_made < num_steps:
            num_made += self._fill_columns()
        return {
            "num_steps": num_made,
            "seconds": time.perf_counter() - began,
            "cpu_seconds": time.process_time() - cpu_began,
        }

    def _fill_columns(self) -> int:
        """Fills all columns; returns how many steps were made: a row that only begins anew makes none."""
        env, agent, observations = self._env, self._agent, self._observations
        agent.draw_noise(self._generator, self._noise.reshape(-1, agent.noise_width))
        num_ended = 0
        for step in range(_NUM_COLUMN_STEPS):
            (actions,), infos = agent.act((observations,), self._noise[step])
            self._write(step, {"observations": observations, "actions": actions, **infos})
            observations, rewards, terminated, truncated, _ = env.step(actions)
            self._write(step, {"rewards": rewards, "terminated": terminated, "truncated": truncated})
            num_ended += int(np.count_nonzero(terminated | truncated))
        self._observations = observations
        return _NUM_COLUMN_STEPS * self._num_rows - num_ended

    def _write(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        for name, value in values.items():
            if name not in self._columns:
                self._columns[name] = np.empty((self._num_rows, _NUM_COLUMN_STEPS, *value.shape[1:]), value.dtype)
            self._columns[name][:, step] = value


def _vector_env(workload: SamplingWorkload, seed: int) -> Any:
    """The vector environment, whose rows take a step to begin anew."""
    env = workload.env
    match env.vectorization:
        case "native":
            return gymnasium.make_vec(env.id, workload.num_rows, "vector_entry_point", **dict[str, Any](env.kwargs))
        case "rows":
            return gymnasium.vector.SyncVectorEnv([lambda: make_env(env)] * workload.num_rows, copy=False)
        case "envpool":
            return envpool.make_gymnasium(env.id, num_envs=workload.num_rows, num_threads=1, seed=seed, **env.kwargs)
        case _:
            raise ValueError(f"{env.vectorization!r} came, a way of stepping rows that has a bare loop was expected")


def _row_spaces(env: Any) -> tuple[Any, Any]:
    """The spaces of one row's observations and actions, which EnvPool's environments call those of all."""
    if isinstance(env, gymnasium.vector.VectorEnv):
        return env.single_observation_space, env.single_action_space
    return env.observation_space, env.action_space


def _agent_spec(agent: Agent) -> AgentSpec:
    """The agent as the server's own code takes it."""
    match agent:
        case rollserve.MlpAgent():
            return MlpSpec(agent.layer_sizes, agent.activation, agent.head, agent.parameters)
        case rollserve.RandomAgent():
            return RandomSpec()
        case _:
            raise ValueError(f"{agent} came, an MlpAgent or a RandomAgent was expected")


def main() -> None:
    """Answers commands."""
    loop = _BareLoop(SAMPLING[sys.argv[1]], int(sys.argv[2]))
    answer_commands({"run": loop.run})


if __name__ == "__main__":
    main()
