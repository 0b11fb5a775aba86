"""Columns: one array for a plain space, or one array for each leaf of a nested space; and infos with gaps.

An info that some rows lack is 0 in these rows and has a mask beside it: a bool column named like it with `_` in front,
as in gymnasium's vector environments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve._codec.batch_fields import FIELDS
from rollserve.errors import mismatch

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Columns",
    "columns_of",
    "concatenate_columns",
    "concatenate_infos",
    "exact_dtype",
    "is_mask",
    "leaves_of",
    "map_columns",
    "mask_name",
    "named_arrays",
    "without_full_masks",
]

_MAX_EXACT = 1 << 53
"""Magnitude up to which float64 holds every integer."""

Columns = np.ndarray | Mapping[str, np.ndarray]
"""Rows of one array, or of one array for each leaf."""


def leaves_of(columns: Columns) -> Mapping[str, np.ndarray]:
    """Return the arrays by leaf name; a single array has the empty name."""
    return columns if isinstance(columns, Mapping) else {"": columns}


def named_arrays(batch: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of a batch's columns and headers, each by its field and, after a slash, the name of its leaf."""
    for name in FIELDS:
        columns = getattr(batch, name)
        for leaf, array in leaves_of(columns).items() if columns is not None else ():
            yield f"{name}/{leaf}" if leaf else name, array


def columns_of(leaves: Mapping[str, np.ndarray]) -> Columns:
    """Return columns for arrays by leaf name: the inverse of `leaves_of`."""
    return leaves[""] if leaves.keys() == {""} else dict(leaves)


def map_columns(function: Callable[[np.ndarray], np.ndarray], columns: Columns) -> Columns:
    """Apply a function to each array of the columns."""
    if isinstance(columns, Mapping):
        return {name: function(array) for name, array in columns.items()}
    return function(columns)


def concatenate_columns(parts: Sequence[Columns]) -> Columns:
    """Concatenate columns along their rows.

    Raises:
        ValueError: parts whose leaves or row shapes differ, or whose integers no common dtype holds.
    """
    leaves = [leaves_of(part) for part in parts]
    for part in leaves:
        if part.keys() != leaves[0].keys():
            raise ValueError(mismatch(f"leaves {sorted(leaves[0])}", sorted(part)))
    joined = {}
    for leaf in leaves[0]:
        arrays = [part[leaf] for part in leaves]
        joined[leaf] = np.concatenate(arrays, dtype=exact_dtype(arrays), casting="unsafe")
    return columns_of(joined)


def exact_dtype(arrays: Sequence[np.ndarray]) -> np.dtype:
    """Return the dtype that holds each value of all arrays: numpy's, but uint64 for integers that numpy makes floats.

    Raises:
        ValueError: an integer beyond 2**53 is beside floats, or a negative one beside uint64.
    """
    dtypes = {array.dtype for array in arrays}
    dtype = np.result_type(*dtypes)
    if dtype.kind != "f" or len(dtypes) == 1:
        return dtype
    integers = [array for array in arrays if array.dtype.kind in "iu" and array.size]
    low = min((int(array.min()) for array in integers), default=0)
    high = max((int(array.max()) for array in integers), default=0)
    if not any(each.kind == "f" for each in dtypes):  # signed integers beside uint64
        dtype, is_exact = np.dtype(np.uint64), low >= 0
    else:
        is_exact = max(-low, high) <= _MAX_EXACT
    if is_exact:
        return dtype
    got = f"{', '.join(sorted(map(str, dtypes)))} with integers from {low} to {high}"
    raise ValueError(mismatch("numbers that one dtype can hold", got))


def mask_name(name: str) -> str:
    """Return the name of the mask of an info."""
    return f"_{name}"


def is_mask(name: str, infos: Mapping[str, np.ndarray]) -> bool:
    """Whether an info is the mask of another info."""
    return name.startswith("_") and name[1:] in infos


def without_full_masks(infos: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the infos without masks that are true in every row."""
    return {name: array for name, array in infos.items() if not (is_mask(name, infos) and array.all())}


def concatenate_infos(parts: Sequence[Mapping[str, np.ndarray]], lengths: Sequence[int]) -> dict[str, np.ndarray]:
    """Concatenate infos along their rows. An info that a part lacks is a gap of that part's length.

    Args:
        parts: infos of each part, each array with as many rows as the part.
        lengths: number of rows of each part.

    Raises:
        ValueError: an info whose row shape differs between parts, or whose integers no common dtype holds.
    """
    names = dict.fromkeys(name for part in parts for name in part if not is_mask(name, part))
    joined: dict[str, np.ndarray] = {}
    for name in names:
        arrays = [part[name] for part in parts if name in part]
        if len({array.shape[1:] for array in arrays}) > 1:
            shapes = sorted({array.shape[1:] for array in arrays})
            raise ValueError(f"{name!r}: {mismatch('rows of one shape', f'rows of shapes {shapes}')}")
        try:
            row_shape, dtype = arrays[0].shape[1:], exact_dtype(arrays)
        except ValueError as error:
            raise ValueError(f"{name!r}: {error}") from None
        columns, masks = [], []
        for part, length in zip(parts, lengths, strict=True):
            has_values = name in part
            columns.append(part[name] if has_values else np.zeros((length, *row_shape), dtype))
            masks.append(part.get(mask_name(name), np.full(length, has_values)))
        joined[name] = np.concatenate(columns, dtype=dtype, casting="unsafe")
        mask = np.concatenate(masks)
        if not mask.all():
            joined[mask_name(name)] = mask
    return joined
