"""Stable-Baselines3: rollouts of PPO in its buffer of arrays. The policy computes values, too."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from benchmarks.peers.runs.common.environments import env_factories
from benchmarks.peers.runs.common.measuring import run
from benchmarks.peers.runs.common.policy import HIDDEN_SIZES

_VECTOR_ENVS = {"dummy": DummyVecEnv, "subproc": partial(SubprocVecEnv, start_method="spawn")}


def _served(address: str) -> VecEnv:
    import rollserve  # here, because only this way needs it

    return rollserve.connect(address).sb3_vec_env(seed=0)


@contextlib.contextmanager
def collecting(
    workload: str, vectorization: str, num_rows: int, num_fragment_steps: int, address: str = ""
) -> Iterator[Callable[[], int]]:
    """Set up PPO with rollouts of `num_fragment_steps` steps of each row, which may be those of a server."""
    torch.set_num_threads(1)
    env = _served(address) if address else _VECTOR_ENVS[vectorization](env_factories(workload, num_rows))
    if env.num_envs != num_rows:
        raise ValueError(f"num_rows: expected {num_rows}, got {env.num_envs}")
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
