"""The ledger of a sequence: its episodes that were begun and are not claimed yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rollserve_server.pool.accounts.env_failures import FailedEpisode

__all__ = ["EpisodeSize", "Ledger"]


class EpisodeSize(NamedTuple):
    """Size of a finished episode.

    Attributes:
        num_steps: number of its steps.
        num_bytes: approximate bytes of its steps.
        num_agent_steps: number of the steps of all agents; the same where there is one agent.
    """

    num_steps: int
    num_bytes: int
    num_agent_steps: int


@dataclass
class Ledger:
    """Episodes of a sequence that were begun and are not claimed yet. It lasts from call to call.

    Attributes:
        next_index: first index that is not claimed.
        workers: for each of the episodes, the worker that has it.
        sizes: for each finished episode, its size.
        failed: episodes that were given up because their environments failed; no worker has them any more.
        duplicates: for each episode that runs a second time, the worker of that run.
    """

    next_index: int
    workers: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, EpisodeSize] = field(default_factory=dict)
    failed: dict[int, FailedEpisode] = field(default_factory=dict)
    duplicates: dict[int, int] = field(default_factory=dict)

    def lose(self, worker: int) -> tuple[list[int], dict[int, EpisodeSize]]:
        """Remove the episodes of a worker that is gone. An episode with a duplicate moves to the other worker.

        Returns:
            The episodes that no other worker has, in order; and the size of each finished episode that is gone.
        """
        held = sorted(index for index, owner in self.workers.items() if owner == worker)
        self.duplicates = {index: other for index, other in self.duplicates.items() if other != worker}
        lost: list[int] = []
        finished: dict[int, EpisodeSize] = {}
        for index in held:
            del self.workers[index]
            if index in self.duplicates:
                self.workers[index] = self.duplicates.pop(index)
            else:
                lost.append(index)
            if index in self.sizes:
                finished[index] = self.sizes.pop(index)
        return lost, finished
