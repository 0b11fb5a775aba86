"""Computations of learners on batches: returns, advantages, off-policy targets, minibatches, sequences, transitions.

The methods of `EpisodeBatch` of the same names call them, and have their documentation.
"""

from rollserve.learning.arguments import (
    check_count,
    check_fraction,
    check_generator,
    checked_values,
)
from rollserve.learning.minibatches import minibatches, shuffled
from rollserve.learning.off_policy import retrace, vtrace
from rollserve.learning.returns import Advantages, advantages, discounted_returns, n_step_returns
from rollserve.learning.sequences import sequences
from rollserve.learning.transitions import Transitions, check_discount, transitions

__all__ = [
    "Advantages",
    "Transitions",
    "advantages",
    "check_count",
    "check_discount",
    "check_fraction",
    "check_generator",
    "checked_values",
    "discounted_returns",
    "minibatches",
    "n_step_returns",
    "retrace",
    "sequences",
    "shuffled",
    "transitions",
    "vtrace",
]
