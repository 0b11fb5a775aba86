"""Work units: which may be the reason why workers are lost, and which worker runs which of a population's."""

from __future__ import annotations

import bisect
import itertools
import math
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

__all__ = ["Suspects", "Units"]

_NUM_LOSSES_ALONE = 2
"""Workers that a unit has to cost while it runs alone: one could be killed from outside at just that time."""


class Culprit(NamedTuple):
    """A unit that takes its workers down.

    Attributes:
        unit: number of the unit.
        num_losses: number of workers that were lost with it.
    """

    unit: int
    num_losses: int


class Suspects:
    """Work units of one call that were running when workers were lost.

    A loss proves nothing against a unit: processes are also killed from outside, and the units that ran beside the
    cause are lost with it. So a unit that was lost more than `num_retries` times runs alone on a worker from then on.
    If it ends there, it is acquitted. If two workers in a row are lost with it, it is the culprit. Where it is known
    which unit a worker hung in, nothing else is suspected, and nothing runs alone.

    Attributes:
        culprit: the unit that takes its workers down, once that is known.
    """

    def __init__(self, num_retries: int) -> None:
        """Start without suspects; a unit may run again beside others `num_retries` times."""
        self.culprit: Culprit | None = None
        self._num_retries = num_retries
        self._num_losses: Counter[int] = Counter()
        self._num_alone: Counter[int] = Counter()
        self._num_hung: Counter[int] = Counter()
        # By worker, the unit that runs alone there.
        self._isolated: dict[int, int] = {}

    def __bool__(self) -> bool:
        """Whether any unit was lost and has not ended since."""
        return bool(self._num_losses or self._num_hung)

    def __contains__(self, unit: int) -> bool:
        """Whether a unit has to run alone."""
        return self._num_losses[unit] > self._num_retries if self._num_losses else False

    def to_isolate(self) -> list[int]:
        """Return the units that have to run alone, in order; some may be running."""
        return sorted(unit for unit, num_losses in self._num_losses.items() if num_losses > self._num_retries)

    def isolate(self, worker: int, unit: int) -> None:
        """Record that a unit runs alone on a worker."""
        self._isolated[worker] = unit

    def is_isolated(self, worker: int) -> bool:
        """Whether a worker runs a unit alone, so that it may begin nothing else."""
        return worker in self._isolated

    def acquit(self, unit: int) -> None:
        """Record the end of a unit."""
        for counts in (self._num_losses, self._num_alone, self._num_hung):
            counts.pop(unit, None)
        self._isolated = {worker: other for worker, other in self._isolated.items() if other != unit}

    def lose(self, worker: int, running: Collection[int]) -> None:
        """Record the loss of a worker with the units that it ran; none if something else is known to be the cause."""
        alone = self._isolated.pop(worker, None)
        suspected: Iterable[int] = running if alone is None else {alone}.intersection(running)
        self._num_losses.update(suspected)
        if alone is None:
            return
        self._num_alone.update(suspected)
        if self._num_alone[alone] >= _NUM_LOSSES_ALONE:
            self.culprit = Culprit(alone, self._num_losses[alone])

    def hang(self, worker: int, unit: int) -> None:
        """Record that a worker was killed because it hung in a unit."""
        self._isolated.pop(worker, None)
        self._num_hung[unit] += 1
        if self._num_hung[unit] > self._num_retries:
            self.culprit = Culprit(unit, self._num_hung[unit])


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
