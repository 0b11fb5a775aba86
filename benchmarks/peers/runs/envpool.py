"""EnvPool: environments that threads step in C++, with a plain loop in the trainer's process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import envpool
import numpy as np

from benchmarks.peers.runs.common.measuring import run
from benchmarks.peers.runs.common.trainer import NUM_CALL_STEPS, TrainerSide

_IDS = {"w1": "CartPole-v1", "w2": "HalfCheetah-v5", "w3": "Pong-v5"}
_ATARI = {"frame_skip": 4, "stack_num": 4, "img_height": 84, "img_width": 84, "repeat_action_probability": 0.25}


@contextlib.contextmanager
def collecting(workload: str, num_rows: int, batch_size: int, num_threads: int) -> Iterator[Callable[[], int]]:
    """Set up a pool. With a batch size below the number of rows, it is asynchronous: it returns the first rows done."""
    options = _ATARI if workload == "w3" else {}
    env = envpool.make_gymnasium(
        _IDS[workload], num_envs=num_rows, batch_size=batch_size, num_threads=num_threads, seed=0, **options
    )
    action_dtype = env.action_space.dtype
    env.async_reset()
    observations, *_, infos = env.recv()
    trainer = TrainerSide(workload, observations)

    def collect() -> int:
        nonlocal observations, infos
        num_steps = 0
        for _ in range(NUM_CALL_STEPS):
            actions = trainer.act(observations).astype(action_dtype)
            if workload == "w2":
                np.clip(actions, -1, 1, out=actions)
            env.send(actions, infos["env_id"])
            observations, *results, infos = env.recv()
            num_steps += trainer.store(*results)
        return num_steps

    yield collect
    env.close()


if __name__ == "__main__":
    run(collecting, ("envpool",))
