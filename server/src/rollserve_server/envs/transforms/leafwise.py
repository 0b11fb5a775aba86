"""Transforms that treat each leaf of a space alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium import spaces
from gymnasium.wrappers.utils import rescale_box

from rollserve_server.envs.leaves import leaves_of_space
from rollserve_server.errors import InvalidValueError, show, within
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from gymnasium import Space

__all__ = ["ColumnFunction", "Step", "leafwise", "rescaling", "unfit"]

ColumnFunction = Callable[[np.ndarray], np.ndarray]
"""Returns the transformed values (M, *shape) of a leaf, in a new array or a view."""


class Step(NamedTuple):
    """A transform of the values of a space.

    Attributes:
        space: space on the agent's side.
        functions: function for each leaf, None for a leaf that stays as it is.
    """

    space: Space[Any]
    functions: Sequence[ColumnFunction | None]

    def apply(self, columns: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the transformed column of each leaf."""
        pairs = zip(self.functions, columns, strict=True)
        return [column if function is None else function(column) for function, column in pairs]


def leafwise(
    space: Space[Any],
    names: Collection[str],
    transform: Callable[[Any], tuple[Space[Any], ColumnFunction] | None],
    kind: type[Space[Any]] = spaces.Box,
) -> Step:
    """Return the step that transforms some leaves of a space.

    Args:
        space: the space.
        names: names of the leaves; empty for every one of the kind.
        transform: returns a leaf's new space and its function; None if the leaf is not concerned.
        kind: kind of the leaves' spaces.

    Raises:
        InvalidValueError: no leaf is concerned, a name is no leaf's, or a named leaf is of another kind or
            not concerned.
    """
    leaves = leaves_of_space(space)
    unknown = sorted(set(names) - {leaf.name for leaf in leaves})
    if unknown:
        known = ", ".join(repr(leaf.name) for leaf in leaves if leaf.name)
        expected = f"names among {known}" if known else "none, because the space has no named leaves"
        raise InvalidValueError.of("leaves", expected=expected, got=repr(unknown[0]))
    new_spaces: list[Space[Any]] = []
    functions: list[ColumnFunction | None] = []
    for leaf in leaves:
        found = None
        if isinstance(leaf.space, kind) and (not names or leaf.name in names):
            with within(f"[{leaf.name!r}]" if leaf.name else ""):
                found = transform(leaf.space)
        if found is None and leaf.name in names:
            raise unfit("Boxes as leaves", leaf.space)
        new_spaces.append(leaf.space if found is None else found[0])
        functions.append(None if found is None else found[1])
    if not any(functions):
        raise unfit("a space with a Box that can be transformed", space)
    return Step(_with_leaves(space, iter(new_spaces)), functions)


def rescaling(space: spaces.Box, low: float, high: float) -> tuple[spaces.Box, ColumnFunction, ColumnFunction]:
    """Return gymnasium's rescaling of a Box of floats to other bounds: the Box, the function, and its inverse.

    Raises:
        InvalidValueError: an element of the Box has no two different finite bounds.
    """
    _check_finite(space)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*precision lowered by casting")  # gymnasium's, about the new bounds
        # numpy's floats, because gymnasium refuses Python's integers where bounds are fractions.
        box, forward, backward = rescale_box(space, np.float64(low), np.float64(high))
    dtype = np.dtype(space.dtype)
    return (
        box,
        lambda values: forward(values).astype(dtype, copy=False),
        lambda values: backward(values).astype(dtype, copy=False),
    )


def unfit(expected: str, space: Space[Any]) -> InvalidValueError:
    """Return the error for a space that a transform does not fit."""
    return InvalidValueError(mismatch(expected, show(space)))


def _check_finite(space: spaces.Box) -> None:
    """Raise InvalidValueError unless each element of a Box has two different finite bounds."""
    is_fit = np.isfinite(space.low) & np.isfinite(space.high) & (space.low < space.high)
    if not is_fit.all():
        place = tuple(map(int, np.argwhere(~is_fit)[0]))
        got = f"{space.low[place]} and {space.high[place]}{f' at {list(place)}' if place else ''}"
        raise InvalidValueError(mismatch("two different finite bounds of each element", got))


def _with_leaves(space: Space[Any], leaves: Iterator[Space[Any]]) -> Space[Any]:
    """Return a space of the same structure with other leaves."""
    match space:
        case spaces.Dict():
            return spaces.Dict({key: _with_leaves(part, leaves) for key, part in space.spaces.items()})
        case spaces.Tuple():
            return spaces.Tuple([_with_leaves(part, leaves) for part in space.spaces])
        case _:
            return next(leaves)
