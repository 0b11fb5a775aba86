"""Observations flattened into the input of a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from rollserve_server.agents.specs.shapes import consecutive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_server.envs import Leaf

__all__ = ["Flattener"]


class Flattener:
    """Flattens observations of M rows, as `gymnasium.spaces.flatten` does for one.

    Attributes:
        size: size of a flat observation.
    """

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self._spaces = [leaf.space for leaf in leaves]
        sizes = [spaces.flatdim(space) for space in self._spaces]
        self.size, self._parts = sum(sizes), consecutive(sizes)

    def __call__(self, observations: Sequence[np.ndarray], out: np.ndarray) -> None:
        """Write the flat observations to `out`.

        Args:
            observations: an array (M, *O) for each leaf.
            out: (M, size), floats.
        """
        for space, part, column in zip(self._spaces, self._parts, observations, strict=True):
            _flatten_leaf(space, column, out[:, part])


def _flatten_leaf(space: Any, column: np.ndarray, out: np.ndarray) -> None:
    match space:
        case spaces.Discrete():
            _one_hot(column - space.start, out)
        case spaces.MultiDiscrete():
            begin = 0
            positions = (column - space.start).reshape(len(column), -1)
            for element, n in enumerate(space.nvec.ravel()):
                _one_hot(positions[:, element], out[:, begin : begin + n])
                begin += n
        case _:
            out[...] = column.reshape(len(column), -1)


def _one_hot(positions: np.ndarray, out: np.ndarray) -> None:
    out[...] = 0
    out[np.arange(len(positions)), positions] = 1
