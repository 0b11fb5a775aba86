"""Restarts of a worker: how long each waits, and how many there may be within an hour."""

from __future__ import annotations

from collections import deque

__all__ = ["Restarts"]

_HOUR_SECONDS = 3600.0
_RECENT_SECONDS = 300.0
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.25, 30.0
_MAX_RECENT = 10
"""Restarts after which the pause is the longest."""


class Restarts:
    """The restarts of one slot, whether they succeeded or not.

    The first is immediate. After restarts within the last five minutes there is a pause, doubled with each of them.
    After the allowed number within the last hour, there is none until the oldest is an hour ago. Restarts that are
    excused do not count towards that number, so that nobody's calls use up the restarts that others need.

    Attributes:
        count: number of restarts so far.
    """

    def __init__(self, per_hour: int) -> None:
        """Start with none, of at least 1 allowed within an hour."""
        self.count = 0
        self._recent: deque[float] = deque(maxlen=_MAX_RECENT)
        self._charged: deque[float] = deque(maxlen=per_hour)
        self._num_excused = 0

    def begin(self, now: float) -> None:
        """Record a restart."""
        self.count += 1
        self._recent.append(now)
        if self._num_excused:
            self._num_excused -= 1
        else:
            self._charged.append(now)

    def excuse(self, num_restarts: int) -> None:
        """Excuse the latest restarts, and the next ones if there were not as many."""
        for _ in range(num_restarts):
            if self._charged:
                self._charged.pop()
            else:
                self._num_excused += 1

    def pause_seconds(self, now: float) -> float:
        """Return how long to wait before the next restart, because others were recent."""
        num_recent = sum(now - time < _RECENT_SECONDS for time in self._recent)
        pause: float = _FIRST_PAUSE_SECONDS * 2 ** (num_recent - 1) if num_recent else 0.0
        return min(pause, _MAX_PAUSE_SECONDS)

    def forbidden_seconds(self, now: float) -> float:
        """Return how long there may be no restart, because there were too many; 0 if there may be one."""
        if len(self._charged) < (self._charged.maxlen or 1):
            return 0.0
        return max(self._charged[0] + _HOUR_SECONDS - now, 0.0)
