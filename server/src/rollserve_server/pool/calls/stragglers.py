"""Episodes that take far longer than others: which they are, and what becomes of those that were begun twice."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollserve_server.pool.calls.claims import Claims
    from rollserve_server.pool.plan.plan import Plan
    from rollserve_server.pool.sequences.open_sequence import OpenSequence

__all__ = ["Cancellations", "Pace", "Stragglers"]

_LEAST_SECONDS = 1.0
"""However fast others are: less is what a machine may take for something else."""
_AFTER_SECONDS = 0.01
_MOST = 0.75
"""Which part of all episodes `most` is."""


class Pace:
    """How long workers take for episodes, from when they are told to begin one to when they tell of its end."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=256)
        self._usual: float | None = None

    def observe(self, seconds: float) -> None:
        """Takes in how long an episode took."""
        self._seconds.append(seconds)
        self._usual = None

    def late_after(self, factor: float) -> float | None:
        """After how many seconds an episode is late, if that is so many times what most take; None if nobody knows."""
        if not (factor and self._seconds):
            return None
        if self._usual is None:
            self._usual = sorted(self._seconds)[math.ceil(_MOST * len(self._seconds)) - 1]
        return max(factor * self._usual, _LEAST_SECONDS)


class Cancellations:
    """Episodes that a worker has in vain, from when that is known until it has forgotten them."""

    def __init__(self) -> None:
        self._to_tell: list[range] = []
        self._counts: Counter[int] = Counter()

    def __bool__(self) -> bool:
        """Whether the worker is to be told of any."""
        return bool(self._to_tell)

    def __contains__(self, index: int) -> bool:
        """Whether what the worker tells of an episode is of one that it has in vain."""
        return index in self._counts

    def add(self, indices: range) -> None:
        """Takes in some more."""
        self._to_tell.append(indices)
        self._counts.update(indices)

    def take(self) -> tuple[range, ...]:
        """Those that the worker is to be told of now."""
        told = tuple(self._to_tell)
        self._to_tell.clear()
        return told

    def answered(self, told: Iterable[range]) -> None:
        """Takes in that an order which told of some was answered: from there on, the same may have begun again."""
        for indices in told:
            self._counts.subtract(indices)
            for index in indices:
                if not self._counts[index]:
                    del self._counts[index]

    def clear(self) -> None:
        """Takes in that the worker is gone."""
        self._to_tell.clear()
        self._counts.clear()


class Stragglers:
    """Of one call: finds what it waits for for too long."""

    def __init__(self, plan: Plan, claims: Claims, sequence: OpenSequence, pace: Pace, factor: float) -> None:
        """Takes parts of the call.

        Args:
            plan: of the call.
            claims: those of the call.
            sequence: what it delivers a part of.
            pace: of the stream's episodes; takes in those that end.
            factor: how many times as long as most episodes one may take; 0 for as long as it takes.
        """
        self._plan = plan
        self._claims = claims
        self._begun_at = sequence.begun_at
        self._pace = pace
        self._factor = factor
        self._began = time.monotonic()

    def begin(self, indices: range) -> None:
        """Takes in that a worker is told to begin episodes."""
        self._begun_at.update(dict.fromkeys(indices, time.monotonic()))

    def finish(self, index: int) -> None:
        """Takes in that an episode has ended."""
        self._pace.observe(time.monotonic() - self._begun_at.pop(index, self._began))

    def begin_duplicates(self, worker: int, room: int) -> tuple[list[range], int]:
        """Has a worker which has nothing else to do run late episodes beside others that have them.

        Returns:
            Those that it is to be told of beside what `Claims.to_begin` says, and how many there are in all.
        """
        late_after = self._pace.late_after(self._factor)
        if late_after is None:
            return [], 0
        now, begun_at, began = time.monotonic(), self._begun_at, self._began
        claimed = self._claims.begin_duplicates(worker, now, late_after)
        ranges = self._plan.begin_duplicates(worker, lambda index: now - begun_at.get(index, began) > late_after, room)
        return ranges, sum(map(len, (*claimed, *ranges)))

    def seconds(self) -> float | None:
        """After how many seconds to look again; None if there is nothing to wait for but a change."""
        late_after = self._pace.late_after(self._factor)
        if late_after is None:
            return None
        first, claimed = self._plan.first_open(), self._claims.first_since()
        opened = None if first is None else self._begun_at.get(first, self._began)
        left = [since + late_after - time.monotonic() for since in (claimed, opened) if since is not None]
        # What is late already has two workers, or none that could be the other.
        return min((seconds for seconds in left if seconds > 0), default=late_after) + _AFTER_SECONDS
