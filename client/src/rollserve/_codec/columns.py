"""Columns of values: one array for a plain space, or named leaves for a nested one; and infos with gaps.

A column of infos in which some rows have no value holds 0 there, and has a bool column beside it, its mask, named
like it with `_` in front, as gymnasium's vector environments do it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Columns",
    "columns_of",
    "concatenate_infos",
    "is_mask",
    "leaves_of",
    "map_columns",
    "mask_name",
    "without_full_masks",
]

Columns = np.ndarray | Mapping[str, np.ndarray]
"""Rows of one array, or of named arrays."""


def leaves_of(columns: Columns) -> Mapping[str, np.ndarray]:
    """The arrays by name; a single array has the empty name."""
    return columns if isinstance(columns, Mapping) else {"": columns}


def columns_of(leaves: Mapping[str, np.ndarray]) -> Columns:
    """The inverse of `leaves_of`."""
    return leaves[""] if leaves.keys() == {""} else dict(leaves)


def map_columns(function: Callable[[np.ndarray], np.ndarray], columns: Columns) -> Columns:
    """The columns with the function applied to each array."""
    if isinstance(columns, Mapping):
        return {name: function(array) for name, array in columns.items()}
    return function(columns)


def mask_name(name: str) -> str:
    """The name of the mask of a column of infos."""
    return f"_{name}"


def is_mask(name: str, infos: Mapping[str, np.ndarray]) -> bool:
    """Whether the column of that name is the mask of another."""
    return name.startswith("_") and name[1:] in infos


def without_full_masks(infos: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The infos without the masks of columns that have no gaps."""
    return {name: array for name, array in infos.items() if not (is_mask(name, infos) and array.all())}


def concatenate_infos(parts: Sequence[Mapping[str, np.ndarray]], lengths: Sequence[int]) -> dict[str, np.ndarray]:
    """Joins infos along their rows. A part that lacks a column gets a gap of its length there.

    Args:
        parts: infos, each array with as many rows as the part is long.
        lengths: the length of each part.

    Raises:
        ValueError: arrays of one name have rows of different shapes.
    """
    names = dict.fromkeys(name for part in parts for name in part if not is_mask(name, part))
    joined: dict[str, np.ndarray] = {}
    for name in names:
        some = [part[name] for part in parts if name in part]
        if len({array.shape[1:] for array in some}) > 1:
            shapes = sorted({array.shape[1:] for array in some})
            raise ValueError(f"{name!r}: rows of shapes {shapes} cannot be joined")
        dtype = np.result_type(*{array.dtype for array in some})
        arrays, masks = [], []
        for part, length in zip(parts, lengths, strict=True):
            gap = np.zeros((length, *some[0].shape[1:]), dtype) if name not in part else None
            arrays.append(part[name] if gap is None else gap)
            masks.append(part.get(mask_name(name), np.full(length, gap is None)))
        joined[name] = np.concatenate(arrays, dtype=dtype)
        mask = np.concatenate(masks)
        if not mask.all():
            joined[mask_name(name)] = mask
    return joined
