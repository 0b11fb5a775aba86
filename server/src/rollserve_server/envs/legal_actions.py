"""Random actions of trials, made legal where an environment shows an action mask: many raise errors at others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rollserve_server.envs.leaves import any_value, leaves_of_space

__all__ = ["legal_action", "legal_columns", "random_value"]

_NAME = "action_mask"
"""Name that environments show masks under, as an info or as a part of the observation."""

_Path = tuple[str | int, ...]


def random_value(space: Space[Any]) -> Any:
    """Return a random value of a space; where gymnasium cannot draw one, any value.

    It cannot for a Box whose width is beyond float64, or whose highest int64 is followed by none.
    """
    try:
        return space.sample()
    except (ValueError, OverflowError):
        if isinstance(space, spaces.Dict):
            return {key: random_value(part) for key, part in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(map(random_value, space.spaces))
        (leaf,) = leaves_of_space(space)
        return any_value(leaf)


def legal_action(space: Space[Any], action: Any, observation: Any, info: Any) -> Any:
    """Return the action of one row, with legal values in place of values that a mask of the row rules out."""
    return _legal_part(space, (), action, (info, observation))


def legal_columns(
    space: Space[Any], columns: Sequence[np.ndarray], observations: Mapping[str, Any], infos: Mapping[str, Any]
) -> Sequence[np.ndarray]:
    """Return actions of M rows, for each leaf (M, *A), with legal values in place of values that masks rule out.

    Args:
        space: action space of one row.
        columns: actions.
        observations: columns of the observation by leaf.
        infos: columns of the infos by name.
    """
    chosen = []
    for leaf, column in zip(leaves_of_space(space), columns, strict=True):
        mask = _mask(leaf.space, leaf.path, (infos, observations), len(column))
        chosen.append(column if mask is None else _moved(leaf.space, column, mask))
    return chosen


def _legal_part(space: Any, path: _Path, value: Any, shown: Sequence[Any]) -> Any:
    """Return the value of a part of an action, with legal values in place of others."""
    if isinstance(space, spaces.Dict):
        return {key: _legal_part(part, (*path, key), value[key], shown) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_legal_part(part, (*path, key), value[key], shown) for key, part in enumerate(space.spaces))
    mask = _mask(space, path, shown, 1)
    return value if mask is None else _moved(space, np.asarray(value)[np.newaxis], mask)[0]


def _mask(leaf: Any, path: _Path, shown: Sequence[Any], num_rows: int) -> np.ndarray | None:
    """Return the first valid mask of a leaf (M, S) bool in one of the mappings; None without one."""
    if not isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return None
    for values in shown:
        # Reading a value runs the environment's code, which may raise anything.
        try:
            value = _find(values, path)
            if value is None:
                continue
            has_rows = isinstance(value, np.ndarray) and value.dtype.hasobject
            numbers = np.concatenate(list(map(_flat, value))) if has_rows else _flat(value)
            if isinstance(leaf, spaces.MultiBinary):  # 0 or 1 for the only legal value, 2 for both
                numbers = np.stack([numbers != 1, numbers != 0], axis=-1)
            mask = numbers.reshape(-1, sum(_counts(leaf))) != 0  # of all rows, or of the only one in use
            return np.broadcast_to(mask, (num_rows, mask.shape[1]))
        except BaseException:  # noqa: S112
            continue
    return None


def _find(values: Any, path: _Path) -> Any:
    """Return what a mapping shows as the mask of a leaf; None for nothing."""
    if not isinstance(values, Mapping):
        return None
    name = "/".join(map(str, (_NAME, *path)))
    if name in values or _NAME not in values:  # leaves of observations have their whole paths as names
        return values.get(name)
    value = values[_NAME]
    for step in path:
        if isinstance(value, np.ndarray) and value.dtype.hasobject:  # of rows whose masks are tuples
            rows, value = value, np.empty(len(value), object)
            for row, of_row in enumerate(rows):
                value[row] = of_row[step]
        else:
            value = value[step]
    return value


def _flat(value: Any) -> np.ndarray:
    """Return a mask as one array, from an array for each element if it is a list or tuple of such."""
    parts = value if isinstance(value, tuple | list) else [value]
    return np.concatenate([np.ravel(part) for part in parts])


def _moved(space: Any, actions: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return actions (M, *A) with each element moved to the next legal value, if it has one."""
    counts = _counts(space)
    start = 0 if isinstance(space, spaces.MultiBinary) else space.start
    positions = (actions - start).reshape(len(actions), -1)
    begin = 0
    for element, count in enumerate(counts):
        order = (positions[:, element, np.newaxis] + np.arange(count)) % count
        legal = np.take_along_axis(mask[:, begin : begin + count], order, axis=1)
        positions[:, element] = np.take_along_axis(order, legal.argmax(axis=1)[:, np.newaxis], axis=1)[:, 0]
        begin += count
    moved: np.ndarray = (positions.reshape(actions.shape) + start).astype(actions.dtype)
    return moved


def _counts(space: Any) -> list[int]:
    """Return the number of values of each element of a leaf."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    return space.nvec.ravel().tolist() if isinstance(space, spaces.MultiDiscrete) else [2] * int(np.prod(space.shape))
