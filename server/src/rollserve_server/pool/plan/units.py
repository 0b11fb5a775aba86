"""Work units of a population: which worker runs which."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Sequence

__all__ = ["Units"]


class Units:
    """Work units that any worker may run: lost ones begin first, then the lowest."""

    def __init__(self, num_units: int, num_workers: int) -> None:
        self._next, self._stop = 0, num_units
        self._lost: list[int] = []
        self._running: list[set[int]] = [set() for _ in range(num_workers)]
        self._duplicated: set[int] = set()
        self._absent: set[int] = set()

    @property
    def num_open(self) -> Sequence[int]:
        """Number of units that each worker runs."""
        return [len(units) for units in self._running]

    def begin(self, worker: int, room: int) -> list[range]:
        """Return the units that a worker begins now: with those it runs, up to `room` and up to its share of all."""
        num_open = self.num_open
        num_left = self._stop - self._next + len(self._lost)
        num_present = len(self._running) - len(self._absent)
        share = math.ceil((sum(num_open) + num_left) / num_present)
        count = max(min(room, share) - num_open[worker], 0)
        again, self._lost = self._lost[:count], self._lost[count:]
        stop = min(self._next + count - len(again), self._stop)
        ranges = [*(range(unit, unit + 1) for unit in again), range(self._next, stop)]
        self._next = stop
        for units in ranges:
            self._running[worker].update(units)
        return [units for units in ranges if units]

    def begin_duplicates(self, worker: int, is_late: Callable[[int], bool], room: int) -> list[int]:
        """Return late units of other workers, at most `room`, that a worker begins beside them."""
        elsewhere = set().union(*self._running) - self._running[worker] - self._duplicated
        duplicates = list(itertools.islice(filter(is_late, sorted(elsewhere)), max(room, 0)))
        self._running[worker].update(duplicates)
        self._duplicated.update(duplicates)
        return duplicates

    def finish(self, worker: int, unit: int) -> None:
        """Record the end of a unit, wherever else it runs."""
        self._running[worker].discard(unit)
        if unit in self._duplicated:
            self._duplicated.discard(unit)
            for units in self._running:
                units.discard(unit)

    def lose(self, worker: int) -> list[int]:
        """Record that a worker is gone; return the units that no other worker runs, which begin again."""
        self._absent.add(worker)
        lost = sorted(self._running[worker] - self._duplicated)
        self._duplicated -= self._running[worker]
        self._running[worker].clear()
        for unit in lost:
            bisect.insort(self._lost, unit)
        return lost

    def regain(self, worker: int) -> None:
        """Record that a lost worker was replaced."""
        self._absent.discard(worker)
