"""Batches as tables of pandas and Arrow: one row for each step, one column for each header, leaf and info."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from rollserve.bridges.trees import step_positions
from rollserve.learning.transitions import transitions
from rollserve_wire.columns import HEADERS, PER_STEP, is_mask, leaves_of, mask_name
from rollserve_wire.extras import load

__all__ = ["SEGMENT_HEADERS", "to_arrow", "to_pandas"]

SEGMENT_HEADERS = tuple(
    name for name, spec in HEADERS.items() if spec.dtypes == "iu" and name not in ("lengths", "first_steps")
)
"""Headers that each step of a segment has."""


class _Column(NamedTuple):
    """Values of all steps, (T, …), and where there are some, (T,) bool, or None for everywhere."""

    values: np.ndarray
    valids: np.ndarray | None


def _step_table(batch: Any, *, next_observations: bool) -> dict[str, _Column]:
    """Return the columns of a batch by name; see `to_arrow`. Columns of steps are the batch's own arrays."""
    segments, steps = step_positions(batch)
    table = {"segments": _Column(segments, None), "steps": _Column(steps, None)}
    for name in SEGMENT_HEADERS:
        header = getattr(batch, name)
        if header is not None:
            table[name] = _Column(header[segments], None)
    found = transitions(batch, 1, None)
    for name in ("terminated", "truncated"):
        table[name] = _Column(getattr(found, name), None)
    fields = {name: columns for name in PER_STEP if (columns := getattr(batch, name)) is not None}
    if next_observations:
        fields["next_observations"] = found.next_observations
    for field, columns in fields.items():
        leaves = leaves_of(columns)
        for name, values in leaves.items():
            if not is_mask(name, leaves):
                table[f"{field}/{name}" if name else field] = _Column(values, leaves.get(mask_name(name)))
    return table


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
    for name, (values, valids) in _step_table(batch, next_observations=next_observations).items():
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


def to_arrow(batch: Any, *, next_observations: bool = False) -> Any:
    """Return a batch as a table of Apache Arrow with T rows, for files such as Parquet, DuckDB or Polars.

    >>> pyarrow.parquet.write_table(batch.to_arrow(), "batch.parquet")  # doctest: +SKIP

    Args:
        batch: an `EpisodeBatch`.
        next_observations: whether to have the observations after each step, too.

    Returns:
        `segments`, the position of the step's segment; `steps`, the number of steps of the episode before it;
        `terminated` and `truncated`, whether the episode ended with it; `policy_versions` and the other headers of its
        segment; and the batch's columns of steps. Leaves and infos are columns such as `observations/camera` and
        `agent_infos/log_prob`; infos with gaps have nulls. Arrays are lists of fixed size, nested by their axes. All
        but truth values share the batch's memory.

    Raises:
        ImportError: pyarrow is not installed.
    """
    arrow = load("pyarrow", "arrow")
    table = _step_table(batch, next_observations=next_observations)
    return arrow.table({name: _array(arrow, values, valids) for name, (values, valids) in table.items()})


def _array(arrow: Any, values: np.ndarray, valids: np.ndarray | None) -> Any:
    """Return an array of Arrow with T rows."""
    missing = None if valids is None else ~valids
    if values.ndim == 1:
        return arrow.array(values, mask=missing)
    inner = arrow.array(np.ascontiguousarray(values).reshape(-1))
    for axis in range(values.ndim - 1, 0, -1):
        mask = arrow.array(missing) if axis == 1 and missing is not None else None
        if values.shape[axis]:
            inner = arrow.FixedSizeListArray.from_arrays(inner, values.shape[axis], mask=mask)
        else:  # Arrow cannot tell how many lists without elements there are
            inner = arrow.array([[]] * math.prod(values.shape[:axis]), type=arrow.list_(inner.type, 0))
    return inner
