"""TorchRL: its collectors, in this process or in several. Each batch is copied into numpy arrays."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical, Independent, Normal
from torchrl.collectors import Collector, MultiAsyncCollector, MultiSyncCollector
from torchrl.envs import GymWrapper, SerialEnv
from torchrl.modules import MLP, ProbabilisticActor

from benchmarks.peers.runs.common.environments import env_factories, make_env
from benchmarks.peers.runs.common.measuring import run
from benchmarks.peers.runs.common.policy import HIDDEN_SIZES

_COLUMNS = ("observation", "action", "action_log_prob", ("next", "reward"), ("next", "terminated"), ("next", "done"))


class _Gaussian(nn.Module):
    """Policy with means from a network, and standard deviations that do not depend on the observation."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = MLP(17, 6, num_cells=HIDDEN_SIZES, activation_class=nn.Tanh)
        self.log_std = nn.Parameter(torch.zeros(6))

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean = self.mean(observation.float())
        return mean, self.log_std.exp().expand_as(mean)


def _diagonal_normal(loc: torch.Tensor, scale: torch.Tensor) -> Independent:
    return Independent(Normal(loc, scale, validate_args=False), 1, validate_args=False)


def _policy(workload: str) -> ProbabilisticActor:
    if workload == "w1":
        network: nn.Module = MLP(4, 2, num_cells=HIDDEN_SIZES, activation_class=nn.Tanh)
        keys, distribution = ["logits"], Categorical
    else:
        network, keys, distribution = _Gaussian(), ["loc", "scale"], _diagonal_normal
    module = TensorDictModule(network, ["observation"], keys)
    return ProbabilisticActor(module, in_keys=keys, distribution_class=distribution, return_log_prob=True)


def _env(workload: str, rows: str, num_rows: int) -> Any:
    """Return the rows of one worker."""
    if rows == "one by one":
        return SerialEnv(num_rows, lambda: GymWrapper(make_env(workload), categorical_action_encoding=True))
    # TorchRL accepts no native vector environments of gymnasium: those reset in the step after an episode's end.
    mode = gymnasium.vector.AutoresetMode.DISABLED
    env = gymnasium.vector.SyncVectorEnv(env_factories(workload, num_rows), autoreset_mode=mode)
    return GymWrapper(env, categorical_action_encoding=True)


@contextlib.contextmanager
def collecting(
    workload: str,
    collector: str,
    rows: str,
    num_workers: int,
    num_rows: int,
    num_fragment_steps: int,
    updates: bool = False,
) -> Iterator[Callable[[], int]]:
    """Set up a collector whose batches have `num_fragment_steps` steps of each row.

    The collector is "single", in this process, or has workers, "sync" or "async". With `updates`, it gets the policy's
    weights before each batch.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    make = [partial(_env, workload, rows, num_rows)] * num_workers
    num_steps = num_rows * num_fragment_steps
    policy = _policy(workload)
    options = {"policy": policy, "total_frames": -1, "device": "cpu"}
    threads = {"num_threads": 1, "num_sub_threads": 1}
    match collector:
        case "single":
            running: Any = Collector(make[0], frames_per_batch=num_steps, **options)
        case "sync":
            num_steps *= num_workers
            running = MultiSyncCollector(make, frames_per_batch=num_steps, cat_results="stack", **options, **threads)
        case _:
            running = MultiAsyncCollector(make, frames_per_batch=num_steps, **options, **threads)
    batches = iter(running)

    def collect() -> int:
        if updates:
            with torch.no_grad():
                for parameter in policy.parameters():
                    parameter.mul_(0.999)
            running.update_policy_weights_()
        batch = next(batches)
        for name in _COLUMNS:
            batch[name].numpy().copy()
        return int(batch.numel())

    yield collect
    running.shutdown()


if __name__ == "__main__":
    run(collecting, ("torchrl", "tensordict", "torch", "gymnasium", "mujoco"))
