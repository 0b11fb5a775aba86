"""The bare loop of a workload: `python -m benchmarks.service.processes.bare_loop WORKLOAD SEED NUM_ROWS`.

Runs the same vector environment and the same policy, by the server's own code for agents, in a plain process: no Ray,
no messages, no gateway. The steps are written into columns, as a trainer would, and overwritten by later ones.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import ale_py
import envpool
import gymnasium
import numpy as np

import rollserve
from benchmarks.service.workloads.specs import ITERATIONS, SAMPLING, SamplingSpec
from benchmarks.shared.commands import answer_commands
from rollserve_server.agents import AgentSpec, MlpSpec, RandomSpec, build_agent
from rollserve_server.envs.making import make_env

__all__: list[str] = []

_NUM_COLUMN_STEPS = 64


class _BareLoop:
    """A vector environment, a policy, and columns for the last steps of each row."""

    def __init__(self, spec: SamplingSpec, seed: int, num_rows: int) -> None:
        self._env = _vector_env(spec, seed, num_rows)
        self._num_rows = num_rows
        together = spec.env.vectorization != "rows"
        self._agent = build_agent(_agent_spec(spec.agent), *_row_spaces(self._env), num_rows, together=together)
        self._generator = np.random.default_rng(seed)
        self._noise = np.empty((0, num_rows, self._agent.noise_width))
        self._columns: dict[str, np.ndarray] = {}
        # EnvPool's seed is an argument of its constructor.
        seeds = {} if spec.env.vectorization == "envpool" else {"seed": seed}
        self._observations, _ = self._env.reset(**seeds)

    def run(self, num_steps: int) -> dict[str, float]:
        """Make at least `num_steps` steps of all rows together; report their number, wall time and CPU time."""
        began, cpu_began = time.perf_counter(), time.process_time()
        num_made_steps = 0
        while num_made_steps < num_steps:
            num_made_steps += self._fill_columns(_NUM_COLUMN_STEPS)
        return {
            "num_steps": num_made_steps,
            "seconds": time.perf_counter() - began,
            "cpu_seconds": time.process_time() - cpu_began,
        }

    def iterate(self, num_steps: int, num_iterations: int) -> dict[str, Any]:
        """Fill columns of `num_steps` steps of all rows together, again and again; report the seconds of each time.

        A step in which a row only resets does not count, so the seconds are scaled to `num_steps` steps that count.
        """
        seconds = []
        for _ in range(num_iterations):
            began = time.perf_counter()
            num_made_steps = self._fill_columns(num_steps // self._num_rows)
            seconds.append((time.perf_counter() - began) * num_steps / num_made_steps)
        return {"seconds": seconds}

    def _fill_columns(self, num_row_steps: int) -> int:
        """Fill columns of `num_row_steps` steps; return the number of steps, without those in which a row resets."""
        env, agent, observations = self._env, self._agent, self._observations
        if num_row_steps != len(self._noise):
            self._noise = np.empty((num_row_steps, *self._noise.shape[1:]))
            self._columns = {}
        agent.draw_noise(self._generator, self._noise.reshape(-1, agent.noise_width))
        num_ends = 0
        for step in range(num_row_steps):
            (actions,), infos = agent.act((observations,), self._noise[step])
            self._write(step, {"observations": observations, "actions": actions, **infos})
            observations, rewards, terminated, truncated, _ = env.step(actions)
            self._write(step, {"rewards": rewards, "terminated": terminated, "truncated": truncated})
            num_ends += int(np.count_nonzero(terminated | truncated))
        self._observations = observations
        return num_row_steps * self._num_rows - num_ends

    def _write(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        for name, value in values.items():
            if name not in self._columns:
                shape = self._num_rows, len(self._noise), *value.shape[1:]
                self._columns[name] = np.empty(shape, value.dtype)
            self._columns[name][:, step] = value


def _vector_env(spec: SamplingSpec, seed: int, num_rows: int) -> Any:
    """Return the vector environment. A reset takes a step of its row."""
    env = spec.env
    match env.vectorization:
        case "native":
            gymnasium.register_envs(ale_py)
            return gymnasium.make_vec(env.id, num_rows, "vector_entry_point", **dict[str, Any](env.kwargs))
        case "rows":
            return gymnasium.vector.SyncVectorEnv([lambda: make_env(env)] * num_rows, copy=False)
        case "envpool":
            return envpool.make_gymnasium(env.id, num_envs=num_rows, num_threads=1, seed=seed, **env.kwargs)
        case _:
            raise ValueError(f"vectorization: expected native, rows or envpool, got {env.vectorization!r}")


def _row_spaces(env: Any) -> tuple[Any, Any]:
    """Return the spaces of one row's observations and actions, which EnvPool does not call single."""
    if isinstance(env, gymnasium.vector.VectorEnv):
        return env.single_observation_space, env.single_action_space
    return env.observation_space, env.action_space


def _agent_spec(agent: rollserve.Agent) -> AgentSpec:
    """Return the agent in the server's form."""
    match agent:
        case rollserve.MlpAgent():
            return MlpSpec(agent.layer_sizes, agent.activation, agent.head, agent.parameters)
        case rollserve.RandomAgent():
            return RandomSpec()
        case _:
            raise ValueError(f"agent: expected an MlpAgent or a RandomAgent, got {agent}")


def main() -> None:
    """Answer commands until the end of standard input."""
    workload, seed, num_rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    spec = SAMPLING[workload] if workload in SAMPLING else ITERATIONS[workload][0]
    bare_loop = _BareLoop(spec, seed, num_rows)
    answer_commands({"run": bare_loop.run, "iterate": bare_loop.iterate})


if __name__ == "__main__":
    main()
