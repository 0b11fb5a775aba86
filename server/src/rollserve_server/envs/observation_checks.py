"""Observations that are no numbers, or outside their space."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollserve_server.envs.leaves import Leaf

__all__ = ["check_observations", "unfit_rows"]


def unfit_rows(leaves: Sequence[Leaf], columns: Sequence[np.ndarray], rows: Sequence[int]) -> Mapping[int, str]:
    """Of rows whose observations are not in their space, what is wrong.

    Args:
        leaves: of the space.
        columns: for each of them (M, *O).
        rows: which of the M rows to look at.
    """
    found: dict[int, str] = {}
    for leaf, column in zip(leaves, columns, strict=True):
        low, high = _bounds(leaf.space)
        values = column[list(rows)]
        fits = (values >= low) & (values <= high)  # no number is neither
        if fits.all():
            continue
        for position in np.flatnonzero(~fits.reshape(len(rows), -1).all(axis=1)).tolist():
            place = tuple(map(int, np.argwhere(~fits[position])[0]))
            ends = (np.broadcast_to(end, leaf.shape)[place] for end in (low, high))
            expected = "a number from {} to {}".format(*ends)
            where = f"observation {leaf.name!r}" if leaf.name else "observation"
            at = f" at {list(place)}" if place else ""
            found.setdefault(rows[position], f"{where}: {values[position][place]} came{at}, {expected} was expected")
    return found


def check_observations(leaves: Sequence[Leaf], columns: Sequence[np.ndarray], rows: Sequence[int]) -> None:
    """Raises ValueError if the observation of one of the rows is not in its space; arguments as of `unfit_rows`."""
    for text in unfit_rows(leaves, columns, rows).values():
        raise ValueError(text)


def _bounds(space: Any) -> tuple[Any, Any]:
    """The least and the greatest values."""
    match space:
        case spaces.Box():
            return space.low, space.high
        case spaces.Discrete() | spaces.MultiDiscrete():
            count = space.n if isinstance(space, spaces.Discrete) else space.nvec
            return space.start, space.start + count - 1
        case _:
            return 0, 1
