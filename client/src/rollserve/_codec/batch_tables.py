"""Text about episode batches: a few statistics, and a table of the columns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rollserve._codec.batch_fields import HEADERS, SEGMENT_COLUMNS, STEP_COLUMNS

__all__ = ["batch_table", "range_text"]

_MAX_LEAVES = 8
"""Number of a field's leaves that the table shows at most."""


def batch_table(batch: Any) -> str:
    """Return several lines about an `EpisodeBatch`: its returns and lengths, and its columns with dtypes and shapes."""
    lines = [repr(batch)]
    if len(batch):
        for name in ("returns", "lengths"):
            values = getattr(batch, name)
            lines.append(f"{name}: mean {values.mean():.4g}, {range_text(values)}")
    columns = list(_columns(batch))
    width = max(len(name) for name, _, _ in columns)
    dtype_width = max(len(dtype) for _, dtype, _ in columns)
    lines += [f"  {name:{width}}  {dtype:{dtype_width}}  {shape}".rstrip() for name, dtype, shape in columns]
    return "\n".join(lines)


def range_text(values: np.ndarray) -> str:
    """Return the smallest value, the median and the largest value of a non-empty array as text."""
    low, middle, high = np.quantile(values, (0, 0.5, 1))
    return f"min {low:g}, median {middle:g}, max {high:g}"


def _columns(batch: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the dtype and the shape of each column as text."""
    for field in (*STEP_COLUMNS, *SEGMENT_COLUMNS, *HEADERS):
        column = getattr(batch, field)
        if isinstance(column, Mapping):
            for leaf, array in itertools.islice(column.items(), _MAX_LEAVES):
                yield f"{field}/{leaf}", str(array.dtype), str(array.shape)
            if len(column) > _MAX_LEAVES:
                yield f"{field}/…", "", f"{len(column) - _MAX_LEAVES} more"
        elif column is not None:
            yield field, str(column.dtype), str(column.shape)
