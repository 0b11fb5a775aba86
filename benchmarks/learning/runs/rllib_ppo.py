"""RLlib's PPO, with two processes that step half of the environments each."""

from __future__ import annotations

import math
import os

os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a warning of Ray's about GPUs

import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from benchmarks.learning.catalogue import Task
from benchmarks.learning.runs.progress import Progress, run

_NUM_RUNNERS = 2


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
        .reporting(metrics_num_episodes_for_smoothing=100, min_sample_timesteps_per_iteration=0)
        .debugging(seed=seed)
    )
    algorithm = config.build_algo()
    num_steps = num_episodes = 0
    progress.start()
    while True:
        found = algorithm.train()["env_runners"]
        num_steps = int(found["num_env_steps_sampled_lifetime"])
        num_episodes += int(found.get("num_episodes", 0))
        if progress.report(num_steps, float(found.get("episode_return_mean", math.nan)), num_episodes):
            break
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    run(train, ("ray", "torch", "gymnasium", "numpy"))
