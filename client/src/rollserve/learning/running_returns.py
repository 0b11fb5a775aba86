"""Discounted returns as they run along episodes, and rewards scaled by their variance.

Stable-Baselines3's VecNormalize scales rewards in this way: R[t] = gamma R[t - 1] + r[t] begins at 0 in each episode,
and rewards are divided by the standard deviation of R.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rollserve.learning.arguments import check_fraction, check_positive
from rollserve_wire.checks import check_type
from rollserve_wire.errors import mismatch
from rollserve_wire.moments import RunningMoments
from rollserve_wire.recurrences import forward_recurrence

__all__ = ["RunningReturns", "return_moments_of", "scaled_rewards"]

_MAX_OPEN = 1 << 20
"""Most episodes that are remembered because they go on; the oldest are forgotten first."""


class RunningReturns:
    """Discounted returns R[t] = discount * R[t - 1] + reward[t] of episodes, also of those that go on in later batches.

    Episodes in fragments continue where the batch before left them, also in the rounds of a stream. An episode whose
    beginning was in no batch starts with a return of 0, and `num_unknown_episodes` counts it. Use one for each sampler,
    and merge their moments.

    >>> returns = rollserve.RunningReturns(0.99)  # doctest: +SKIP
    >>> batch = sampler.obtain_fragments(2048)  # doctest: +SKIP
    >>> returns.add(batch)  # doctest: +SKIP
    >>> rewards = batch.scaled_rewards(returns.moments)  # doctest: +SKIP

    Attributes:
        discount: the discount, gamma.
        moments: moments of R over all steps of all batches.
        num_unknown_episodes: number of episodes whose beginning was in no batch.
    """

    def __init__(self, discount: float) -> None:
        """Start without episodes.

        Raises:
            TypeError: a discount that is no number.
            ValueError: a discount that is not from 0 to 1.
        """
        self.discount = check_fraction("discount", discount)
        self.moments = RunningMoments()
        self.num_unknown_episodes = 0
        # Of episodes that go on, by index and seed: the number of steps so far, and R.
        self._open: dict[tuple[int, int], tuple[int, float]] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} with discount {self.discount:g}, of {self.moments.count} steps>"

    def add(self, batch: Any) -> np.ndarray:
        """Add the steps of an `EpisodeBatch`, and return R after each of them, (T,) float64.

        Parts of a stream are added in their order.
        """
        seeds = np.zeros(len(batch), np.int64) if batch.env_seeds is None else batch.env_seeds
        keys = list(zip(batch.episode_indices.tolist(), seeds.tolist(), strict=True))
        if len(set(keys)) < len(keys):  # parts of a stream that were not joined
            return np.concatenate([self.add(segment) for segment in batch.split()])
        before = np.zeros(len(batch))
        for segment in np.flatnonzero(batch.first_steps):
            num_steps, value = self._open.pop(keys[segment], (0, 0.0))
            if num_steps == batch.first_steps[segment]:
                before[segment] = value
            else:
                self.num_unknown_episodes += 1
        returns = forward_recurrence(self.discount, batch.rewards.astype(np.float64), batch.lengths, before)
        ends = np.cumsum(batch.lengths)
        for segment in np.flatnonzero(~(batch.terminated | batch.truncated)):
            num_steps = int(batch.first_steps[segment] + batch.lengths[segment])
            self._open[keys[segment]] = num_steps, float(returns[ends[segment] - 1])
        while len(self._open) > _MAX_OPEN:
            del self._open[next(iter(self._open))]
        self.moments.merge(RunningMoments.of_segments(returns, batch.lengths))
        return returns


def return_moments_of(batch: Any, discount: float) -> RunningMoments:
    """Return the moments of the discounted returns of an `EpisodeBatch` of a call with this discount.

    Segments that begin within their episodes continue from `discounted_returns_before`.
    """
    before = batch.discounted_returns_before
    if before is None:  # older servers have moments of whole episodes alone
        before = np.zeros(len(batch))
    returns = forward_recurrence(discount, batch.rewards.astype(np.float64), batch.lengths, before)
    return RunningMoments.of_segments(returns, batch.lengths)


def scaled_rewards(batch: Any, return_moments: RunningMoments, epsilon: float, clip: float) -> np.ndarray:
    """Return rewards divided by the returns' standard deviation; see `EpisodeBatch.scaled_rewards`."""
    check_type("return_moments", return_moments, RunningMoments, "moments of returns")
    epsilon, clip = check_positive("epsilon", epsilon), check_positive("clip", clip)
    variance = return_moments.variance
    if not (isinstance(variance, np.ndarray) and variance.shape == ()):
        shapes = "of observations" if isinstance(variance, np.ndarray) else "of several leaves"
        raise ValueError(f"return_moments: {mismatch('moments of one number for each step', f'moments {shapes}')}")
    scaled: np.ndarray = np.clip(batch.rewards / np.sqrt(variance + epsilon), -clip, clip)
    return scaled
