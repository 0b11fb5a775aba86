"""Action masks: which actions are legal in each row, (M, S) bool with a column for each action or element's value."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space, spaces

from rollserve_server.agents.agent import ACTION_MASK, ActionMask, LeafMask, leaf_role
from rollserve_server.agents.specs import MaskSource, consecutive
from rollserve_server.envs import Leaf, leaf_bounds, leaves_of_space
from rollserve_server.errors import InvalidValueError, listed
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "action_mask_of",
    "choose_legal",
    "choose_values",
    "is_without_choice",
    "legal_values",
    "masked_actions",
    "masked_values",
    "shown_values",
]


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
    leaves: list[LeafMask] = []
    for position, leaf in enumerate(leaves_of_space(action_space)):
        if isinstance(leaf.space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            leaves.append(_leaf_mask(leaf, position, leaves[-1].columns.stop if leaves else 0))
    if not leaves:
        expected = "none, unless actions have a Discrete, MultiDiscrete or MultiBinary leaf"
        raise InvalidValueError.of(ACTION_MASK, expected=expected, got=f"a mask of {action_space}")
    if source.kind == "info":
        return ActionMask(tuple(source.name.split("/")), (), tuple(leaves))
    observed = leaves_of_space(observation_space)
    hidden = {position for position, leaf in enumerate(observed) if f"{leaf.name}/".startswith(f"{source.name}/")}
    if not hidden or len(hidden) == len(observed):
        names = listed([leaf.name for leaf in observed])
        expected = f"a leaf of the observation space, beside others, among {names}, or a Dict or Tuple of such leaves"
        raise InvalidValueError.of(f"{ACTION_MASK}.observation", expected=expected, got=repr(source.name))
    sources = tuple(_source_of(source.name, leaf, observed) for leaf in leaves)
    return ActionMask((), sources, tuple(leaves), frozenset(hidden))


def is_without_choice(legal: np.ndarray, mask: ActionMask) -> np.ndarray:
    """Return for each row whether an element of the action has no legal value, (M,) bool."""
    has_choice = np.ones(len(legal), np.bool_)
    for leaf in mask.leaves:
        of_leaf = legal[:, leaf.columns]
        if leaf.is_even:
            by_element = of_leaf.reshape(len(legal), len(leaf.counts), leaf.counts[0])
            has_choice &= np.logical_and.reduce(by_element.any(axis=2), axis=1)
        else:
            for part in leaf.parts:
                has_choice &= of_leaf[:, part].any(axis=1)
    return ~has_choice


def choose_values(leaf: LeafMask, legal: np.ndarray, fractions: np.ndarray) -> np.ndarray:
    """Return legal values of each element of a leaf, (M, elements).

    Args:
        leaf: mask of the leaf.
        legal: (M, S) bool, of all leaves; each element has a legal value.
        fractions: (M, elements), numbers from [0, 1) that choose uniformly among the legal values.
    """
    of_leaf = legal[:, leaf.columns]
    if leaf.is_even:
        positions = choose_legal(of_leaf.reshape(-1, leaf.counts[0]), fractions.ravel()).reshape(fractions.shape)
    else:
        chosen = [choose_legal(of_leaf[:, part], fractions[:, i]) for i, part in enumerate(leaf.parts)]
        positions = np.stack(chosen, axis=1)
    values: np.ndarray = positions + leaf.start
    return values


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


def masked_actions(mask: ActionMask, legal: np.ndarray, actions: Sequence[np.ndarray]) -> Mapping[int, str]:
    """Return the rows whose action is masked, with the error; usually empty.

    Args:
        mask: mask of the action space.
        legal: (M, S) bool.
        actions: for each leaf of the action space (M, *A).
    """
    found: dict[int, str] = {}
    for leaf in mask.leaves:
        for row, text in masked_values(leaf, legal, actions[leaf.position]).items():
            found.setdefault(row, text)
    return found


def masked_values(leaf: LeafMask, legal: np.ndarray, values: np.ndarray) -> Mapping[int, str]:
    """Return the rows in which a leaf of the action is masked, with the error; usually empty.

    Args:
        leaf: mask of the leaf.
        legal: (M, S) bool, of all leaves.
        values: (M, *A).
    """
    positions = values.reshape(len(legal), -1).astype(np.intp) - leaf.start
    within = np.clip(positions, 0, np.array(leaf.counts) - 1) + [part.start for part in leaf.parts]
    good = legal[np.arange(len(legal))[:, np.newaxis], leaf.columns.start + within].all(axis=1)
    if good.all():
        return {}
    field = f"action[{leaf.name!r}]" if leaf.name else "action"
    return {row: f"{field}: {mismatch('a legal action', values[row])}" for row in np.flatnonzero(~good).tolist()}


def legal_values(leaf: LeafMask, shown: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Write which values of a leaf are legal to `out`; return the rows whose mask is valid, (M,) bool.

    Args:
        leaf: mask of the leaf.
        shown: (M, numbers), the mask as environments show it.
        out: (M, values) bool; what it holds in rows without a valid mask is not defined.
    """
    if leaf.is_binary:
        np.not_equal(shown, 1, out=out[:, ::2])
        np.not_equal(shown, 0, out=out[:, 1::2])
    else:
        np.not_equal(shown, 0, out=out)
    if shown.dtype == np.bool_:  # which has no 2, so that a binary mask of booleans would leave no choice
        return np.full(len(shown), not leaf.is_binary)
    good = (shown == 0) | (shown == 1)
    if leaf.is_binary:
        good |= shown == 2
    valid: np.ndarray = good.all(axis=1)
    return valid


