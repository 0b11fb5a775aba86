"""What PPO of Stable-Baselines3 collects into its buffer of arrays. Its policy gives a value, too."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from benchmarks.peers.runs.common import HIDDEN_SIZES, envs, run

_VECTOR_ENVS = {"dummy": DummyVecEnv, "subproc": partial(SubprocVecEnv, start_method="spawn")}


@contextlib.contextmanager
def collecting(
    workload: str, vectorization: str, num_rows: int, num_fragment_steps: int
) -> Iterator[Callable[[], int]]:
    """So many rows, and so many steps of each in a rollout."""
    torch.set_num_threads(1)
    env = _VECTOR_ENVS[vectorization](envs(workload, num_rows))
    num_steps = num_rows * num_fragment_steps
    network = {"net_arch": list(HIDDEN_SIZES), "activation_fn": torch.nn.Tanh}
    model = PPO("MlpPolicy", env, n_steps=num_fragment_steps, batch_size=num_steps, device="cpu", policy_kwargs=network)
    _, callback = model._setup_learn(10**9)

    def collect() -> int:
        model.collect_rollouts(model.env, callback, model.rollout_buffer, num_fragment_steps)
        return num_steps

    yield collect
    env.close()


if __name__ == "__main__":
    run(collecting, ("stable-baselines3", "torch", "gymnasium", "mujoco"))
