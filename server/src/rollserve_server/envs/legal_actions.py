"""Random actions of trials, made legal where an environment shows an action mask: many raise errors at others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gymnasium import Space

__all__ = ["legal_action", "legal_columns"]

_NAME = "action_mask"
"""Name by which environments show masks, as an info or as a leaf of the observation."""


def legal_action(space: Space[Any], action: Any, observation: Any, info: Any) -> Any:
    """Return the action of one row, or a legal one in its place if the row shows a mask that rules it out."""
    mask = _mask(space, (info, observation), 1)
    return action if mask is None else _moved(space, np.asarray(action)[np.newaxis], mask)[0]


def legal_columns(
    space: Space[Any], columns: Sequence[np.ndarray], observations: Mapping[str, Any], infos: Mapping[str, Any]
) -> Sequence[np.ndarray]:
    """Return actions of M rows, for each leaf (M, *A), with legal ones in place of those that masks rule out.

    Args:
        space: action space of one row.
        columns: actions.
        observations: columns of the observation by leaf.
        infos: columns of the infos by name.
    """
    mask = _mask(space, (infos, observations), len(columns[0]))
    return columns if mask is None else [_moved(space, columns[0], mask)]


def _mask(space: Any, shown: Sequence[Any], num_rows: int) -> np.ndarray | None:
    """Return the first valid mask (M, S) bool in one of the mappings; None without one."""
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return None
    for values in shown:
        # Reading a value runs the environment's code, which may raise anything.
        try:
            if isinstance(values, Mapping) and _NAME in values:
                value = values[_NAME]
                parts = [np.ravel(part) for part in value] if isinstance(value, tuple | list) else [np.ravel(value)]
                size = sum(_counts(space))
                mask = np.concatenate(parts).reshape(-1, size) != 0  # of all rows, or of the only one in use
                return np.broadcast_to(mask, (num_rows, size))
        except BaseException:  # noqa: S112
            continue
    return None


def _moved(space: Any, actions: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return actions (M, *A) with each element moved to the next legal value, if it has one."""
    counts = _counts(space)
    positions = (actions - space.start).reshape(len(actions), -1)
    begin = 0
    for element, count in enumerate(counts):
        order = (positions[:, element, np.newaxis] + np.arange(count)) % count
        legal = np.take_along_axis(mask[:, begin : begin + count], order, axis=1)
        positions[:, element] = np.take_along_axis(order, legal.argmax(axis=1)[:, np.newaxis], axis=1)[:, 0]
        begin += count
    moved: np.ndarray = (positions.reshape(actions.shape) + space.start).astype(actions.dtype)
    return moved


def _counts(space: Any) -> list[int]:
    return [int(space.n)] if isinstance(space, spaces.Discrete) else space.nvec.ravel().tolist()
