"""The plan of a sampler's size: how many workers it should have, given for how long they have had work."""

from __future__ import annotations

import math
from collections import deque

__all__ = ["ScalePlan"]

_BUSY_SHARE = 0.6
"""Share of their time for which workers should have work. A trainer that samples and learns by turns then waits at most
one and a half times as long for samples as it learns."""
_TOLERANCE = 0.05
"""Part of a worker by which the wanted number is not rounded up."""
_LOAD_SECONDS = 10.0
"""Time over which the load is averaged: several iterations of most trainers."""
_LOOKS = 10
"""Looks within this time."""


class ScalePlan:
    """How many workers a sampler should have.

    It grows as soon as its workers have work for most of the time, and shrinks to the most that it has wanted within an
    idle time. No clock is read here, and equal figures lead to equal numbers.

    Attributes:
        min_workers: least number.
        max_workers: greatest number.
        look_seconds: how often to look.
        num_wanted: number of workers that there should be, as of the last look.
    """

    def __init__(self, min_workers: int, max_workers: int, idle_seconds: float) -> None:
        """Start without load.

        Args:
            min_workers: least number.
            max_workers: greatest number.
            idle_seconds: how long fewer workers have to be enough.
        """
        self.min_workers, self.max_workers = min_workers, max_workers
        self._idle_seconds = idle_seconds
        self._load_seconds = min(_LOAD_SECONDS, idle_seconds)
        self.look_seconds = self._load_seconds / _LOOKS
        self.num_wanted = min_workers
        self._began_at: float | None = None
        self._num_workers = 0
        self._looks: deque[tuple[float, float]] = deque(maxlen=_LOOKS + 1)
        self._numbers: deque[tuple[float, int]] = deque()

    def look(self, now: float, num_workers: int, busy_seconds: float) -> int:
        """Return the number of workers that there should be from now on.

        Args:
            now: the time, in seconds since any.
            num_workers: present number of workers.
            busy_seconds: time for which workers have had work, added up over all workers since any time before the
                first look.
        """
        if self._began_at is None:
            self._began_at = now
        if num_workers > self._num_workers:
            self._looks.clear()  # a smaller number had more of its time taken
        self._num_workers = num_workers
        self._looks.append((now, busy_seconds))
        seconds = self._load_seconds
        number = self._number_for(seconds, seconds)  # soon after a change, too, as a share of the whole time
        if number > num_workers:
            # The load may just have begun: its last part says how many workers it keeps busy.
            number = self._number_for(seconds / 2, self.look_seconds)
        else:
            number = max(number, min(self._number_for(seconds, self.look_seconds), num_workers))
        number = min(max(number, self.min_workers), self.max_workers)
        # Only numbers that no later one exceeds, so that the first is the greatest of the idle time.
        while self._numbers and self._numbers[-1][1] <= number:
            self._numbers.pop()
        self._numbers.append((now, number))
        while self._numbers[0][0] < now - self._idle_seconds:
            self._numbers.popleft()
        self.num_wanted = self._numbers[0][1]
        if now - self._began_at < self._idle_seconds:
            self.num_wanted = min(max(self.num_wanted, num_workers), self.max_workers)
        return self.num_wanted

    def _number_for(self, seconds: float, least_seconds: float) -> int:
        """Return the number of workers for the load of the last seconds, taken as a share of at least some seconds."""
        now, busy_seconds = self._looks[-1]
        looked_at, busy_before = next(look for look in self._looks if look[0] >= now - seconds)
        num_busy = (busy_seconds - busy_before) / max(now - looked_at, least_seconds)
        return math.ceil(num_busy / _BUSY_SHARE - _TOLERANCE)
