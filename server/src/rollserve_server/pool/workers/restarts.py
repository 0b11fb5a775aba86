"""How soon, and how often, a lost worker is replaced. Pure: whoever asks says what time it is."""

from __future__ import annotations

from collections import deque

__all__ = ["Restarts"]

_HOUR_SECONDS = 3600.0
_RECENT_SECONDS = 300.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.25, 30.0


class Restarts:
    """The restarts of one worker's place, whether they succeeded or not.

    The first is at once. After others in the last five minutes there is a pause, twice as long with each of them; after
    as many in the last hour as are allowed, there is none until one of them is an hour ago.

    Attributes:
        count: how many there were.
    """

    def __init__(self, per_hour: int) -> None:
        """Begins without any, of which there may be so many in an hour, at least 1."""
        self.count = 0
        self._times: deque[float] = deque(maxlen=per_hour)

    def begin(self, now: float) -> None:
        """Takes in that one begins."""
        self.count += 1
        self._times.append(now)

    def pause_seconds(self, now: float) -> float:
        """How long to wait before the next, because others were recent."""
        num_recent = sum(now - time < _RECENT_SECONDS for time in self._times)
        longest: float = _FIRST_PAUSE_SECONDS * 2 ** min(num_recent - 1, 10) if num_recent else 0.0
        return min(longest, _LONGEST_PAUSE_SECONDS)

    def forbidden_seconds(self, now: float) -> float:
        """How long there may be none, because there were too many; 0 if there may be one."""
        if len(self._times) < (self._times.maxlen or 1):
            return 0.0
        return max(self._times[0] + _HOUR_SECONDS - now, 0.0)
