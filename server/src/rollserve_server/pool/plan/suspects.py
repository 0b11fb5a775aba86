"""Suspects: work units that may be the reason why workers are lost, and how that is found out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import NamedTuple

__all__ = ["Culprit", "Suspects"]

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
