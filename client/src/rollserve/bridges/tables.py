"""Batches as tables: one row for each step, one column for each header, leaf and info."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from rollserve.bridges.trees import step_positions
from rollserve.learning.transitions import transitions
from rollserve_wire.columns import STEP_COLUMNS, is_mask, leaves_of, mask_name

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Column", "step_table"]

_SEGMENT_HEADERS = ("policy_versions", "episode_indices", "env_seeds", "worker_indices", "row_indices")


class Column(NamedTuple):
    """Values of all steps, (T, …), and where there are some, (T,) bool, or None for everywhere."""

    values: np.ndarray
    valids: np.ndarray | None


def step_table(batch: Any, *, next_observations: bool) -> dict[str, Column]:
    """Return the columns of a batch by name; see `to_arrow`. Columns of steps are the batch's own arrays."""
    segments, steps = step_positions(batch)
    table = {"segments": Column(segments, None), "steps": Column(steps, None)}
    for name in _SEGMENT_HEADERS:
        header = getattr(batch, name)
        if header is not None:
            table[name] = Column(header[segments], None)
    found = transitions(batch, 1, None)
    for name in ("terminated", "truncated"):
        table[name] = Column(getattr(found, name), None)
    fields = {name: columns for name in STEP_COLUMNS if (columns := getattr(batch, name)) is not None}
    if next_observations:
        fields["next_observations"] = found.next_observations
    for field, columns in fields.items():
        leaves = leaves_of(columns)
        for name, values in leaves.items():
            if not is_mask(name, leaves):
                table[f"{field}/{name}" if name else field] = Column(values, leaves.get(mask_name(name)))
    return table
