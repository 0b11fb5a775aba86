"""Transitions: steps, each with the observation after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve.learning.arguments import check_count, check_fraction, float_type
from rollserve.learning.returns import windows
from rollserve_wire.columns import columns_of, leaves_of
from rollserve_wire.errors import mismatch
from rollserve_wire.representations import briefly

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve_wire.columns import Column, Columns

__all__ = ["Transitions", "check_discount", "observations_after", "transitions"]


@briefly
@dataclass(frozen=True, eq=False)
class Transitions:
    """S transitions of n steps, or of fewer where an episode or the data ends.

    >>> values = critic(found.next_observations) * ~found.terminated  # doctest: +SKIP
    >>> targets = found.rewards + gamma**found.lengths * values  # doctest: +SKIP

    Attributes:
        observations: (S, *O), observation before the first step.
        actions: (S, *A), action of the first step.
        rewards: (S,), discounted sum of the rewards of the steps.
        next_observations: (S, *O), observation after the last step.
        terminated: (S,) bool, whether the last step reached a terminal state, whose value is 0.
        truncated: (S,) bool, whether a limit ended the episode at the last step; both flags may be set.
        lengths: (S,) int64, number of steps.
        agent_infos: (S, *I) each, infos of the first step.
        indices: (S,) int64, where the first step is: its row in the batch, or its number in the replay buffer.
        weights: (S,) float32, weight of each transition in a loss; 1, unless a prioritized replay buffer drew it.
    """

    observations: Column
    actions: Column
    rewards: np.ndarray
    next_observations: Column
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    lengths: NDArray[np.int64]
    agent_infos: Mapping[str, np.ndarray]
    indices: NDArray[np.int64]
    weights: NDArray[np.float32]

    def __len__(self) -> int:
        """Return S, the number of transitions."""
        return len(self.rewards)


def check_discount(n: int, gamma: float | None) -> tuple[int, float]:
    """Return the number of steps of transitions and their discount, which one step does not need."""
    n = check_count("n", n)
    if gamma is None:
        if n > 1:
            raise ValueError(f"gamma: {mismatch('a number from 0 to 1, as n is over 1', None)}")
        return n, 1.0
    return n, check_fraction("gamma", gamma)


def transitions(batch: Any, n: int, gamma: float | None) -> Transitions:
    """Return a transition for each step; see `EpisodeBatch.transitions`."""
    n, gamma = check_discount(n, gamma)
    num_steps, ends = len(batch.rewards), np.cumsum(batch.lengths) - 1
    if n == 1:
        rewards, lengths, next_observations = batch.rewards, np.ones(num_steps, np.int64), batch.next_observations
    else:
        rewards = batch.rewards.astype(float_type(batch.rewards), copy=False)
        rewards, lengths = windows(rewards, batch.lengths, n, gamma)
        next_observations = observations_after(batch, np.arange(num_steps) + lengths - 1)
    flags = {}
    for name in ("terminated", "truncated"):
        at_steps = np.zeros(num_steps, np.bool_)
        at_steps[ends] = getattr(batch, name)
        flags[name] = at_steps[np.arange(num_steps) + lengths - 1]
    return Transitions(
        batch.observations,
        batch.actions,
        rewards,
        next_observations,
        **flags,
        lengths=lengths,
        agent_infos=batch.agent_infos,
        indices=np.arange(num_steps),
        weights=np.ones(num_steps, np.float32),
    )


def observations_after(batch: Any, steps: NDArray[np.int64]) -> Columns:
    """Return the observation after each of S steps of a batch, (S, *O)."""
    ends = np.cumsum(batch.lengths) - 1
    segments = np.searchsorted(ends, steps)
    at_end = ends[segments] == steps
    last = leaves_of(batch.last_observations)
    found = {}
    for name, array in leaves_of(batch.observations).items():
        found[name] = array[np.where(at_end, steps, steps + 1)]
        found[name][at_end] = last[name][segments[at_end]]
    return columns_of(found)
