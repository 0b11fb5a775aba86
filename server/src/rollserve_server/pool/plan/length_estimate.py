"""How long episodes are going to be, as far as those before tell."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

from rollserve_server.pool.plan.pace import Pace

__all__ = ["LengthEstimate", "LengthEstimates"]

_MOST_ESTIMATES = 64
"""For each environment and limit of episodes there is one."""
_EPISODES_REMEMBERED = 32.0
"""The weight that the lengths of episodes of the policies before have, in episodes."""


class LengthEstimate:
    """How long episodes are, from the steps and ends that were seen.

    Steps divided by ends is the maximum-likelihood mean of a geometric distribution also while episodes are
    unfinished, so that the short ones, which end first, do not bias it.

    Attributes:
        pace: how long workers take for them.
    """

    _MOST_EPISODES = 256.0
    _MOST_SPREAD = 1.0
    _MOST_STEPS = 2**50
    _PRIOR_EPISODES = 0.25

    def __init__(self, max_episode_steps: int | None) -> None:
        # At first episodes are taken to be as long as their limit: better to begin too few than too many.
        self._steps = min(max_episode_steps or 0, self._MOST_STEPS) * self._PRIOR_EPISODES
        self._episodes = self._PRIOR_EPISODES if max_episode_steps else 0.0
        self._lengths: deque[int] = deque(maxlen=int(self._MOST_EPISODES))
        self.pace = Pace()

    @property
    def mean(self) -> float | None:
        """Steps per episode, or None if nothing is known."""
        return max(self._steps / self._episodes, 1.0) if self._episodes else None

    @property
    def spread(self) -> float:
        """The squared ratio of the lengths' standard deviation to their mean: 0 if all are equal, 1 if geometric."""
        mean = math.fsum(self._lengths) / max(len(self._lengths), 1)
        variance = math.fsum((length - mean) ** 2 for length in self._lengths) / max(len(self._lengths) - 1, 1)
        return min(variance / mean**2, self._MOST_SPREAD) if mean else 0.0

    def observe(self, num_steps: int, lengths: Sequence[int]) -> None:
        """Takes in that so many steps were made, and that episodes of these lengths ended with them."""
        self._steps += num_steps
        self._episodes += len(lengths)
        self._lengths.extend(lengths)
        self.fade(self._MOST_EPISODES)

    def fade(self, num_episodes: float) -> None:
        """Gives what was seen no more weight than so many episodes have: a new policy has other lengths."""
        if self._episodes > num_episodes:
            self._steps *= num_episodes / self._episodes
            self._episodes = num_episodes


class LengthEstimates:
    """Those of all versions of the environments, and of each limit on episodes."""

    def __init__(self) -> None:
        self._estimates: dict[tuple[int, int | None], LengthEstimate] = {}

    def of(
        self,
        env_version: int,
        max_episode_steps: int | None,
        max_episode_length: int | None,
        env_versions: Iterable[int],
    ) -> LengthEstimate:
        """What is known of the lengths of such episodes.

        Args:
            env_version: of which environments.
            max_episode_steps: their own limit, if it is known.
            max_episode_length: that of the call, if it has one.
            env_versions: the versions that are held; what is known of others is forgotten.
        """
        held = set(env_versions)
        self._estimates = {key: value for key, value in self._estimates.items() if key[0] in held}
        key = (env_version, max_episode_length)
        if key not in self._estimates:
            while len(self._estimates) >= _MOST_ESTIMATES:
                del self._estimates[next(iter(self._estimates))]
            limits = [limit for limit in (max_episode_steps, max_episode_length) if limit]
            self._estimates[key] = LengthEstimate(min(limits, default=None))
        return self._estimates[key]

    def fade(self) -> None:
        """Takes in that there is a new policy, whose episodes have other lengths."""
        for estimate in self._estimates.values():
            estimate.fade(_EPISODES_REMEMBERED)
