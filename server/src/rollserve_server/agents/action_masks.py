"""Action masks: which actions are legal in each row, (M, S) bool with a column for each action or element's value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from rollserve.errors import mismatch
from rollserve_server.agents.agent import ACTION_MASK, ActionMask
from rollserve_server.agents.specs.shapes import consecutive
from rollserve_server.envs import leaf_bounds, leaves_of_space
from rollserve_server.errors import InvalidValueError, listed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gymnasium import Space

    from rollserve_server.agents.specs.inputs import MaskSource
    from rollserve_server.envs import Leaf

__all__ = ["action_mask_of", "choose_legal", "is_without_choice", "masked_actions"]


def action_mask_of(
    source: MaskSource | None, observation_space: Space[Any], action_space: Space[Any]
) -> ActionMask | None:
    """Return the mask of an action space with this source; None without a source.

    Raises:
        InvalidValueError: such actions have no mask, or the observation space has no such leaf; the field is
            `action_mask`, or within it.
    """
    if source is None:
        return None
    counts: tuple[int, ...]
    match action_space:
        case spaces.Discrete():
            counts, start = (int(action_space.n),), np.array([action_space.start])
        case spaces.MultiDiscrete():
            counts, start = tuple(map(int, action_space.nvec.ravel())), action_space.start.ravel()
        case _:
            expected = "none, unless actions are Discrete or MultiDiscrete"
            raise InvalidValueError.of(ACTION_MASK, expected=expected, got=f"a mask of {action_space}")
    path, leaf = tuple(source.name.split("/")), None
    if source.kind == "observation":
        path, leaf = (), _mask_leaf(source.name, leaves_of_space(observation_space), sum(counts))
    return ActionMask(path, leaf, counts, start, tuple(consecutive(counts)))


def is_without_choice(legal: np.ndarray, mask: ActionMask) -> np.ndarray:
    """Return for each row whether an element of the action has no legal value, (M,) bool."""
    has_choice = np.ones(len(legal), np.bool_)
    for part in mask.parts:
        has_choice &= legal[:, part].any(axis=1)
    return ~has_choice


def choose_legal(legal: np.ndarray, fractions: np.ndarray) -> np.ndarray:
    """Return the position of a legal choice in each row, (M,).

    Args:
        legal: (M, n) bool, with at least one true element in each row.
        fractions: (M,), numbers from [0, 1) that choose uniformly among the true elements.
    """
    counts = legal.sum(axis=1)
    numbers = np.minimum(fractions * counts, counts - 1).astype(np.intp)
    positions: np.ndarray = np.add.reduce(legal.cumsum(axis=1) <= numbers[:, np.newaxis], axis=1, dtype=np.intp)
    return positions


def masked_actions(mask: ActionMask, legal: np.ndarray, actions: np.ndarray) -> Mapping[int, str]:
    """Return the rows whose action is masked, with the error; usually empty.

    Args:
        mask: mask of the action space.
        legal: (M, S) bool.
        actions: (M, *A).
    """
    positions = actions.reshape(len(legal), -1).astype(np.intp) - mask.start
    within = np.clip(positions, 0, np.array(mask.counts) - 1) + [part.start for part in mask.parts]
    good = legal[np.arange(len(legal))[:, np.newaxis], within].all(axis=1)
    if good.all():
        return {}
    return {row: f"action: {mismatch('a legal action', actions[row])}" for row in np.flatnonzero(~good).tolist()}


def _mask_leaf(name: str, leaves: Sequence[Leaf], size: int) -> int:
    """Return the position of the leaf that has the mask."""
    field, names = f"{ACTION_MASK}.observation", [leaf.name for leaf in leaves]
    if name not in names or len(leaves) == 1:
        expected = f"a leaf of the observation space, beside others, among {listed(names)}"
        raise InvalidValueError.of(field, expected=expected, got=repr(name))
    position = names.index(name)
    low, high = leaf_bounds(leaves[position])
    if leaves[position].shape != (size,) or np.any(low < 0) or np.any(high > 1):
        expected = f"a leaf of shape {(size,)} with the values 0 and 1"
        raise InvalidValueError.of(field, expected=expected, got=leaves[position].space)
    return position
