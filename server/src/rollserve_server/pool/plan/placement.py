"""Which worker an episode belongs to, and which episodes run together."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Anywhere", "PerWorker", "Placement", "RoundRobin", "RowLayout"]


@dataclass(frozen=True)
class Anywhere:
    """Any worker may run any episode: they all have the same agent and environment."""

    def unit_of(self, index: int, size: int) -> range:
        """The episodes that run together with one, of units that have so many."""
        return _aligned(index, size)


@dataclass(frozen=True)
class RoundRobin:
    """So many episodes belong to worker 0, as many to worker 1, and so on, over and over: what they run in differs.

    Attributes:
        num_workers: how many workers there are.
        size: how many episodes in a row belong to one: episode i to worker (i // size) % num_workers.
    """

    num_workers: int
    size: int = 1

    def next_of(self, worker: int, index: int) -> int:
        """The first episode from an index on that belongs to the worker."""
        run = index // self.size
        num_between = (worker - run) % self.num_workers
        return (run + num_between) * self.size if num_between else index

    def unit_of(self, index: int, size: int) -> range:
        """The episodes that run together with one, of units that have so many."""
        return _aligned(index, size)


@dataclass(frozen=True)
class PerWorker:
    """From the first index on, so many episodes belong to worker 0, as many to worker 1, and so on."""

    first_index: int
    size: int

    def next_of(self, worker: int, index: int) -> int:
        """The first episode from an index on that belongs to the worker, or is behind all that do."""
        return max(index, self.first_index + worker * self.size)

    def stop_of(self, worker: int) -> int:
        """The first episode that is behind all that belong to the worker."""
        return self.first_index + (worker + 1) * self.size

    def unit_of(self, index: int, size: int) -> range:
        """The episodes that run together with one, of units that have so many from a worker's first episode on."""
        block = (index - self.first_index) // self.size
        first, stop = self.first_index + block * self.size, self.first_index + (block + 1) * self.size
        start = first + (index - first) // size * size
        return range(start, min(start + size, stop))


Placement = Anywhere | RoundRobin | PerWorker
"""Says which worker an episode belongs to."""


@dataclass(frozen=True)
class RowLayout:
    """The rows that a worker steps for a call.

    Attributes:
        num_rows: how many.
        num_episodes_per_row: if they are stepped together: how many episodes of each make a block.
    """

    num_rows: int
    num_episodes_per_row: int | None

    def unit_size(self, placement: Placement) -> int:
        """How many episodes are begun and lost as one."""
        if self.num_episodes_per_row is None:
            return 1
        # Workers that differ take turns as soon as they can.
        return self.num_rows * (1 if isinstance(placement, RoundRobin) else self.num_episodes_per_row)


def _aligned(index: int, size: int) -> range:
    """The unit of an index, if units follow each other from index 0 on."""
    start = index // size * size
    return range(start, start + size)
