"""The ledger of a sequence: its episodes that are begun and not claimed; and which worker an episode belongs to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollserve_server.pool.accounts import FailedEpisode

__all__ = ["Anywhere", "EpisodeSize", "Ledger", "PerWorker", "Placement", "RoundRobin", "is_movable"]


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


class _WithUnits:
    """Base of all placements: work units follow one another from index 0 on."""

    def unit_of(self, index: int, size: int) -> range:
        """Return the episodes of the work unit that holds an episode, where units have `size` episodes."""
        start = index // size * size
        return range(start, start + size)

    def units_in(self, indices: range, size: int) -> Iterator[range]:
        """Yield the parts of a range that lie in one work unit each, where units have `size` episodes."""
        start = indices.start
        while start < indices.stop:
            stop = min(self.unit_of(start, size).stop, indices.stop)
            yield range(start, stop)
            start = stop


@dataclass(frozen=True)
class Anywhere(_WithUnits):
    """Any worker may run any episode, because all workers have the same agent and environment."""

    def owner_of(self, index: int) -> None:
        """Return None: episodes belong to no worker."""


@dataclass(frozen=True)
class RoundRobin(_WithUnits):
    """Workers take turns, `size` episodes at a time, because their agents or environments differ.

    Attributes:
        num_workers: number of workers.
        size: number of consecutive episodes of one worker: episode i belongs to worker (i // size) % num_workers.
    """

    num_workers: int
    size: int = 1

    def owner_of(self, index: int) -> int:
        """Return the worker that an episode belongs to."""
        return index // self.size % self.num_workers

    def next_of(self, worker: int, index: int) -> int:
        """Return the first episode from an index on that belongs to the worker."""
        run = index // self.size
        num_between = (worker - run) % self.num_workers
        return (run + num_between) * self.size if num_between else index


@dataclass(frozen=True)
class PerWorker(_WithUnits):
    """A range of `size` episodes for each worker; the ranges follow one another from the first index on.

    Attributes:
        first_index: index of the first worker's first episode.
        size: number of episodes of each worker.
        are_alike: whether all workers have the same agent and environment: then others can run the range of a worker
            that is missing, with the same result.
    """

    first_index: int
    size: int
    are_alike: bool = False

    def owner_of(self, index: int) -> int:
        """Return the worker that an episode belongs to."""
        return (index - self.first_index) // self.size

    def next_of(self, worker: int, index: int) -> int:
        """Return the first episode from an index on that belongs to the worker, or one behind all that do."""
        return max(index, self.first_index + worker * self.size)

    def stop_of(self, worker: int) -> int:
        """Return the index behind the last episode that belongs to the worker."""
        return self.first_index + (worker + 1) * self.size

    def unit_of(self, index: int, size: int) -> range:
        """Return the work unit of an episode. Units follow one another from a worker's first episode on."""
        worker = self.owner_of(index)
        first, stop = self.first_index + worker * self.size, self.stop_of(worker)
        start = first + (index - first) // size * size
        return range(start, min(start + size, stop))


Placement = Anywhere | RoundRobin | PerWorker
"""A rule that says which worker an episode belongs to."""


def is_movable(placement: Placement) -> bool:
    """Whether other workers may run the episodes of a worker that is missing."""
    return isinstance(placement, Anywhere) or (isinstance(placement, PerWorker) and placement.are_alike)
