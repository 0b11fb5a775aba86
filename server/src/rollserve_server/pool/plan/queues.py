"""Queues: the order in which a call's episodes begin, for all workers together or for each one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from rollserve_server.pool.plan.placement import Anywhere, PerWorker, RoundRobin

if TYPE_CHECKING:
    from rollserve_server.pool.plan.ledger import Ledger

__all__ = ["PinnedQueue", "SharedQueue", "ranges_of"]


class SharedQueue:
    """A queue of episodes that any worker may run: lost ones first, then new ones."""

    def __init__(self, placement: Anywhere, unit_size: int, ledger: Ledger) -> None:
        """Continue behind the ledger's episodes.

        Args:
            placement: divides episodes into work units.
            unit_size: number of episodes in a work unit.
            ledger: ledger of the sequence; it is only read here.
        """
        self._placement = placement
        self._unit_size = unit_size
        known = ledger.workers.keys() | ledger.failed.keys()
        self._next_index = max(known, default=ledger.next_index - 1) + 1
        self._lost = [index for index in range(ledger.next_index, self._next_index) if index not in known]

    @property
    def num_lost(self) -> int:
        """Number of lost episodes that have not begun again."""
        return len(self._lost)

    def take(self, count: int) -> list[range]:
        """Return the next episodes, in ranges of one work unit each if units have several episodes.

        There are `count` of them; more if a work unit goes beyond.
        """
        ranges = []
        while count > 0 and self._lost:
            lost = self._take_lost_range()
            ranges.append(lost)
            count -= len(lost)
        if count > 0:
            ranges += self._take_new(count)
        return ranges

    def take_lost(self, indices: Collection[int]) -> None:
        """Take lost episodes out of their order."""
        self._lost = [index for index in self._lost if index not in indices]

    def lose(self, worker: int, lost: Sequence[int]) -> None:
        """Have lost episodes begin again, on any worker."""
        self._lost = sorted([*self._lost, *lost])

    def _take_lost_range(self) -> range:
        """Return the first lost episodes, as far as they are consecutive and in one work unit."""
        start, length = self._lost[0], 1
        unit_stop = self._placement.unit_of(start, self._unit_size).stop
        # The lost episodes of a unit have no gaps, except where a part of it had duplicates or was given up.
        while self._lost[length : length + 1] == [start + length] and start + length < unit_stop:
            length += 1
        del self._lost[:length]
        return range(start, start + length)

    def _take_new(self, count: int) -> list[range]:
        start = self._next_index
        self._next_index = self._placement.unit_of(start + count - 1, self._unit_size).stop
        new = range(start, self._next_index)
        return [new] if self._unit_size == 1 else list(self._placement.units_in(new, self._unit_size))


class PinnedQueue:
    """A queue of episodes for each worker, because each episode belongs to one worker."""

    def __init__(self, placement: RoundRobin | PerWorker, unit_size: int, ledger: Ledger, num_workers: int) -> None:
        """Begin at the ledger's next index.

        Args:
            placement: which worker an episode belongs to.
            unit_size: number of episodes in a work unit.
            ledger: ledger of the sequence; it is only read here.
            num_workers: number of workers.
        """
        self._placement = placement
        self._unit_size = unit_size
        self._ledger = ledger
        self._first_index = ledger.next_index
        # For each worker, the index from which on to look for an episode that has not begun.
        self._next_of_worker = [self._first_index] * num_workers

    def take(self, worker: int, room: int, stop_index: int) -> list[range]:
        """Return the next episodes of a worker, in ranges of one work unit each if units have several episodes.

        Args:
            worker: index of the worker that they belong to.
            room: maximum number of episodes, apart from the rest of a work unit.
            stop_index: index behind the last work unit that may begin.
        """
        ranges: list[range] = []
        placement, ledger = self._placement, self._ledger
        if isinstance(placement, PerWorker):
            stop_index = min(stop_index, placement.stop_of(worker))
        index = placement.next_of(worker, max(self._next_of_worker[worker], ledger.next_index))
        while index < stop_index and room > 0:
            stop = index + 1
            if index not in ledger.workers and index not in ledger.failed:
                stop = self._stop_of_run(index)
                room -= stop - index
                if self._unit_size == 1 and ranges and ranges[-1].stop == index:
                    ranges[-1] = range(ranges[-1].start, stop)
                else:
                    ranges.append(range(index, stop))
            self._next_of_worker[worker] = stop
            index = placement.next_of(worker, stop)
        return ranges

    def lose(self, worker: int, lost: Sequence[int]) -> None:
        """Have lost episodes begin again, including episodes that belong to other workers."""
        for owner in {worker, *map(self._placement.owner_of, lost)}:
            self._next_of_worker[owner] = self._first_index

    def has_begun_all_of(self, worker: int) -> bool:
        """Whether a worker has begun all of its episodes; false where workers take turns without end."""
        placement, ledger = self._placement, self._ledger
        if not isinstance(placement, PerWorker) or self._next_of_worker[worker] < placement.stop_of(worker):
            return False
        own = range(placement.next_of(worker, ledger.next_index), placement.stop_of(worker))
        return not placement.are_alike or all(ledger.workers.get(index) == worker for index in own)

    def _stop_of_run(self, index: int) -> int:
        """Return the end of an episode's work unit, or the first episode before that which was given up."""
        stop, failed = self._placement.unit_of(index, self._unit_size).stop, self._ledger.failed
        return next((other for other in range(index, stop) if other in failed), stop) if failed else stop


def ranges_of(indices: Sequence[int]) -> Iterator[range]:
    """Yield the ranges that rising indices consist of."""
    start = 0
    for position in range(1, len(indices) + 1):
        if position == len(indices) or indices[position] != indices[position - 1] + 1:
            yield range(indices[start], indices[position - 1] + 1)
            start = position
