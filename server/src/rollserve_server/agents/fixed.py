"""Agents that do not look: random and constant actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from rollserve_server.agents.agent import InfoSpec, StateSpec
    from rollserve_server.envs import Leaf

__all__ = ["ConstantAgent", "RandomAgent", "leaf_bounds"]


class RandomAgent:
    """Draws uniformly from the action space, as `gymnasium.Space.sample` does: elements of a Box that have only one
    bound come from an exponential distribution beyond it, those without any from a standard normal one.
    """  # noqa: D205

    factors: np.ndarray | None = None
    infos: tuple[InfoSpec, ...] = ()
    states: tuple[StateSpec, ...] = ()

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self._leaves = [_RandomLeaf(leaf) for leaf in leaves]
        self.noise_width = sum(leaf.width for leaf in self._leaves)

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """What each element takes: uniform, exponential or normal numbers."""
        begin = 0
        for leaf in self._leaves:
            leaf.draw_noise(generator, noise[:, begin : begin + leaf.width])
            begin += leaf.width

    def act(
        self, observations: Sequence[np.ndarray], noise: np.ndarray, states: Sequence[np.ndarray] = ()
    ) -> tuple[Sequence[np.ndarray], Mapping[str, np.ndarray]]:
        """See Agent."""
        actions, begin = [], 0
        for leaf in self._leaves:
            actions.append(leaf.act(noise[:, begin : begin + leaf.width]))
            begin += leaf.width
        return actions, {}

    def failures(self) -> Mapping[int, str]:
        """See Agent."""
        return {}


class ConstantAgent:
    """Does the same always."""

    noise_width = 0
    factors: np.ndarray | None = None
    infos: tuple[InfoSpec, ...] = ()
    states: tuple[StateSpec, ...] = ()

    def __init__(self, actions: Sequence[np.ndarray], num_rows: int) -> None:
        """Takes one action as the leaves of the action space."""
        self._actions = [np.repeat(action[np.newaxis], num_rows, axis=0) for action in actions]

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Draws nothing."""

    def act(
        self, observations: Sequence[np.ndarray], noise: np.ndarray, states: Sequence[np.ndarray] = ()
    ) -> tuple[Sequence[np.ndarray], Mapping[str, np.ndarray]]:
        """See Agent."""
        return self._actions, {}

    def failures(self) -> Mapping[int, str]:
        """See Agent."""
        return {}


class _RandomLeaf:
    """Random values of one leaf: `offset + scale * noise`, rounded down where the leaf holds integers."""

    def __init__(self, leaf: Leaf) -> None:
        self._leaf = leaf
        self._low, self._high = low, high = leaf_bounds(leaf)
        self.width = low.size
        self._integral = leaf.dtype.kind != "f"
        below, above = np.isfinite(low), np.isfinite(high)
        self._exponential, self._normal = below ^ above, ~(below | above)
        with np.errstate(invalid="ignore"):  # of infinite bounds, which are not selected
            self._scale = np.select([below & above, above], [high + self._integral - low, -1.0], 1.0)
        self._offset = np.select([below, above], [low, high], 0.0)

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        steps = len(noise)
        noise[:] = generator.random((steps, self.width))
        noise[:, self._exponential] = generator.exponential(size=(steps, int(self._exponential.sum())))
        noise[:, self._normal] = generator.standard_normal((steps, int(self._normal.sum())))

    def act(self, noise: np.ndarray) -> np.ndarray:
        values = self._offset + self._scale * noise
        if self._integral:
            values = np.floor(values)
        values = np.clip(values, self._low, self._high)  # against rounding at the upper bound
        actions: np.ndarray = values.astype(self._leaf.dtype).reshape(len(noise), *self._leaf.shape)
        return actions


def leaf_bounds(leaf: Leaf) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The least and the greatest value of each element; infinite where there is none."""
    space: Any = leaf.space
    match space:
        case spaces.Discrete():
            low, high = np.array([space.start]), np.array([space.start + space.n - 1])
        case spaces.MultiDiscrete():
            low, high = space.start, space.start + space.nvec - 1
        case spaces.MultiBinary():
            low, high = np.zeros(leaf.shape), np.ones(leaf.shape)
        case _:
            low = np.where(space.bounded_below, space.low, -np.inf)
            high = np.where(space.bounded_above, space.high, np.inf)
    return low.ravel().astype(np.float64), high.ravel().astype(np.float64)
