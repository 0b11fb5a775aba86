"""Columns of fragments by row: (steps, rows, …) instead of one segment after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_wire.columns import PER_STEP, map_columns
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve_wire.columns import Columns

__all__ = ["columns_by_row"]


def columns_by_row(batch: Any) -> dict[str, Columns]:
    """Return the columns of an `EpisodeBatch` by row; see `EpisodeBatch.as_rows`.

    Raises:
        ValueError: no row indices, rows with different numbers of steps, or a row whose segments do not follow each
            other.
    """
    if batch.row_indices is None:
        raise ValueError(f"row_indices: {mismatch('the row of each segment', None, 'fragment calls deliver it')}")
    order = np.argsort(batch.row_indices, kind="stable")
    _check_order(batch, order)
    starts = np.cumsum(batch.lengths) - batch.lengths
    begins = _begins(batch.row_indices[order])
    steps = _steps_by_row(starts[order], batch.lengths[order], begins)
    names = (*PER_STEP, "next_observations")
    columns = {name: column for name in names if (column := getattr(batch, name)) is not None}
    if batch.last_values is not None and "value" in batch.agent_infos:
        columns["next_values"] = _next_values(batch, starts + batch.lengths - 1)
    for name in ("terminated", "truncated"):
        columns[name] = np.zeros(len(batch.rewards), np.bool_)
        columns[name][starts + batch.lengths - 1] = getattr(batch, name)
    rows = {name: map_columns(lambda array: array[steps], column) for name, column in columns.items()}
    rows["initial_states"] = map_columns(lambda array: array[order[begins]], batch.initial_states)
    return rows


def _next_values(batch: Any, ends: NDArray[np.int64]) -> np.ndarray:
    """Return the agent's value after each step, (T,); 0 after a step that terminated its episode."""
    values = batch.agent_infos["value"]
    following: np.ndarray = np.append(values[1:], values[:1])
    following[ends] = batch.last_values
    return following


def _check_order(batch: Any, order: NDArray[np.int64]) -> None:
    """Raise ValueError unless the segments of each row follow each other.

    Args:
        batch: the batch.
        order: (N,), positions of the segments, by row.
    """
    rows, episodes = batch.row_indices[order], batch.episode_indices[order]
    firsts, ended = batch.first_steps[order], (batch.terminated | batch.truncated)[order]
    nexts = np.where(ended, 0, firsts + batch.lengths[order])
    is_next = (firsts[1:] == nexts[:-1]) & (ended[:-1] | (episodes[1:] == episodes[:-1]))
    wrong = np.flatnonzero((rows[1:] == rows[:-1]) & ~is_next)
    if not len(wrong):
        return
    at = int(wrong[0])
    expected = "the first step of an episode" if ended[at] else f"step {nexts[at]} of episode {episodes[at]}"
    got = f"step {firsts[at + 1]} of episode {episodes[at + 1]}"
    raise ValueError(f"first_steps: {mismatch(expected, got)} after segment {order[at]} in row {rows[at]}")


def _begins(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions at which another row begins in sorted row indices, (R,)."""
    return np.flatnonzero(np.append(True, rows[1:] != rows[:-1])) if len(rows) else np.zeros(0, np.int64)


def _steps_by_row(
    starts: NDArray[np.int64], lengths: NDArray[np.int64], begins: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the position of each step of each row in the columns of steps, (T, R).

    Args:
        starts: (N,), position of the first step of each segment, by row.
        lengths: (N,), number of steps of each segment, by row.
        begins: (R,), position of each row's first segment in them.

    Raises:
        ValueError: rows with different numbers of steps.
    """
    if not len(begins):
        return np.zeros((0, 0), np.int64)
    num_steps = np.add.reduceat(lengths, begins)
    if (num_steps != num_steps[0]).any():
        hint = "they can differ in parts of a stream, and with `fraction_of_workers`"
        text = mismatch("equally many steps in each row", f"{num_steps.min()} to {num_steps.max()}", hint)
        raise ValueError(f"lengths: {text}")
    before = np.cumsum(lengths) - lengths
    steps = np.repeat(starts - before, lengths) + np.arange(int(num_steps.sum()))
    return steps.reshape(len(begins), int(num_steps[0])).T
