"""Checks of columns, which name the one that is at fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from rollserve._codec.columns import leaves_of

if TYPE_CHECKING:
    from rollserve._codec.columns import Columns

__all__ = ["check_columns", "check_header", "check_last_observations"]


def check_header(name: str, array: object, kinds: str, length: int | None) -> None:
    """Raises ValueError unless the array has one dimension, a dtype of the kinds, and the length, if one is given."""
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{name}: {type(array).__name__} came, an array was expected")
    if array.ndim != 1:
        raise ValueError(f"{name}: shape {array.shape} came, one dimension was expected")
    if array.dtype.kind not in kinds:
        expected = {"b": "bool", "iu": "an integer", "fiu": "a number"}[kinds]
        raise ValueError(f"{name}: dtype {array.dtype} came, {expected} was expected")
    if length is not None and len(array) != length:
        raise ValueError(f"{name}: {len(array)} rows came, {length} were expected")


def check_columns(name: str, columns: object, length: int) -> None:
    """Raises ValueError unless all arrays are of numbers or truth values, and have so many rows."""
    leaves = columns if isinstance(columns, Mapping) else {"": columns}
    for leaf, array in leaves.items():
        path = f"{name}/{leaf}" if leaf else name
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{path}: {type(array).__name__} came, an array was expected")
        if array.dtype.hasobject:
            raise ValueError(f"{path}: dtype {array.dtype} came, numbers or truth values were expected")
        if array.ndim < 1 or len(array) != length:
            raise ValueError(f"{path}: shape {array.shape} came, {length} rows were expected")


def check_last_observations(observations: Columns, last_observations: Columns) -> None:
    """Raises ValueError unless both have the same leaves, with rows of the same shapes."""
    expected, given = leaves_of(observations), leaves_of(last_observations)
    if expected.keys() != given.keys():
        raise ValueError(f"last_observations: leaves {sorted(given)} came, {sorted(expected)} were expected")
    for leaf, array in given.items():
        if array.shape[1:] != expected[leaf].shape[1:]:
            path = f"last_observations/{leaf}" if leaf else "last_observations"
            came, wanted = array.shape[1:], expected[leaf].shape[1:]
            raise ValueError(f"{path}: rows of shape {came} came, {wanted} was expected as in observations")
