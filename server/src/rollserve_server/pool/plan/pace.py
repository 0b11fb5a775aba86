"""Pace: how long workers take for episodes, and when an episode is a straggler."""

from __future__ import annotations

import math
from collections import deque

__all__ = ["Pace"]

_MIN_SECONDS = 1.0
"""Time before which no episode is late, however fast others are: a busy machine may pause a process as long."""
_QUANTILE = 0.75
"""Quantile of the durations that is the usual one."""


class Pace:
    """Durations of the last 256 episodes, from the order to begin one to the report of its end."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=256)
        self._usual: float | None = None

    def observe(self, seconds: float) -> None:
        """Record the duration of an episode."""
        self._seconds.append(seconds)
        self._usual = None

    def late_after(self, factor: float) -> float | None:
        """Return the seconds after which an episode is late: a multiple of the usual duration, at least 1 s.

        Returns None while nothing is known, and for a factor of 0.
        """
        if not (factor and self._seconds):
            return None
        if self._usual is None:
            self._usual = sorted(self._seconds)[math.ceil(_QUANTILE * len(self._seconds)) - 1]
        return max(factor * self._usual, _MIN_SECONDS)
