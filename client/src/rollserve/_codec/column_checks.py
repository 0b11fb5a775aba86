"""Checks of the arrays of a batch; the errors name the column at fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from rollserve._codec.columns import leaves_of
from rollserve.errors import mismatch

if TYPE_CHECKING:
    from rollserve._codec.columns import Columns

__all__ = ["as_int64", "check_columns", "check_header", "check_last_observations"]

_KINDS = {"b": "bool", "iu": "integer", "fiu": "float or integer"}


def check_header(name: str, array: object, kinds: str, length: int | None) -> None:
    """Raise ValueError unless a header is one-dimensional, of the given dtype kinds and of the given length, if any."""
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{name}: {mismatch('an array', type(array).__name__)}")
    if array.ndim != 1:
        raise ValueError(f"{name}: {mismatch('one dimension', f'shape {array.shape}')}")
    if array.dtype.kind not in kinds:
        raise ValueError(f"{name}: {mismatch(f'dtype {_KINDS[kinds]}', array.dtype)}")
    if length is not None and len(array) != length:
        raise ValueError(f"{name}: {mismatch(f'{length} rows', len(array))}")


def check_columns(name: str, columns: object, length: int) -> None:
    """Raise ValueError unless all columns are arrays of numbers or truth values with the given number of rows."""
    leaves = columns if isinstance(columns, Mapping) else {"": columns}
    for leaf, array in leaves.items():
        path = f"{name}/{leaf}" if leaf else name
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{path}: {mismatch('an array', type(array).__name__)}")
        if array.dtype.hasobject:
            raise ValueError(f"{path}: {mismatch('numbers or truth values', f'dtype {array.dtype}')}")
        if array.ndim < 1 or len(array) != length:
            raise ValueError(f"{path}: {mismatch(f'{length} rows', f'shape {array.shape}')}")


def check_last_observations(observations: Columns, last_observations: Columns) -> None:
    """Raise ValueError unless both have the same leaves, with rows of the same shapes."""
    expected, actual = leaves_of(observations), leaves_of(last_observations)
    if expected.keys() != actual.keys():
        text = mismatch(f"leaves {sorted(expected)} as in observations", sorted(actual))
        raise ValueError(f"last_observations: {text}")
    for leaf, array in actual.items():
        if array.shape[1:] != expected[leaf].shape[1:]:
            path = f"last_observations/{leaf}" if leaf else "last_observations"
            text = mismatch(f"rows of shape {expected[leaf].shape[1:]} as in observations", array.shape[1:])
            raise ValueError(f"{path}: {text}")


def as_int64(name: str, header: np.ndarray) -> np.ndarray:
    """Return a header of integers as int64; raise ValueError if one is too large."""
    if header.dtype == np.int64:
        return header
    max_value = np.iinfo(np.int64).max
    if header.dtype == np.uint64 and header.max(initial=0) > max_value:
        raise ValueError(f"{name}: {mismatch(f'at most {max_value}', header.max())}")
    return header.astype(np.int64, copy=False)
