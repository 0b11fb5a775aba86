"""Vector environments of gymnasium's own, stepped by a plain loop in the trainer's process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium

from benchmarks.peers.runs.common import TrainerSide, envs, run

_NUM_CALL_STEPS = 16


@contextlib.contextmanager
def collecting(workload: str, vectorization: str, num_rows: int) -> Iterator[Callable[[], int]]:
    """So many rows, stepped as the vectorization says."""
    env = _vector_env(workload, vectorization, num_rows)
    observations, _ = env.reset(seed=0)
    trainer = TrainerSide(workload, observations)

    def collect() -> int:
        nonlocal observations
        num_steps = 0
        for _ in range(_NUM_CALL_STEPS):
            observations, *results, _ = env.step(trainer.act(observations))
            num_steps += trainer.keep(*results)
        return num_steps

    yield collect
    env.close()


def _vector_env(workload: str, vectorization: str, num_rows: int) -> Any:
    match vectorization:
        case "native":
            return gymnasium.make_vec("CartPole-v1", num_rows, "vector_entry_point")
        case "sync":
            # The columns are copies already.
            return gymnasium.vector.SyncVectorEnv(envs(workload, num_rows), copy=False)
        case _:
            return gymnasium.vector.AsyncVectorEnv(envs(workload, num_rows), copy=False)


if __name__ == "__main__":
    run(collecting, ("gymnasium", "mujoco", "ale-py"))
