"""Spaces as flat lists of named leaves, each of which is a column of arrays."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces as gym_spaces

from rollserve import spaces
from rollserve._codec.tensors import dtype_to_proto
from rollserve_server.errors import InvalidValueError, show

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gymnasium import Space

__all__ = [
    "Leaf",
    "any_value",
    "assemble_rows",
    "batch_of_leaves",
    "describe_space",
    "leaves_of_batch",
    "leaves_of_space",
    "store_observation",
]


@dataclass(frozen=True, eq=False)
class Leaf:
    """One part of a space that is an array or a number.

    Attributes:
        name: its path from the root, joined by `/`; empty if it is the root.
        path: the keys and positions that lead to it.
        space: a Box, Discrete, MultiDiscrete or MultiBinary space.
        shape: the shape of a value.
        dtype: the dtype of a value.
    """

    name: str
    path: tuple[str | int, ...]
    space: Space[Any]
    shape: tuple[int, ...]
    dtype: np.dtype

    def takes(self, value: Any) -> bool:
        """Whether the value is of a kind that numpy stores without loss, or refuses. Asked at each step, so quick."""
        if type(value) is np.ndarray:
            return value.dtype is self.dtype and value.shape == self.shape
        return type(value) in self._number_types

    @functools.cached_property
    def _number_types(self) -> frozenset[type]:
        if self.shape:
            return frozenset()
        if self.dtype.kind == "f":
            return frozenset({self.dtype.type, float})
        if self.dtype == np.int64:
            return frozenset({self.dtype.type, int})
        return frozenset({self.dtype.type})


def leaves_of_space(space: Space[Any]) -> tuple[Leaf, ...]:
    """The leaves of a space, in the order of `gymnasium.spaces.flatten`.

    Raises:
        InvalidValueError: the space has a part of another kind, a dtype that has no place on the wire, or a key that
            is no string or contains `/`.
    """
    return tuple(_leaves(space, ()))


def describe_space(space: Space[Any]) -> spaces.Space:
    """The space without gymnasium. It must be one that `leaves_of_space` takes."""
    match space:
        case gym_spaces.Box():
            return spaces.Box(space.low, space.high, space.shape, np.dtype(space.dtype))
        case gym_spaces.Discrete():
            return spaces.Discrete(int(space.n), int(space.start))
        case gym_spaces.MultiDiscrete():
            return spaces.MultiDiscrete(space.nvec, space.start, np.dtype(space.dtype))
        case gym_spaces.MultiBinary():
            return spaces.MultiBinary(space.shape)
        case gym_spaces.Dict():
            return spaces.Dict({key: describe_space(subspace) for key, subspace in space.spaces.items()})
        case gym_spaces.Tuple():
            return spaces.Tuple(tuple(map(describe_space, space.spaces)))
        case _:
            raise _unsupported((), type(space).__name__)


def store_observation(observation: Any, leaves: Sequence[Leaf], columns: Sequence[np.ndarray], row: int) -> None:
    """Writes an observation into one row of each leaf's column.

    Values outside the space's bounds are taken: many environments give some.

    Raises:
        LookupError, TypeError: it is not of the space's structure.
        ValueError: a part of it has another shape than its leaf, or a dtype that loses values, which numpy would
            stretch and cut off in silence. Rounding of floats is no loss; integers may have any type that holds them.
        OverflowError: a number is beyond its leaf's dtype.
    """
    for leaf, column in zip(leaves, columns, strict=True):
        part = observation
        for step in leaf.path:
            part = part[step]
        column[row] = part if leaf.takes(part) else _cast(part, leaf)


def assemble_rows(space: Space[Any], columns: Iterator[np.ndarray]) -> list[Any]:
    """The values of a space from the columns of its leaves, one for each row.

    A number of a Discrete space is a numpy integer, as `space.sample()` makes it; arrays are views of the columns.
    """
    if isinstance(space, gym_spaces.Dict):
        parts = {key: assemble_rows(subspace, columns) for key, subspace in space.spaces.items()}
        return [dict(zip(parts, row, strict=True)) for row in zip(*parts.values(), strict=True)]
    if isinstance(space, gym_spaces.Tuple):
        subspaces = [assemble_rows(subspace, columns) for subspace in space.spaces]
        return list(zip(*subspaces, strict=True))
    return list(next(columns))


def leaves_of_batch(batch: Any, leaves: Sequence[Leaf], num_rows: int) -> list[np.ndarray]:
    """For each leaf the column (M, *shape) of a batch of M values, as vector environments give it; not copied.

    Raises:
        LookupError, TypeError, ValueError, OverflowError: as of `store_observation`.
    """
    columns = []
    for leaf in leaves:
        part = batch
        for step in leaf.path:
            part = part[step]
        if not (type(part) is np.ndarray and part.dtype is leaf.dtype and part.shape == (num_rows, *leaf.shape)):
            part = _cast(part, leaf, (num_rows, *leaf.shape))
        columns.append(part)
    return columns


def batch_of_leaves(space: Space[Any], columns: Iterator[np.ndarray]) -> Any:
    """The batch of a space's values, as vector environments take it, from the columns of its leaves."""
    if isinstance(space, gym_spaces.Dict):
        return {key: batch_of_leaves(subspace, columns) for key, subspace in space.spaces.items()}
    if isinstance(space, gym_spaces.Tuple):
        return tuple(batch_of_leaves(subspace, columns) for subspace in space.spaces)
    return next(columns)


