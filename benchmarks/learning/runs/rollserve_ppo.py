"""Rollserve: `examples/ppo_torch.py`, in this process; the server is another."""

from __future__ import annotations

import dataclasses

import ppo_torch
import torch

import rollserve
from benchmarks.learning.catalogue import Task
from benchmarks.learning.runs.progress import Progress, run


def train(task: Task, seed: int, progress: Progress, address: str) -> None:
    """Learn the task."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    settings = dataclasses.replace(ppo_torch.settings_of(task.env), **task.settings)
    with rollserve.connect(address) as sampler:
        num_rows = settings.num_rows // sampler.status().num_workers
        spaces = sampler.update_env(ppo_torch.spec_of(task.env, settings, num_rows))
        model = ppo_torch.ActorCritic(spaces.observation_space, spaces.action_space)
        learner = ppo_torch.Ppo(model, settings, seed)
        progress.start()
        report = lambda num_steps, mean_return, episodes, **_: progress.report(  # noqa: E731
            num_steps, mean_return, min(episodes, 100)
        )
        ppo_torch.train(sampler, learner, task.max_steps, target=task.target, report=report)


if __name__ == "__main__":
    run(train, ("rollserve", "torch", "numpy"))
