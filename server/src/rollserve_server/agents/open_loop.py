"""Agents that ignore observations: random and constant actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.agents.action_masks import choose_values, masked_actions
from rollserve_server.agents.agent import ActionMask, Agent, Decision
from rollserve_server.agents.specs import ConstantSpec, consecutive
from rollserve_server.envs import Leaf, leaf_bounds, leaves_of_space
from rollserve_server.errors import InvalidValueError, listed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gymnasium import Space

__all__ = ["ConstantAgent", "RandomAgent"]


class RandomAgent(Agent):
    """An agent that acts at random, as `gymnasium.Space.sample` does, with a mask or without.

    Bounded elements are uniform. Elements of a Box with a single bound are exponential from that bound, elements
    without bounds are standard normal. With a mask, elements are uniform among the legal values, by the same noise.
    """

    def __init__(self, action_space: Space[Any], mask: ActionMask | None) -> None:
        leaves = leaves_of_space(action_space)
        self.mask = mask
        self.infos = () if mask is None else mask.infos
        self._leaves = [_RandomLeaf(leaf) for leaf in leaves]
        masks = {} if mask is None else {leaf.position: leaf for leaf in mask.leaves}
        self._masks = [masks.get(position) for position in range(len(leaves))]
        widths = [leaf.width for leaf in self._leaves]
        self.noise_width, self._parts = sum(widths), consecutive(widths)

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Draw uniform, exponential or normal numbers, as each element needs."""
        for leaf, part in zip(self._leaves, self._parts, strict=True):
            leaf.draw_noise(generator, noise[:, part])

    def act(self, observations: Sequence[np.ndarray], noise: np.ndarray, states: Sequence[np.ndarray] = ()) -> Decision:
        """Draw an action for each row."""
        actions = []
        for leaf, mask, part in zip(self._leaves, self._masks, self._parts, strict=True):
            own_noise = noise[:, part]
            if mask is None:
                actions.append(leaf.act(own_noise))
            else:
                actions.append(leaf.of(choose_values(mask, observations[-1], own_noise)))
        return actions, {} if self.mask is None else self.mask.recorded(observations[-1])


class ConstantAgent(Agent):
    """An agent that always takes the same action."""

    noise_width = 0

    def __init__(self, spec: ConstantSpec, action_space: Space[Any], num_rows: int, mask: ActionMask | None) -> None:
        """Repeat the action in all rows.

        Raises:
            InvalidValueError: the action is not in the action space.
        """
        leaves = leaves_of_space(action_space)
        names = [leaf.name for leaf in leaves]
        if set(spec.action) != set(names):
            expected, got = (f"leaves {listed(sorted(each))}" for each in (names, spec.action))
            raise InvalidValueError.of("action", expected=expected, got=got)
        action = [_converted(leaf, spec.action[leaf.name]) for leaf in leaves]
        self._actions = [np.repeat(value[np.newaxis], num_rows, axis=0) for value in action]
        self.mask = mask
        self.infos = () if mask is None else mask.infos
        self._failures: Mapping[int, str] = {}

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Draw nothing."""

    def act(self, observations: Sequence[np.ndarray], noise: np.ndarray, states: Sequence[np.ndarray] = ()) -> Decision:
        """Return the constant action in each row."""
        if self.mask is None:
            return self._actions, {}
        legal = observations[-1]
        self._failures = masked_actions(self.mask, legal, self._actions)
        return self._actions, self.mask.recorded(legal)

    def failures(self) -> Mapping[int, str]:
        """Return the rows in which the action is masked."""
        return self._failures


def _converted(leaf: Leaf, value: np.ndarray) -> np.ndarray:
    """Return the value of a leaf in the leaf's dtype."""
    field = f"action[{leaf.name!r}]" if leaf.name else "action"
    if value.shape != leaf.shape:
        raise InvalidValueError.of(f"{field}.shape", expected=leaf.shape, got=value.shape)
    if not np.can_cast(value.dtype, leaf.dtype, "same_kind"):
        raise InvalidValueError.of(f"{field}.data_type", expected=leaf.dtype, got=value.dtype)
    with np.errstate(over="ignore"):  # numbers that are too large become infinite
        action = value.astype(leaf.dtype)
    same = np.isfinite(action).all() if leaf.dtype.kind == "f" else np.array_equal(action, value)
    if not (same and leaf.space.contains(action if leaf.shape else leaf.dtype.type(action))):
        raise InvalidValueError.of(field, expected=f"a value of {leaf.space}", got=value)
    return action


class _RandomLeaf:
    """Random values of one leaf: `offset + scale * noise`, rounded down where the leaf holds integers."""

    def __init__(self, leaf: Leaf) -> None:
        self._leaf = leaf
        self._low, self._high = low, high = leaf_bounds(leaf)
        self.width = low.size
        self._integral = leaf.dtype.kind != "f"
        below, above = np.isfinite(low), np.isfinite(high)
        self._exponential, self._normal = below ^ above, ~(below | above)
        # Where the width is beyond float64, half of each value is drawn.
        with np.errstate(invalid="ignore", over="ignore"):  # from infinite bounds, which are not selected
            self._wide = below & above & np.isinf(high - low)
            low, high = np.where(self._wide, low / 2, low), np.where(self._wide, high / 2, high)
            self._scale = np.select([below & above, above], [high + self._integral - low, -1.0], 1.0)
        self._offset = np.select([below, above], [low, high], 0.0)
        self._is_wide = bool(self._wide.any())

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        steps = len(noise)
        noise[:] = generator.random((steps, self.width))
        noise[:, self._exponential] = generator.exponential(size=(steps, int(self._exponential.sum())))
        noise[:, self._normal] = generator.standard_normal((steps, int(self._normal.sum())))

    def act(self, noise: np.ndarray) -> np.ndarray:
        values = self._offset + self._scale * noise
        if self._is_wide:
            values = np.where(self._wide, 2 * values, values)
        if self._integral:
            values = np.floor(values)
        return self.of(np.clip(values, self._low, self._high))  # rounding may exceed the upper bound

    def of(self, values: np.ndarray) -> np.ndarray:
        """Return values (M, size) as actions."""
        actions: np.ndarray = values.astype(self._leaf.dtype).reshape(len(values), *self._leaf.shape)
        return actions