def _cast(value: Any, leaf: Leaf, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """The part of an observation as an array of a shape, its leaf's unless given, and its leaf's dtype.

    Raises what `store_observation` says.
    """
    came = np.asarray(value)
    where = f"observation {leaf.name!r}" if leaf.name else "observation"
    shape = leaf.shape if shape is None else shape
    if came.shape != shape:
        raise ValueError(f"{where}: shape {came.shape} came, shape {shape} was expected")
    if came.dtype == leaf.dtype:
        return came
    integral = came.dtype.kind in "iu" and leaf.dtype.kind in "iu"
    if not integral and not np.can_cast(came.dtype, leaf.dtype, "same_kind"):
        raise ValueError(f"{where}: dtype {came.dtype} came, dtype {leaf.dtype} was expected")
    cast = came.astype(leaf.dtype)
    if integral and not np.array_equal(cast, came):
        raise ValueError(f"{where}: {came[cast != came].flat[0]} came, a value of dtype {leaf.dtype} was expected")
    return cast


def _leaves(space: Space[Any], path: tuple[str | int, ...]) -> Iterator[Leaf]:
    match space:
        case gym_spaces.Dict():
            for key, subspace in space.spaces.items():
                if not _is_name(key):
                    raise InvalidValueError(
                        f"its space has the key {show(key)}, a name without / was expected", field="id"
                    )
                yield from _leaves(subspace, (*path, key))
        case gym_spaces.Tuple():
            for position, subspace in enumerate(space.spaces):
                yield from _leaves(subspace, (*path, position))
        case gym_spaces.Box() | gym_spaces.Discrete() | gym_spaces.MultiDiscrete() | gym_spaces.MultiBinary():
            dtype = np.dtype(space.dtype)
            try:
                dtype_to_proto(dtype)
            except ValueError as error:
                raise InvalidValueError(f"its space {_name(path)!r}: {error}", field="id") from None
            yield Leaf(_name(path), path, space, space.shape or (), dtype)
        case _:
            raise _unsupported(path, type(space).__name__)


def _is_name(key: object) -> bool:
    """Whether it can be part of a leaf's name, which is Unicode."""
    return isinstance(key, str) and key != "" and "/" not in key and key == key.encode(errors="replace").decode()


def _name(path: tuple[str | int, ...]) -> str:
    return "/".join(map(str, path))


def _unsupported(path: tuple[str | int, ...], kind: str) -> InvalidValueError:
    expected = "a Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple space was expected"
    return InvalidValueError(f"its space {_name(path)!r} is a {kind} space, {expected}", field="id")


def any_value(leaf: Leaf) -> np.ndarray:
    """A value of the leaf, (*shape): zeros where they are in its space."""
    space: Any = leaf.space
    match space:
        case gym_spaces.Discrete() | gym_spaces.MultiDiscrete():
            value = space.start
        case gym_spaces.Box():
            value = np.clip(0, space.low, space.high)
        case _:
            value = 0
    return np.broadcast_to(value, leaf.shape).astype(leaf.dtype)
