"""Observations flattened into the input of a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from rollserve_server.agents.specs.shapes import consecutive
from rollserve_server.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_server.agents.agent import ActionMask
    from rollserve_server.envs import Leaf

__all__ = ["Flattener"]


class Flattener:
    """Flattens observations of M rows, as `gymnasium.spaces.flatten` does for one.

    Attributes:
        size: size of a flat observation.
        content: what the flat observation holds, for errors.
    """

    def __init__(self, leaves: Sequence[Leaf], mask: ActionMask | None = None) -> None:
        """Flatten the leaves of the observation space, except one that has the mask."""
        positions = [position for position in range(len(leaves)) if mask is None or position != mask.leaf]
        flat_spaces = [leaves[position].space for position in positions]
        for position in positions:
            if isinstance(leaves[position].space, spaces.Text):
                name = f"texts at {leaves[position].name!r}" if leaves[position].name else "texts"
                raise InvalidValueError.of("", expected="observations of numbers", got=name)
        sizes = [spaces.flatdim(space) for space in flat_spaces]
        self.size = sum(sizes)
        self.content = "the observation space"
        if len(positions) < len(leaves):
            self.content += " without the action mask"
        # For each leaf: its space, its position among the observations, and its columns.
        self._parts = list(zip(flat_spaces, positions, consecutive(sizes), strict=True))

    def __call__(self, observations: Sequence[np.ndarray], out: np.ndarray) -> None:
        """Write the flat observations to `out`.

        Args:
            observations: an array (M, *O) for each leaf; others may follow.
            out: (M, size), floats.
        """
        for space, position, part in self._parts:
            _flatten_leaf(space, observations[position], out[:, part])


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
