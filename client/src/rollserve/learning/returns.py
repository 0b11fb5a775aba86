"""Returns and advantages of the policy that acted, and rewards scaled by the variance of their returns.

Generalized advantage estimation: A[t] = sum over k of (gamma lam)^k delta[t + k], with
delta[t] = r[t] + gamma V(s[t + 1]) - V(s[t]). Schulman, Moritz, Levine, Jordan, Abbeel: High-dimensional continuous
control using generalized advantage estimation, ICLR 2016, equations 11 to 16.

Stable-Baselines3's VecNormalize scales rewards in this way: R[t] = gamma R[t - 1] + r[t] begins at 0 in each episode,
and rewards are divided by the standard deviation of R.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rollserve.learning.arguments import (
    check_count,
    check_fraction,
    check_positive,
    checked_last_values,
    float_type,
    infos_or,
)
from rollserve_wire.checks import check_type
from rollserve_wire.errors import mismatch
from rollserve_wire.moments import RunningMoments
from rollserve_wire.recurrences import backward_recurrence, forward_recurrence
from rollserve_wire.representations import briefly

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "Advantages",
    "RunningReturns",
    "advantages",
    "discounted_returns",
    "n_step_returns",
    "return_moments_of",
    "scaled_rewards",
    "shifted",
    "windows",
]

_MAX_OPEN = 1 << 20
"""Most episodes that are remembered because they go on; the oldest are forgotten first."""


@briefly
class Advantages(NamedTuple):
    """Advantages of the actions, and targets for the values, of each step.

    Attributes:
        advantages: (T,), how much better each action was than the policy is on average.
        value_targets: (T,), what the value of each step's observation is to be.
    """

    advantages: np.ndarray
    value_targets: np.ndarray


def advantages(batch: Any, gamma: float, lam: float, values: Any, last_values: Any) -> Advantages:
    """Return generalized advantage estimates; see `EpisodeBatch.advantages`."""
    gamma, lam = check_fraction("gamma", gamma), check_fraction("lam", lam)
    own = values is None
    values = infos_or(batch, "values", values, "value")
    last_values = checked_last_values(batch, last_values, own=own)
    dtype = float_type(batch.rewards, values, last_values)
    values = values.astype(dtype, copy=False)
    deltas = batch.rewards.astype(dtype, copy=False) + gamma * shifted(values, last_values, batch.lengths) - values
    found = backward_recurrence(gamma * lam, deltas, batch.lengths, np.zeros(len(batch.lengths), dtype))
    return Advantages(found, found + values)


def discounted_returns(batch: Any, gamma: float, last_values: Any) -> np.ndarray:
    """Return the discounted rewards from each step on; see `EpisodeBatch.discounted_returns`."""
    gamma = check_fraction("gamma", gamma)
    if last_values is None:
        last_values = np.zeros(len(batch.lengths), np.float32)
    else:
        last_values = checked_last_values(batch, last_values)
    dtype = float_type(batch.rewards, last_values)
    return backward_recurrence(gamma, batch.rewards.astype(dtype), batch.lengths, last_values.astype(dtype))


def n_step_returns(batch: Any, n: int, gamma: float, values: Any, last_values: Any) -> np.ndarray:
    """Return n discounted rewards and the value after them, from each step on; see `EpisodeBatch.n_step_returns`."""
    n, gamma = check_count("n", n), check_fraction("gamma", gamma)
    own = values is None
    values = infos_or(batch, "values", values, "value")
    last_values = checked_last_values(batch, last_values, own=own)
    dtype = float_type(batch.rewards, values, last_values)
    sums, num_rewards = windows(batch.rewards.astype(dtype, copy=False), batch.lengths, n, gamma)
    after = shifted(values.astype(dtype, copy=False), last_values, batch.lengths)
    discounts: np.ndarray = (gamma**num_rewards).astype(dtype)
    returns: np.ndarray = sums + discounts * after[np.arange(len(after)) + num_rewards - 1]
    return returns


def shifted(values: np.ndarray, last_values: np.ndarray, lengths: NDArray[np.int64]) -> np.ndarray:
    """Return the value after each step, (T,): the next step's, or after a segment's last step its last value.

    Args:
        values: (T,).
        last_values: (N,), the value after each segment.
        lengths: (N,).
    """
    following = np.empty_like(values)
    following[:-1] = values[1:]
    following[np.cumsum(lengths) - 1] = last_values
    return following


def _steps_left(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of steps of its segment from each step on, itself included, (T,)."""
    ends = np.cumsum(lengths)
    left: NDArray[np.int64] = np.repeat(ends, lengths) - np.arange(int(lengths.sum()))
    return left


def windows(
    rewards: np.ndarray, lengths: NDArray[np.int64], n: int, gamma: float
) -> tuple[np.ndarray, NDArray[np.int64]]:
    """Return the discounted sum of n rewards from each step on, or of fewer where the segment ends, and their number.

    Sums over 1, 2, 4, … steps are made of each other, and sums over n steps of them: log2(n) passes over the column.

    Args:
        rewards: (T,), floats.
        lengths: (N,).
        n: number of rewards, at least 1.
        gamma: the discount.

    Returns:
        (T,) of the dtype of the rewards, and (T,) int64.
    """
    left = _steps_left(lengths)
    n = min(n, int(lengths.max(initial=1)))
    sums, width = np.zeros_like(rewards), 0
    parts, part_width = rewards, 1
    while True:
        if n & part_width:
            sums = sums + gamma**width * _ahead(parts, left, width)
            width += part_width
        if width == n:
            return sums, np.minimum(left, n)
        parts = parts + gamma**part_width * _ahead(parts, left, part_width)
        part_width *= 2


def _ahead(values: np.ndarray, left: NDArray[np.int64], distance: int) -> np.ndarray:
    """Return the value some steps after each step; 0 after the end of its segment."""
    if not distance:
        return values
    ahead = np.zeros_like(values)
    np.copyto(ahead[:-distance], values[distance:], where=left[:-distance] > distance)
    return ahead


class RunningReturns:
    """Discounted returns R[t] = discount * R[t - 1] + reward[t] of episodes, also where they go on in later batches.

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
