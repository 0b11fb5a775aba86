"""Checks of the arrays of a batch; the errors name the column at fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_wire.columns import COLUMNS, leaves_of
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from rollserve_wire.columns import Columns

__all__ = ["as_int64", "check_batch", "check_header"]

_NUMBER_KINDS = "biufc"
_KINDS = {"b": "bool", "iu": "integer", "f": "float", "fiu": "float or integer"}
_CHECKS = [  # read once, because each message is checked
    (name, spec.by_step, spec.dtypes if spec.is_flat else "", spec.kind == "infos", spec.is_optional)
    for name, spec in COLUMNS.items()
]
_INT64 = np.dtype(np.int64)
_MAX_INT64 = int(np.iinfo(np.int64).max)


def check_batch(batch: Any) -> None:
    """Raise ValueError unless the fields of an `EpisodeBatch` fit together; its `lengths` are a header of integers."""
    num_segments = len(batch.lengths)
    if num_segments and batch.lengths.min() < 1:
        raise ValueError(f"lengths: {mismatch('at least 1', batch.lengths.min())}")
    check_header("rewards", batch.rewards, "fiu", None)
    num_steps = int(batch.lengths.sum())
    if num_steps != len(batch.rewards):
        raise ValueError(f"lengths: {mismatch(f'a sum of {len(batch.rewards)}, as rewards has rows', num_steps)}")
    for name, by_step, dtypes, is_mapping, is_optional in _CHECKS:
        columns = getattr(batch, name)
        length = num_steps if by_step else num_segments
        if columns is None and is_optional:
            continue
        if dtypes:
            check_header(name, columns, dtypes, length)
        elif is_mapping and not isinstance(columns, Mapping):
            raise ValueError(f"{name}: {mismatch('a mapping', type(columns).__name__)}")
        else:
            _check_columns(name, columns, length)
    _check_last_observations(batch.observations, batch.last_observations)


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


def as_int64(name: str, header: np.ndarray) -> np.ndarray:
    """Return a header of integers as int64; raise ValueError if one is too large."""
    if header.dtype == _INT64:
        return header
    if header.dtype == np.uint64 and header.max(initial=0) > _MAX_INT64:
        raise ValueError(f"{name}: {mismatch(f'at most {_MAX_INT64}', header.max())}")
    return header.astype(np.int64, copy=False)


def _check_columns(name: str, columns: object, length: int) -> None:
    """Raise ValueError unless all columns are arrays of numbers or truth values with the given number of rows."""
    leaves = columns if isinstance(columns, Mapping) else {"": columns}
    for leaf, array in leaves.items():
        path = f"{name}/{leaf}" if leaf else name
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{path}: {mismatch('an array', type(array).__name__)}")
        if array.dtype.kind not in _NUMBER_KINDS:
            raise ValueError(f"{path}: {mismatch('numbers or truth values', f'dtype {array.dtype}')}")
        if array.ndim < 1 or len(array) != length:
            raise ValueError(f"{path}: {mismatch(f'{length} rows', f'shape {array.shape}')}")


def _check_last_observations(observations: Columns, last_observations: Columns) -> None:
    """Raise ValueError unless both have the same leaves, with rows of the same shapes and dtypes."""
    expected, actual = leaves_of(observations), leaves_of(last_observations)
    if expected.keys() != actual.keys():
        text = mismatch(f"leaves {sorted(expected)} as in observations", sorted(actual))
        raise ValueError(f"last_observations: {text}")
    for leaf, array in actual.items():
        path, model = f"last_observations/{leaf}" if leaf else "last_observations", expected[leaf]
        if array.shape[1:] != model.shape[1:]:
            text = mismatch(f"rows of shape {model.shape[1:]} as in observations", array.shape[1:])
            raise ValueError(f"{path}: {text}")
        if array.dtype != model.dtype:
            raise ValueError(f"{path}: {mismatch(f'dtype {model.dtype} as in observations', array.dtype)}")
