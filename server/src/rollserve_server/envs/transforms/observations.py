"""Transforms of observations, from what an environment returns to what an agent sees."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from rollserve_server.envs.leaves import leaves_of_space
from rollserve_server.envs.transforms.images import crop, grayscale, resize
from rollserve_server.envs.transforms.leafwise import ColumnFunction, Step, leafwise, rescaling, unfit
from rollserve_server.errors import InvalidValueError, show
from rollserve_wire.errors import mismatch
from rollserve_wire.transforms import (
    CastObservations,
    CropObservations,
    FlattenObservations,
    GrayscaleObservations,
    RescaleObservations,
    ResizeObservations,
    ScaleObservations,
    Transform,
)

if TYPE_CHECKING:
    from gymnasium import Space

__all__ = ["Flattening", "observation_step"]


def observation_step(transform: Transform, space: Space[Any]) -> Step | Flattening | None:
    """Return the step of a transform of observations, from the space before it; None for other transforms.

    Raises:
        InvalidValueError: the transform does not fit the space.
        NotFoundError: a package is not installed.
    """
    match transform:
        case CastObservations(dtype, leaves):
            return leafwise(space, leaves, functools.partial(_cast, dtype=np.dtype(dtype)))
        case ScaleObservations(factor, offset, leaves):
            return leafwise(space, leaves, functools.partial(_scale, factor=factor, offset=offset))
        case RescaleObservations(low, high, leaves):
            return leafwise(space, leaves, functools.partial(_rescale, low=low, high=high))
        case CropObservations():
            return leafwise(space, transform.leaves, functools.partial(crop, transform=transform))
        case ResizeObservations():
            return leafwise(space, transform.leaves, functools.partial(resize, transform=transform))
        case GrayscaleObservations():
            return leafwise(space, transform.leaves, functools.partial(grayscale, transform=transform))
        case FlattenObservations([]):
            parts = [_flat(leaf.space) for leaf in leaves_of_space(space)]
            return Flattening(spaces.flatten_space(space), parts)
        case FlattenObservations(leaves):
            return leafwise(space, leaves, lambda leaf: (spaces.flatten_space(leaf), _flat(leaf)), spaces.Space)
        case _:
            return None


@dataclass(frozen=True)
class Flattening:
    """The values of all leaves as one vector.

    Attributes:
        space: space of the vectors.
        functions: functions that return each leaf's part of the vectors.
    """

    space: Space[Any]
    functions: Sequence[ColumnFunction]

    def apply(self, columns: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the vectors, as the column of the only leaf."""
        parts = [function(column) for function, column in zip(self.functions, columns, strict=True)]
        return parts if len(parts) == 1 else [np.concatenate(parts, axis=1, dtype=self.space.dtype)]


def _cast(space: spaces.Box, dtype: np.dtype) -> tuple[spaces.Box, ColumnFunction]:
    low, high = space.low, space.high
    is_integer = np.dtype(space.dtype).kind in "iu"
    if dtype.kind == "f":
        if is_integer:  # integers without a bound still have a lowest and a highest value
            low = np.where(space.bounded_below, low.astype(np.float64), -np.inf)
            high = np.where(space.bounded_above, high.astype(np.float64), np.inf)
    elif not is_integer:
        raise unfit(f"integers to convert to {dtype}", space)
    else:
        info = np.iinfo(dtype)
        if int(low.min(initial=0)) < info.min or int(high.max(initial=0)) > info.max:
            raise unfit(f"bounds that {dtype} holds", space)
    with np.errstate(over="ignore"):  # bounds near the largest float64 are infinite as float32
        box = spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type)
    return box, lambda column: _rounded(column, dtype)


def _scale(space: spaces.Box, factor: float, offset: float) -> tuple[spaces.Box, ColumnFunction]:
    dtype = np.dtype(space.dtype if np.dtype(space.dtype).kind == "f" else np.float32)
    low = np.where(space.bounded_below, space.low.astype(np.float64), -np.inf) * factor + offset
    high = np.where(space.bounded_above, space.high.astype(np.float64), np.inf) * factor + offset
    if factor < 0:
        low, high = high, low
    with np.errstate(over="ignore"):
        box = spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type)

    def scaled(column: np.ndarray) -> np.ndarray:
        if not offset:
            out = np.empty(column.shape, dtype)
            with np.errstate(over="ignore"):
                np.multiply(column, factor, out=out, dtype=np.float64, casting="same_kind")
            return out
        values = np.multiply(column, factor, dtype=np.float64)
        values += offset
        return _rounded(values, dtype)

    # In float64, the product of two float32 is exact, so multiplying them directly rounds to the same bits. It cannot
    # overflow either if the factor is small, and then takes a fifth of the time.
    own_factor = dtype.type(factor)
    if space.dtype == dtype and not offset and abs(factor) <= 1 and float(own_factor) == factor:
        return box, lambda column: column * own_factor

    return box, scaled


def _rescale(space: spaces.Box, low: float, high: float) -> tuple[spaces.Box, ColumnFunction]:
    if np.dtype(space.dtype).kind != "f":
        raise unfit("floats; cast integers before", space)
    box, function, _ = rescaling(space, low, high)
    return box, function


def _rounded(column: np.ndarray, dtype: np.dtype) -> np.ndarray:
    with np.errstate(over="ignore"):  # a float beyond the dtype becomes infinite
        return column.astype(dtype, copy=False)


def _flat(space: Any) -> ColumnFunction:
    """Return the function that makes vectors of a leaf's values, as `gymnasium.spaces.flatten`."""
    match space:
        case spaces.Discrete():
            return functools.partial(_one_hot, starts=np.array([space.start]), sizes=np.array([space.n]))
        case spaces.MultiDiscrete():
            return functools.partial(_one_hot, starts=space.start.ravel(), sizes=space.nvec.ravel())
        case spaces.Box() | spaces.MultiBinary():
            return lambda column: column.reshape(len(column), -1)
        case _:
            raise InvalidValueError(mismatch("spaces that can be flattened", show(space)))


def _one_hot(column: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return vectors (M, sum of sizes) with a 1 for each of the numbers (M, …), one after the other."""
    values = column.reshape(len(column), -1) - starts
    places = np.cumsum(sizes) - sizes + values
    vectors = np.zeros((len(column), int(sizes.sum())), column.dtype)
    np.put_along_axis(vectors, places, 1, axis=1)
    return vectors
