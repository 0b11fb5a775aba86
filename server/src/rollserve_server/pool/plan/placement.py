"""Placement: which worker an episode belongs to, and which episodes form a work unit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Anywhere", "PerWorker", "Placement", "RoundRobin"]


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


@dataclass(frozen=True)
class RoundRobin(_WithUnits):
    """Workers take turns, `size` episodes at a time, because their agents or environments differ.

    Attributes:
        num_workers: number of workers.
        size: number of consecutive episodes of one worker: episode i belongs to worker (i // size) % num_workers.
    """

    num_workers: int
    size: int = 1

    def next_of(self, worker: int, index: int) -> int:
        """Return the first episode from an index on that belongs to the worker."""
        run = index // self.size
        num_between = (worker - run) % self.num_workers
        return (run + num_between) * self.size if num_between else index


@dataclass(frozen=True)
class PerWorker(_WithUnits):
    """A range of `size` episodes for each worker; the ranges follow one another from the first index on."""

    first_index: int
    size: int

    def next_of(self, worker: int, index: int) -> int:
        """Return the first episode from an index on that belongs to the worker, or one behind all that do."""
        return max(index, self.first_index + worker * self.size)

    def stop_of(self, worker: int) -> int:
        """Return the index behind the last episode that belongs to the worker."""
        return self.first_index + (worker + 1) * self.size

    def unit_of(self, index: int, size: int) -> range:
        """Return the work unit of an episode. Units follow one another from a worker's first episode on."""
        worker = (index - self.first_index) // self.size
        first, stop = self.first_index + worker * self.size, self.stop_of(worker)
        start = first + (index - first) // size * size
        return range(start, min(start + size, stop))


Placement = Anywhere | RoundRobin | PerWorker
"""A rule that says which worker an episode belongs to."""
