"""Batches as data frames of pandas."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollserve.bridges.tables import step_table
from rollserve_wire.extras import load

__all__ = ["to_pandas"]


def to_pandas(batch: Any, *, next_observations: bool = False) -> Any:
    """Return a batch as a DataFrame of pandas with T rows.

    >>> frame = batch.to_pandas()  # doctest: +SKIP
    >>> frame.groupby("segments")["rewards"].sum()  # doctest: +SKIP

    Args:
        batch: an `EpisodeBatch`.
        next_observations: whether to have the observations after each step, too.

    Returns:
        The columns of `to_arrow`. A vector of k numbers has the columns `NAME/0` to `NAME/k-1`; larger arrays, such as
        images, are a column of arrays. Infos with gaps have pandas' nullable dtypes. Columns of numbers share the
        batch's memory.

    Raises:
        ImportError: pandas is not installed.
    """
    pandas = load("pandas", "pandas")
    columns: dict[str, Any] = {}
    for name, (values, valids) in step_table(batch, next_observations=next_observations).items():
        if values.ndim == 1:
            columns[name] = _series(pandas, values, valids)
        elif values.ndim == 2:
            for element in range(values.shape[1]):
                columns[f"{name}/{element}"] = _series(pandas, values[:, element], valids)
        else:
            columns[name] = _objects(values, valids)
    return pandas.DataFrame(columns, copy=False)


def _series(pandas: Any, values: np.ndarray, valids: np.ndarray | None) -> Any:
    """Return numbers as pandas keeps them, with a mask if some are missing."""
    if valids is None:
        return values
    kinds = {"b": "BooleanArray", "i": "IntegerArray", "u": "IntegerArray", "f": "FloatingArray"}
    if values.dtype.kind not in kinds:
        return _objects(values, valids)
    return getattr(pandas.arrays, kinds[values.dtype.kind])(values.copy(), ~valids)


def _objects(values: np.ndarray, valids: np.ndarray | None) -> np.ndarray:
    """Return a column whose elements are the rows of `values`, or None where they are missing."""
    column = np.empty(len(values), object)
    column[:] = list(values)
    if valids is not None:
        column[~valids] = None
    return column
