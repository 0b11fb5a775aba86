"""RLlib's PPO, with two processes that step half of the environments each."""

from __future__ import annotations

import math
import os
import statistics
from typing import Any

os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a warning of Ray's about GPUs

import numpy as np
import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from benchmarks.learning.catalogue import Task
from benchmarks.learning.runs.progress import Progress, run

_NUM_RUNNERS = 2


def _log_return(*, episode: Any, metrics_logger: Any, **_: Any) -> None:
    """Log each return: RLlib's own mean is over the last episodes of each runner, as of the last iteration."""
    metrics_logger.log_value("all_returns", episode.get_return(), reduce="item_series")


def train(task: Task, seed: int, progress: Progress, _: str) -> None:
    """Learn the task."""
    torch.set_num_threads(1)
    settings = task.settings
    ray.init(num_cpus=_NUM_RUNNERS + 1, include_dashboard=False, log_to_driver=False)
    config = (
        PPOConfig()
        .environment(task.env)
        .env_runners(
            num_env_runners=_NUM_RUNNERS,
            num_envs_per_env_runner=settings["num_rows"] // _NUM_RUNNERS,
            rollout_fragment_length=settings["row_steps"],
        )
        .learners(num_learners=0)
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=[64, 64], fcnet_activation="tanh", head_fcnet_hiddens=[], vf_share_layers=False
            )
        )
        .training(
            train_batch_size_per_learner=settings["num_rows"] * settings["row_steps"],
            minibatch_size=settings["minibatch_size"],
            num_epochs=settings["num_epochs"],
            lr=[[0, settings["learning_rate"]], [task.max_steps, 0.0]],
            gamma=settings["gamma"],
            lambda_=settings["lam"],
            clip_param=settings["clip"],
            entropy_coeff=settings["entropy_bonus"],
            vf_loss_coeff=settings["value_weight"],
            vf_clip_param=math.inf,
            use_kl_loss=False,
            grad_clip=settings["max_gradient_norm"],
        )
        .callbacks(on_episode_end=_log_return)
        .reporting(min_sample_timesteps_per_iteration=0)
        .debugging(seed=seed)
    )
    algorithm = config.build_algo()
    returns: list[float] = []
    progress.start()
    while True:
        found = algorithm.train()["env_runners"]
        num_steps = int(found["num_env_steps_sampled_lifetime"])
        ended = np.atleast_1d(found.get("all_returns", ()))  # RLlib makes a number of a single one
        returns = [*returns, *ended.tolist()][-100:]
        if progress.report(num_steps, statistics.fmean(returns) if returns else math.nan, len(returns)):
            break
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    run(train, ("ray", "torch", "gymnasium", "numpy"))
