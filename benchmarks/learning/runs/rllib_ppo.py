"""RLlib's PPO (new stack), with two env runners on Ray, as many as Rollserve has workers, and the learner here.

RLlib's own settings that others do not have are turned off: the loss of the divergence, and the bound of the loss of
values. The rest is as for everybody.
"""

from __future__ import annotations

import logging
import os
import statistics
from collections import defaultdict, deque
from typing import Any

import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from benchmarks.learning.catalogue import Task
from benchmarks.learning.runs.progress import Progress, run

_NUM_RUNNERS = 2
_RETURNS = "returns"


class _Returns(RLlibCallback):
    """Records the return of each episode that ends: RLlib's own mean is not of the last 100 episodes of all runners."""

    def __init__(self) -> None:
        self._returns = defaultdict[str, float](float)

    def on_sample_end(self, *, metrics_logger: Any, samples: Any, **_: Any) -> None:
        """Add up the parts of episodes."""
        for part in samples:
            self._returns[part.id_] += part.get_return()
            if part.is_done:
                metrics_logger.log_value(_RETURNS, self._returns.pop(part.id_), reduce="item_series")


def train(task: Task, seed: int, progress: Progress, _: str) -> None:
    """Learn the task."""
    torch.set_num_threads(1)
    variables = {name: os.environ[name] for name in ("PYTHONPATH", "OMP_NUM_THREADS") if name in os.environ}
    ray.init(
        num_cpus=_NUM_RUNNERS + 1,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
        object_store_memory=1 << 30,
        runtime_env={"env_vars": variables},
    )
    algorithm = _config(task, seed).build_algo()
    progress.start()
    returns, is_done = deque[float](maxlen=100), False
    while not is_done:
        sampled = algorithm.train()["env_runners"]
        ended = sampled.get(_RETURNS)
        returns += ended if isinstance(ended, list) else ()  # NaN if no episode has ended
        mean_return = statistics.fmean(returns) if returns else float("nan")
        is_done = progress.report(int(sampled["num_env_steps_sampled_lifetime"]), mean_return, len(returns))
    algorithm.stop()
    ray.shutdown()


def _config(task: Task, seed: int) -> PPOConfig:
    settings = task.settings
    rows, steps, rate = settings["num_rows"], settings["row_steps"], settings["learning_rate"]
    model = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
    return (
        PPOConfig()
        .environment(task.env)
        .env_runners(
            num_env_runners=_NUM_RUNNERS,
            num_envs_per_env_runner=rows // _NUM_RUNNERS,
            rollout_fragment_length=steps,
        )
        .rl_module(model_config=model)
        .callbacks(_Returns)
        .training(
            train_batch_size=rows * steps,
            minibatch_size=settings["minibatch_size"],
            num_epochs=settings["num_epochs"],
            lr=[[0, rate], [task.max_steps, 0.0]],
            gamma=settings["gamma"],
            lambda_=settings["lam"],
            clip_param=settings["clip"],
            entropy_coeff=settings["entropy_bonus"],
            vf_loss_coeff=settings["value_weight"],
            vf_clip_param=float("inf"),
            use_kl_loss=False,
            grad_clip=settings["max_gradient_norm"],
            grad_clip_by="global_norm",
        )
        .debugging(seed=seed, log_level="ERROR")
    )


if __name__ == "__main__":
    run(train, ("ray", "torch", "gymnasium"))
