"""Computations of learners on batches: returns, advantages, off-policy targets and estimates, minibatches, sequences.

The methods of `EpisodeBatch` of the same names call them, and have their documentation.
"""

from rollserve.learning.flattening import flat_values
from rollserve.learning.fragments import Fragments, cut_segments, rows_of, take_segments
from rollserve.learning.minibatches import minibatches, shuffled
from rollserve.learning.off_policy import retrace, vtrace
from rollserve.learning.policy_estimates import Estimate, PolicyEstimates, policy_estimates
from rollserve.learning.returns import Advantages, advantages, discounted_returns, n_step_returns
from rollserve.learning.running_returns import RunningReturns, return_moments_of, scaled_rewards
from rollserve.learning.sequences import sequences
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
