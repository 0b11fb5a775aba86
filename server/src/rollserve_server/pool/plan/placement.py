"""Placement: which worker an episode belongs to, and which episodes form a work unit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Anywhere", "PerWorker", "Placement", "RoundRobin", "is_movable"]


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
