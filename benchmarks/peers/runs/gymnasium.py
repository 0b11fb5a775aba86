"""gymnasium: its vector environments, stepped by a plain loop in the trainer's process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import ale_py
import gymnasium

from benchmarks.peers.runs.common.environments import env_factories
from benchmarks.peers.runs.common.measuring import run
from benchmarks.peers.runs.common.trainer import NUM_CALL_STEPS, TrainerSide


@contextlib.contextmanager
def collecting(
    workload: str, vectorization: str, num_rows: int, num_threads: int | None = None
) -> Iterator[Callable[[], int]]:
    """Set up a vector environment: native, SyncVectorEnv ("sync") or AsyncVectorEnv ("async").

    `num_threads` is the number of threads of ALE's native vector environment.
    """
    env = _vector_env(workload, vectorization, num_rows, num_threads)
    observations, _ = env.reset(seed=0)
    trainer = TrainerSide(workload, observations)

    def collect() -> int:
        nonlocal observations
        num_steps = 0
        for _ in range(NUM_CALL_STEPS):
            observations, *results, _ = env.step(trainer.act(observations))
            num_steps += trainer.store(*results)
        return num_steps

    yield collect
    env.close()


def _vector_env(workload: str, vectorization: str, num_rows: int, num_threads: int | None) -> Any:
    match vectorization:
        case "native" if workload == "w3":
            gymnasium.register_envs(ale_py)
            return gymnasium.make_vec("ALE/Pong-v5", num_rows, "vector_entry_point", num_threads=num_threads)
        case "native":
            return gymnasium.make_vec("CartPole-v1", num_rows, "vector_entry_point")
        case "sync":
            # Without copies: the trainer's columns are copies already.
            return gymnasium.vector.SyncVectorEnv(env_factories(workload, num_rows), copy=False)
        case _:
            return gymnasium.vector.AsyncVectorEnv(env_factories(workload, num_rows), copy=False)


if __name__ == "__main__":
    run(collecting, ("gymnasium", "mujoco", "ale-py"))
