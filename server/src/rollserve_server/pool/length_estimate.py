"""How long episodes are going to be, as far as those before tell."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

__all__ = ["LengthEstimate"]


class LengthEstimate:
    """How long episodes are, from the steps and ends that were seen.

    Steps divided by ends is the maximum-likelihood mean of a geometric distribution also while episodes are
    unfinished, so that the short ones, which end first, do not bias it.
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
