"""Computations of learners on batches: returns, advantages, off-policy targets and estimates, minibatches, sequences.

The methods of `EpisodeBatch` of the same names call them, and have their documentation.
"""

from rollserve.learning.flattening import flat_values
from rollserve.learning.minibatches import (
    Fragments,
    cut_segments,
    minibatches,
    rows_of,
    sequences,
    shuffled,
    take_segments,
)
from rollserve.learning.off_policy import Estimate, PolicyEstimates, policy_estimates, retrace, vtrace
from rollserve.learning.returns import (
    Advantages,
    RunningReturns,
    advantages,
    discounted_returns,
    n_step_returns,
    return_moments_of,
    scaled_rewards,
)
from rollserve.learning.transitions import Transitions, transitions

__all__ = [
    "Advantages",
    "Estimate",
    "Fragments",
    "PolicyEstimates",
    "RunningReturns",
    "Transitions",
    "advantages",
    "cut_segments",
    "discounted_returns",
    "flat_values",
    "minibatches",
    "n_step_returns",
    "policy_estimates",
    "retrace",
    "return_moments_of",
    "rows_of",
    "scaled_rewards",
    "sequences",
    "shuffled",
    "take_segments",
    "transitions",
    "vtrace",
]
