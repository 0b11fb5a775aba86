"""Columns of files, checked against spaces and cast to their dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollserve_wire.columns import columns_of, leaves_of
from rollserve_wire.errors import mismatch
from rollserve_wire.gymnasium_spaces import check_choices
from rollserve_wire.spaces import Space, dtype_and_shape, named_leaves

if TYPE_CHECKING:
    import numpy as np

__all__ = ["fitted"]


def fitted(name: str, columns: Any, space: Space) -> Any:
    """Return columns with the dtypes of a space.

    Raises:
        ValueError: columns of other leaves, shapes or kinds of numbers, or discrete values that are out of range.
    """
    leaves = leaves_of(columns)
    expected = named_leaves(space)
    if leaves.keys() != expected.keys():
        raise ValueError(f"{name}: {mismatch(f'leaves {sorted(expected)} of {space}', sorted(leaves))}")
    return columns_of(
        {leaf: _fitted(f"{name}/{leaf}" if leaf else name, leaves[leaf], expected[leaf]) for leaf in leaves}
    )


def _fitted(path: str, array: np.ndarray, space: Space) -> np.ndarray:
    dtype, shape = dtype_and_shape(space)
    # Files of other programs keep discrete actions as (T, 1), too.
    if array.shape[1:] != shape and array.shape[1:] != (*shape, 1):
        raise ValueError(f"{path}: {mismatch(f'rows of shape {shape}, as {space}', f'shape {array.shape[1:]}')}")
    array = array.reshape(len(array), *shape)
    if dtype.kind in "biu" and array.dtype.kind == "f":
        raise ValueError(f"{path}: {mismatch(f'integers, as {space}', array.dtype)}")
    check_choices(path, array, space)
    return array.astype(dtype, copy=False)
