"""What a call did with everything that was simulated for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollserve.v1 import episode_batch_pb2

__all__ = ["Account", "WorkerAccount", "account_from_proto"]


@dataclass(frozen=True)
class WorkerAccount:
    """One worker's share in a call.

    Attributes:
        worker_index: the number of the worker.
        num_simulated_steps: steps that it simulated while the call ran.
        num_steps: steps delivered that it simulated.
        num_episodes: episodes delivered that it simulated.
        sampling_seconds: time spent stepping environments and evaluating the policy.
        encoding_seconds: time spent writing messages.
    """

    worker_index: int
    num_simulated_steps: int
    num_steps: int
    num_episodes: int
    sampling_seconds: float
    encoding_seconds: float


@dataclass(frozen=True)
class Account:
    """The last word of a call.

    Attributes:
        num_steps: steps delivered.
        num_episodes: episodes delivered.
        num_simulated_steps: steps simulated while the call ran, for it and beyond its end.
        num_kept_steps: steps of episodes beyond the last delivered one that are kept for the next call.
        num_dropped_steps: steps thrown away since the account before: of calls that were cancelled or failed, and
            what was kept but this call could not use.
        seed: the root seed of the sequence of episodes; the call can be repeated with it and `first_episode_index`.
        first_episode_index: the index of the first episode delivered.
        policy_version: the version that acted.
        env_version: the version of the environment.
        dropped_infos: by name, how many values of infos could not be delivered.
        workers: what each worker did.
        queued_seconds: how long the call waited for its turn.
        elapsed_seconds: how long it took on the server from then on.
    """

    num_steps: int
    num_episodes: int
    num_simulated_steps: int
    num_kept_steps: int
    num_dropped_steps: int
    seed: int
    first_episode_index: int
    policy_version: int
    env_version: int
    dropped_infos: Mapping[str, int]
    workers: tuple[WorkerAccount, ...]
    queued_seconds: float
    elapsed_seconds: float


def account_from_proto(message: episode_batch_pb2.Account) -> Account:
    """The account that the message holds."""
    workers = tuple(
        WorkerAccount(
            worker_index=worker.worker_index,
            num_simulated_steps=worker.simulated_step_count,
            num_steps=worker.step_count,
            num_episodes=worker.episode_count,
            sampling_seconds=worker.sampling.ToNanoseconds() / 1e9,
            encoding_seconds=worker.encoding.ToNanoseconds() / 1e9,
        )
        for worker in message.workers
    )
    return Account(
        num_steps=message.step_count,
        num_episodes=message.episode_count,
        num_simulated_steps=message.simulated_step_count,
        num_kept_steps=message.kept_step_count,
        num_dropped_steps=message.dropped_step_count,
        seed=message.seed,
        first_episode_index=message.first_episode_index,
        policy_version=message.policy_version,
        env_version=message.environment_version,
        dropped_infos=dict(message.dropped_infos),
        workers=workers,
        queued_seconds=message.queued.ToNanoseconds() / 1e9,
        elapsed_seconds=message.elapsed.ToNanoseconds() / 1e9,
    )
