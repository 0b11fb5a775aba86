"""Estimates from earlier episodes: how long episodes are, how long workers take for them, and which are stragglers."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["LengthEstimate", "LengthEstimates", "Pace"]

_MAX_ESTIMATES = 64
"""Limit of the estimates that are kept, one for each pair of an environment version and an episode limit."""
_MAX_CARRIED_EPISODES = 32.0
"""Weight, in episodes, that the lengths of earlier policies' episodes have at most."""
_MIN_SECONDS = 1.0
"""Time before which no episode is late, however fast others are: a busy machine may pause a process as long."""
_QUANTILE = 0.75
"""Quantile of the durations that is the usual one."""


class LengthEstimate:
    """The mean length of episodes, estimated from the steps and ends of the last 256 or so.

    Steps divided by ends is the maximum-likelihood mean of a geometric distribution also while episodes are unfinished,
    so that short episodes, which end first, do not bias it.

    Attributes:
        mean: mean number of steps per episode, at least 1; None if nothing is known.
        pace: durations of the episodes.
        steps_per_second: steps that a worker has made in a second of the last call; 0 if nothing is known.
    """

    _MAX_EPISODES = 256.0
    _MAX_SPREAD = 1.0
    _MAX_STEPS = 2**50
    _PRIOR_EPISODES = 0.25

    def __init__(self, *limits: int | None) -> None:
        """Assume that episodes are as long as the lowest limit, if there is one, with the weight of 1/4 episode."""
        max_episode_steps = min(filter(None, limits), default=0)
        # The limit is a safe assumption: it is better to begin too few episodes than too many.
        self._steps = min(max_episode_steps, self._MAX_STEPS) * self._PRIOR_EPISODES
        self._episodes = self._PRIOR_EPISODES if max_episode_steps else 0.0
        self._lengths: deque[int] = deque()
        self._sum = self._sum_of_squares = 0
        self.pace = Pace()
        self.steps_per_second = 0.0
        self.mean: float | None = None
        self.fade(self._MAX_EPISODES)

    @property
    def spread(self) -> float:
        """Squared ratio of the lengths' standard deviation to their mean, at most 1: 0 if equal, 1 if geometric."""
        count, squared_sum = len(self._lengths), self._sum**2
        if not squared_sum or count == 1:
            return 0.0
        # The variance is (count * sum_of_squares - sum²) / (count * (count - 1)), and exact in integers.
        return min((count * self._sum_of_squares - squared_sum) * count / ((count - 1) * squared_sum), self._MAX_SPREAD)

    def observe(self, num_steps: int, lengths: Sequence[int]) -> None:
        """Record simulated steps, and the lengths of the episodes that ended with them."""
        self._steps += num_steps
        self._episodes += len(lengths)
        for length in lengths:
            self._lengths.append(length)
            forgotten = self._lengths.popleft() if len(self._lengths) > self._MAX_EPISODES else 0
            self._sum += length - forgotten
            self._sum_of_squares += length**2 - forgotten**2
        self.fade(self._MAX_EPISODES)

    def fade(self, max_episodes: float) -> None:
        """Reduce the weight of all observations to this many episodes, if it is larger."""
        if self._episodes > max_episodes:
            self._steps *= max_episodes / self._episodes
            self._episodes = max_episodes
        self.mean = max(self._steps / self._episodes, 1.0) if self._episodes else None


class LengthEstimates:
    """Estimates of a pool: one for each environment version and limit on the length of episodes."""

    def __init__(self) -> None:
        self._estimates: dict[tuple[int, int | None], LengthEstimate] = {}

    def of(
        self,
        env_version: int,
        max_episode_steps: int | None,
        max_episode_length: int | None,
        env_versions: Iterable[int],
    ) -> LengthEstimate:
        """Return the estimate for a call, which the call updates.

        Args:
            env_version: version of the call's environments.
            max_episode_steps: the environments' own limit of an episode's steps; None if it is not known.
            max_episode_length: limit of the call; None if it has none.
            env_versions: versions that are kept; the estimates of others are dropped.
        """
        kept = set(env_versions)
        self._estimates = {key: value for key, value in self._estimates.items() if key[0] in kept}
        key = (env_version, max_episode_length)
        if key not in self._estimates:
            while len(self._estimates) >= _MAX_ESTIMATES:
                del self._estimates[next(iter(self._estimates))]
            self._estimates[key] = LengthEstimate(max_episode_steps, max_episode_length)
        return self._estimates[key]

    def fade(self) -> None:
        """Reduce the weight of all observations, because a new policy's episodes have other lengths."""
        for estimate in self._estimates.values():
            estimate.fade(_MAX_CARRIED_EPISODES)


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
