"""Stable-Baselines3's SAC, with environments in its own process."""

from __future__ import annotations

import torch
from stable_baselines3 import SAC
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.learning.catalogue import Task
from benchmarks.learning.runs.progress import Progress, run
from benchmarks.learning.runs.stable_baselines3_callback import ReportingCallback


def train(task: Task, seed: int, progress: Progress, _: str) -> None:
    """Learn the task."""
    torch.set_num_threads(1)
    settings = task.settings
    model = SAC(
        "MlpPolicy",
        make_vec_env(task.env, settings["num_rows"], seed=seed),
        learning_rate=settings["learning_rate"],
        buffer_size=settings["buffer_size"],
        learning_starts=settings["random_steps"],
        batch_size=settings["batch_size"],
        tau=settings["tau"],
        gamma=settings["gamma"],
        train_freq=settings["row_steps"],
        gradient_steps=round(settings["updates_per_step"] * settings["row_steps"] * settings["num_rows"]),
        policy_kwargs={"net_arch": [settings["hidden_size"]] * 2},
        seed=seed,
        device="cpu",
    )
    model.learn(task.max_steps, ReportingCallback(progress))


if __name__ == "__main__":
    run(train, ("stable-baselines3", "torch", "gymnasium", "numpy"))
