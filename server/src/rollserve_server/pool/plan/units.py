"""Work units of a population: which worker runs which."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Sequence

from rollserve_server.pool.plan.suspects import Suspects

__all__ = ["Units"]


class Units:
    """Work units that any worker may run: lost ones begin first, then the lowest.

    Attributes:
        suspects: units that may be the reason why workers are lost, and that may have to run alone.
    """

    def __init__(self, num_units: int, num_workers: int, unit_retries: int) -> None:
        """Start with the first unit.

        Args:
            num_units: number of units.
            num_workers: number of workers.
            unit_retries: how often a lost unit runs again beside others before it runs alone.
        """
        self.suspects = Suspects(unit_retries)
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
        """Return the units that a worker begins now: with those it runs, up to `room` and up to its share of all.

        While a suspect waits for a worker that runs nothing else, workers begin nothing.
        """
        if self.suspects.culprit:
            return []
        suspect = next((unit for unit in self._lost if unit in self.suspects), None)
        if suspect is not None or self.suspects.is_isolated(worker):
            return [] if suspect is None or self._running[worker] else [self._begin_alone(worker, suspect)]
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
        if self.suspects.is_isolated(worker):
            return []
        elsewhere = set().union(*self._running) - self._running[worker] - self._duplicated
        elsewhere.difference_update(self.suspects.to_isolate())
        duplicates = list(itertools.islice(filter(is_late, sorted(elsewhere)), max(room, 0)))
        self._running[worker].update(duplicates)
        self._duplicated.update(duplicates)
        return duplicates

    def finish(self, worker: int, unit: int) -> None:
        """Record the end of a unit, wherever else it runs."""
        self.suspects.acquit(unit)
        self._running[worker].discard(unit)
        if unit in self._duplicated:
            self._duplicated.discard(unit)
            for units in self._running:
                units.discard(unit)

    def lose(self, worker: int) -> list[int]:
        """Record that a worker is gone; return the units that no other worker runs, which begin again.

        The caller tells `suspects` whether any of them may be the cause.
        """
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

    def _begin_alone(self, worker: int, unit: int) -> range:
        """Begin a suspect on a worker that runs nothing else."""
        self.suspects.isolate(worker, unit)
        self._lost.remove(unit)
        self._running[worker].add(unit)
        return range(unit, unit + 1)
