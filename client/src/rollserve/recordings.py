"""Results of recordings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollserve.account import Account, account_from_proto
from rollserve_wire.records import record_from_message
from rollserve_wire.representations import briefly

if TYPE_CHECKING:
    from rollserve_wire.v1 import datasets_pb2

__all__ = ["Recording", "recording_from_proto"]


@briefly
@dataclass(frozen=True)
class Recording:
    """Result of recording a dataset on the server.

    >>> print(sampler.record("cartpole/mlp-v0", num_episodes=100))  # doctest: +SKIP
    cartpole/mlp-v0: 100 episodes, 2204 steps, 0.5 MB (100 episodes added)

    Attributes:
        dataset: id of the dataset.
        num_episodes: number of episodes in the dataset, of all recordings.
        num_steps: number of their steps.
        num_added_episodes: number of episodes that the call has added.
        num_added_steps: number of steps that it has added.
        num_bytes: size of the dataset's data.
        seed: root seed of the episodes.
        next_episode_index: index of the episode that a longer recording goes on with.
        policy_version: version of the policy that acted; 0 if nothing was added.
        env_version: version of the environment; 0 if nothing was added.
        account: what was simulated for the call; None if nothing was added.
    """

    dataset: str
    num_episodes: int
    num_steps: int
    num_added_episodes: int
    num_added_steps: int
    num_bytes: int
    seed: int
    next_episode_index: int
    policy_version: int
    env_version: int
    account: Account | None

    def __str__(self) -> str:
        return (
            f"{self.dataset}: {self.num_episodes} episodes, {self.num_steps} steps, {self.num_bytes / 1e6:.1f} MB "
            f"({self.num_added_episodes} episodes added)"
        )


def recording_from_proto(message: datasets_pb2.Recording) -> Recording:
    """Return the result in a message."""
    account = account_from_proto(message.account) if message.HasField("account") else None
    return record_from_message(
        Recording,
        message,
        num_added_episodes=message.added_episode_count,
        num_added_steps=message.added_step_count,
        account=account,
    )
