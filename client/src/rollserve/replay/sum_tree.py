"""Sums of priorities in a tree, to draw leaves in proportion to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SumTree"]


class SumTree:
    """Priorities of leaves under a binary tree of their sums, changed and drawn for many leaves at once.

    A node's sum is always the sum of its two children's, and never updated by differences, so that rounding errors do
    not add up.
    """

    def __init__(self, num_leaves: int) -> None:
        self._num_leaves = 1 << (num_leaves - 1).bit_length()
        self._sums = np.zeros(2 * self._num_leaves)  # the root is node 1, the children of node i are 2 i and 2 i + 1

    def __getitem__(self, leaves: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the priorities of leaves."""
        return self._sums[leaves + self._num_leaves]

    def __setitem__(self, leaves: NDArray[np.int64], priorities: np.ndarray | float) -> None:
        """Set the priorities of leaves, at least 0; the last one counts for a leaf that occurs several times."""
        nodes = leaves + self._num_leaves
        self._sums[nodes] = priorities
        nodes = np.unique(nodes)
        while len(nodes) and nodes[0] > 1:
            nodes = nodes >> 1
            nodes = nodes[np.append(True, nodes[1:] != nodes[:-1])]
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]

    @property
    def total(self) -> float:
        """Sum of all priorities."""
        return float(self._sums[1])

    @property
    def nbytes(self) -> int:
        """Bytes of all sums."""
        return self._sums.nbytes

    def find(self, places: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the leaf at each place, if the leaves' priorities lie one behind the other from 0 to `total`.

        Leaves of priority 0 are never found while `total` is over 0, also if rounding moves a place beyond a sum.
        """
        nodes, rests = np.ones(len(places), np.int64), places
        for _ in range(self._num_leaves.bit_length() - 1):
            left, right = self._sums[2 * nodes], self._sums[2 * nodes + 1]
            goes_right = (rests >= left) & (right > 0)
            rests = np.where(goes_right, rests - left, rests)
            nodes = 2 * nodes + goes_right
        return nodes - self._num_leaves
