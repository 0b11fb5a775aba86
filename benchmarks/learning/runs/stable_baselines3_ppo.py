"""Stable-Baselines3's PPO, with environments in its own process, which is its fastest way for CartPole."""

from __future__ import annotations

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from benchmarks.learning.catalogue import Task
from benchmarks.learning.runs.progress import Progress, run
from benchmarks.learning.runs.stable_baselines3_callback import ReportingCallback


def train(task: Task, seed: int, progress: Progress, _: str) -> None:
    """Learn the task."""
    torch.set_num_threads(1)
    settings = task.settings
    rate = settings["learning_rate"]
    env: VecEnv = make_vec_env(task.env, settings["num_rows"], seed=seed)
    if task.algorithm == "normalized_ppo":
        env = VecNormalize(env, gamma=settings["gamma"])
    model = PPO(
        "MlpPolicy",
        env,
        learning_rate=lambda remaining: remaining * rate,
        n_steps=settings["row_steps"],
        batch_size=settings["minibatch_size"],
        n_epochs=settings["num_epochs"],
        gamma=settings["gamma"],
        gae_lambda=settings["lam"],
        clip_range=settings["clip"],
        ent_coef=settings["entropy_bonus"],
        vf_coef=settings["value_weight"],
        max_grad_norm=settings["max_gradient_norm"],
        policy_kwargs={"net_arch": [64, 64], "activation_fn": torch.nn.Tanh},
        seed=seed,
        device="cpu",
    )
    model.learn(task.max_steps, ReportingCallback(progress))


if __name__ == "__main__":
    run(train, ("stable-baselines3", "torch", "gymnasium", "numpy"))
