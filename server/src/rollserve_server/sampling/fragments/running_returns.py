"""Discounted returns of episodes that go on from call to call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["RunningReturns"]


class RunningReturns:
    """The discounted return of each row's episode, R[t] = discount * R[t - 1] + reward[t], added up step by step.

    A replay adds up the same rewards in the same order, so a restored row has the same return, to the last bit.

    Attributes:
        values: (M,), R after the last step of each row; 0 before an episode's first step, and without a discount.
    """

    def __init__(self, num_rows: int, discount: float | None) -> None:
        """Begin with rows that have made no steps. Without a discount, nothing is added up."""
        self.values = np.zeros(num_rows)
        self._discount = discount

    def begin(self, rows: int | slice | NDArray[np.int64] | NDArray[np.bool_]) -> None:
        """Begin new episodes of rows."""
        self.values[rows] = 0.0

    def add(self, rewards: NDArray[np.float64], rows: int | slice = slice(None)) -> None:
        """Add a step of rows, given the rewards of all rows, (M,)."""
        if self._discount is not None:
            with np.errstate(all="ignore"):  # of rewards that are not finite
                self.values[rows] = self._discount * self.values[rows] + rewards[rows]
