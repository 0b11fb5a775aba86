"""Tianshou: its collector, which fills a buffer of arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy, ProbabilisticActorPolicy
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, ShmemVectorEnv
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic
from tianshou.utils.net.discrete import DiscreteActor
from tianshou.utils.torch_utils import policy_within_training_step
from torch.distributions import Independent, Normal

from benchmarks.peers.runs.common.environments import env_factories, make_env
from benchmarks.peers.runs.common.measuring import run
from benchmarks.peers.runs.common.policy import HIDDEN_SIZES

_VECTOR_ENVS = {"dummy": DummyVectorEnv, "shmem": ShmemVectorEnv}


def _policy(workload: str) -> Any:
    env = make_env(workload)
    shape = env.observation_space.shape
    network = Net(state_shape=shape, hidden_sizes=list(HIDDEN_SIZES), activation=torch.nn.Tanh)
    if workload == "w1":
        actor = DiscreteActor(preprocess_net=network, action_shape=2, softmax_output=False)
        return DiscreteActorPolicy(actor=actor, action_space=env.action_space)
    return ProbabilisticActorPolicy(
        actor=ContinuousActorProbabilistic(preprocess_net=network, action_shape=env.action_space.shape, unbounded=True),
        dist_fn=lambda parameters: Independent(Normal(*parameters), 1),
        action_space=env.action_space,
        action_bound_method="clip",
    )


@contextlib.contextmanager
def collecting(
    workload: str, vectorization: str, num_rows: int, num_fragment_steps: int
) -> Iterator[Callable[[], int]]:
    """Set up a collector whose calls make `num_fragment_steps` steps of each row."""
    torch.set_num_threads(1)
    torch.distributions.Distribution.set_default_validate_args(False)
    env = _VECTOR_ENVS[vectorization](env_factories(workload, num_rows))
    policy = _policy(workload)
    num_steps = num_rows * num_fragment_steps
    collector = Collector(policy, env, VectorReplayBuffer(2 * num_steps, num_rows), raise_on_nan_in_buffer=False)
    collector.reset()

    def collect() -> int:
        collected = collector.collect(n_step=num_steps).n_collected_steps
        collector.reset_buffer(keep_statistics=True)
        return int(collected)

    with policy_within_training_step(policy):
        yield collect
    env.close()


if __name__ == "__main__":
    run(collecting, ("tianshou", "torch", "gymnasium", "mujoco"))
