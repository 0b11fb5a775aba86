"""Checks for observations that are NaN or outside their space, and for rewards that are not finite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from gymnasium import spaces

from rollserve_server.envs.leaves import value_range
from rollserve_server.envs.outcomes import ReturnedError
from rollserve_server.envs.texts import decode_texts
from rollserve_server.errors import show
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike

    from rollserve_server.envs.leaves import Leaf

__all__ = ["check_observations", "check_rewards", "unfit_rewards", "unfit_rows"]


def unfit_rows(leaves: Sequence[Leaf], columns: Sequence[np.ndarray], rows: Sequence[int]) -> Mapping[int, str]:
    """Return what is wrong with observations that are not in their space, by row.

    Args:
        leaves: leaves of the space.
        columns: an array (M, *O) for each leaf.
        rows: indices of the rows to check.
    """
    found: dict[int, str] = {}
    for leaf, column in zip(leaves, columns, strict=True):
        if isinstance(leaf.space, spaces.Text):
            for row, text in zip(rows, decode_texts(column[list(rows)]), strict=True):
                if not leaf.space.contains(text):
                    path = f"observation {leaf.name!r}" if leaf.name else "observation"
                    found.setdefault(row, f"{path}: {mismatch(f'a text of {leaf.space}', show(text))}")
            continue
        low, high = value_range(leaf)
        values = column[list(rows)]
        fits = (values >= low) & (values <= high)  # False for NaN
        if fits.all():
            continue
        for position in np.flatnonzero(~fits.reshape(len(rows), -1).all(axis=1)).tolist():
            place = tuple(map(int, np.argwhere(~fits[position])[0]))
            expected = "a number from {} to {}".format(
                *(np.broadcast_to(end, leaf.shape)[place] for end in (low, high))
            )
            path = f"observation{f' {leaf.name!r}' if leaf.name else ''}{list(place) if place else ''}"
            found.setdefault(rows[position], f"{path}: {mismatch(expected, values[position][place])}")
    return found


def check_observations(leaves: Sequence[Leaf], columns: Sequence[np.ndarray], rows: Sequence[int]) -> None:
    """Raise ReturnedError if the observation of a row is not in its space; takes the arguments of `unfit_rows`."""
    for text in unfit_rows(leaves, columns, rows).values():
        raise ReturnedError(text)


def unfit_rewards(rewards: ArrayLike, rows: Sequence[int]) -> Mapping[int, str]:
    """Return what is wrong with rewards (M,) that are not finite, by row; takes the indices of the rows to check."""
    values = np.asarray(rewards)[list(rows)]
    return {
        rows[place]: f"reward: {mismatch('a finite number', values[place])}"
        for place in np.flatnonzero(~np.isfinite(values)).tolist()
    }


def check_rewards(rewards: ArrayLike, rows: Sequence[int]) -> None:
    """Raise ReturnedError if the reward of a row is not finite; takes the arguments of `unfit_rewards`."""
    for text in unfit_rewards(rewards, rows).values():
        raise ReturnedError(text)
