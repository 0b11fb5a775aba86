"""Batches as tables of Apache Arrow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rollserve.bridges.tables import step_table
from rollserve_wire.extras import load

__all__ = ["to_arrow"]


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
    table = step_table(batch, next_observations=next_observations)
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
