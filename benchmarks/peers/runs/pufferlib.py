"""PufferLib: its vectorization of gymnasium's environments, with a plain loop in the trainer's process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pufferlib.emulation
import pufferlib.vector

from benchmarks.peers.runs.common.environments import make_env
from benchmarks.peers.runs.common.measuring import run
from benchmarks.peers.runs.common.trainer import NUM_CALL_STEPS, TrainerSide


def _make_env(workload: str, buf: Any = None, seed: int = 0) -> pufferlib.emulation.GymnasiumPufferEnv:
    return pufferlib.emulation.GymnasiumPufferEnv(env=make_env(workload), buf=buf, seed=seed)


@contextlib.contextmanager
def collecting(workload: str, backend: str, num_workers: int, num_rows: int) -> Iterator[Callable[[], int]]:
    """Set up a backend, serial or multiprocessing, with `num_rows` rows of all workers together."""
    options: dict[str, Any] = {"backend": pufferlib.vector.Serial}
    if backend == "multiprocessing":
        options = {"backend": pufferlib.vector.Multiprocessing, "num_workers": num_workers, "overwork": True}
    env = pufferlib.vector.make(partial(_make_env, workload), num_envs=num_rows, **options)
    env.async_reset(0)
    observations = np.array(env.recv()[0])
    trainer = TrainerSide(workload, observations)

    def collect() -> int:
        nonlocal observations
        num_steps = 0
        for _ in range(NUM_CALL_STEPS):
            actions = trainer.act(observations)
            env.send(np.clip(actions, -1, 1) if workload == "w2" else actions.astype(np.int32))
            observations, rewards, terminated, truncated, *_ = env.recv()
            num_steps += trainer.store(rewards, terminated, truncated)
        return num_steps

    yield collect
    env.close()


if __name__ == "__main__":
    run(collecting, ("pufferlib", "gymnasium", "mujoco", "ale-py"))
