"""RLlib: fragments of episodes from its env runners (new stack), fetched to the driver and made arrays there."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import ray
from ray import tune
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv

from benchmarks.peers.runs.common.environments import make_env
from benchmarks.peers.runs.common.measuring import run
from benchmarks.peers.runs.common.policy import HIDDEN_SIZES

_MAX_REQUESTS = 2
_WAIT_SECONDS = 0.02
_POLICY = "main"
"""Policy of all agents, where there are several."""


@contextlib.contextmanager
def collecting(
    workload: str, call: str, rows: str, num_workers: int, num_rows: int, num_fragment_steps: int
) -> Iterator[Callable[[], int]]:
    """Set up a group of env runners.

    With the call "async", each runner has up to two requests in flight, as in IMPALA; with "sync", each call waits for
    all runners, as in PPO.
    """
    variables = {name: os.environ[name] for name in ("PYTHONPATH", "OMP_NUM_THREADS") if name in os.environ}
    ray.init(
        num_cpus=num_workers + 1,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
        object_store_memory=1 << 30,
        runtime_env={"env_vars": variables},
    )
    group = EnvRunnerGroup(config=_config(workload, rows, num_workers, num_rows, num_fragment_steps))

    def collect() -> int:
        if call == "sync":
            return sum(map(_to_arrays, group.foreach_env_runner(_sample, local_env_runner=False)))
        group.foreach_env_runner_async(_sample)
        ready = group.fetch_ready_async_reqs(timeout_seconds=_WAIT_SECONDS)
        return sum(_to_arrays(episodes) for _, episodes in ready)

    yield collect
    group.stop()
    ray.shutdown()


def _config(workload: str, rows: str, num_workers: int, num_rows: int, num_fragment_steps: int) -> PPOConfig:
    name, options, config = "rollserve-benchmark", {}, PPOConfig()
    if rows == "multi_agent":
        tune.register_env(name, lambda _: ParallelPettingZooEnv(make_env(workload)))
        config.multi_agent(policies={_POLICY}, policy_mapping_fn=lambda *_, **__: _POLICY)
    else:
        options["gym_env_vectorize_mode"] = rows
        if rows == "vector_entry_point":
            name = "CartPole-v1"
        else:
            tune.register_env(name, lambda _: make_env(workload))
    model = DefaultModelConfig(fcnet_hiddens=list(HIDDEN_SIZES), fcnet_activation="tanh", vf_share_layers=False)
    return (
        config.environment(name)
        .env_runners(
            num_env_runners=num_workers,
            num_envs_per_env_runner=num_rows,
            rollout_fragment_length=num_fragment_steps,
            max_requests_in_flight_per_env_runner=_MAX_REQUESTS,
            **options,
        )
        .rl_module(model_config=model)
        .training(train_batch_size=num_fragment_steps * num_rows * num_workers)
    )


def _sample(runner: Any) -> Any:
    return runner.sample()


def _to_arrays(episodes: Any) -> int:
    """Make arrays of all columns; return the number of steps."""
    num_steps = 0
    for episode in episodes:
        episode.to_numpy()
        is_many = isinstance(episode, MultiAgentEpisode)
        for each in episode.agent_episodes.values() if is_many else (episode,):
            each.get_observations(), each.get_actions(), each.get_rewards()
            each.extra_model_outputs.get("action_logp")
        num_steps += episode.env_steps()
    return num_steps


if __name__ == "__main__":
    run(collecting, ("ray", "torch", "gymnasium", "mujoco", "mpe2", "pettingzoo"))