def shown_values(leaf: LeafMask, legal: np.ndarray) -> np.ndarray:
    """Return a leaf's mask as environments show it, (M, numbers), given the legal values of all leaves, (M, S) bool."""
    of_leaf = legal[:, leaf.columns]
    return np.where(of_leaf[:, ::2] & of_leaf[:, 1::2], 2, of_leaf[:, 1::2]) if leaf.is_binary else of_leaf


def _leaf_mask(leaf: Leaf, position: int, first_column: int) -> LeafMask:
    counts: tuple[int, ...]
    space: Any = leaf.space
    match space:
        case spaces.Discrete():
            counts, start = (int(space.n),), np.array([space.start])
        case spaces.MultiDiscrete():
            counts, start = tuple(map(int, space.nvec.ravel())), space.start.ravel()
        case _:
            counts = tuple(itertools.repeat(2, int(np.prod(leaf.shape))))
            start = np.zeros(len(counts), np.int64)
    columns = slice(first_column, first_column + sum(counts))
    is_binary = isinstance(space, spaces.MultiBinary)
    return LeafMask(leaf.name, leaf.path, position, counts, start, columns, tuple(consecutive(counts)), is_binary)


def _source_of(name: str, mask: LeafMask, observed: Sequence[Leaf]) -> int:
    """Return the position of the leaf of the observation space that has the mask of a leaf of the action space."""
    name = leaf_role(name, mask)
    field, names = f"{ACTION_MASK}.observation", [leaf.name for leaf in observed]
    if name not in names:
        expected = f"a leaf {name!r} of the observation space, for the mask of {mask.name or 'the action'!r}"
        raise InvalidValueError.of(field, expected=expected, got=f"leaves {listed(names)}")
    position = names.index(name)
    leaf = observed[position]
    low, high = leaf_bounds(leaf)
    if mask.is_binary:
        fits = int(np.prod(leaf.shape)) == mask.num_shown and low.min() >= 0 and high.max() == 2
        expected = f"a leaf of {mask.num_shown} numbers with the values 0, 1 and 2 (for both)"
    else:
        fits = leaf.shape == (mask.num_shown,) and low.min() >= 0 and high.max() <= 1
        expected = f"a leaf of shape {(mask.num_shown,)} with the values 0 and 1"
    if not fits:
        raise InvalidValueError.of(field, expected=expected, got=leaf.space)
    return position
