"""Stable-Baselines3: rollouts of PPO in its buffer of arrays. The policy computes values, too."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from benchmarks.peers.runs.common.environments import env_factories
from benchmarks.peers.runs.common.measuring import run
from benchmarks.peers.runs.common.policy import HIDDEN_SIZES

_VECTOR_ENVS = {"dummy": DummyVecEnv, "subproc": partial(SubprocVecEnv, start_method="spawn")}


@contextlib.contextmanager
def collecting(
    workload: str, vectorization: str, num_rows: int, num_fragment_steps: int
) -> Iterator[Callable[[], int]]:
    """Set up PPO with rollouts of `num_fragment_steps` steps of each row."""
    torch.set_num_threads(1)
    env = _VECTOR_ENVS[vectorization](env_factories(workload, num_rows))
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
