"""Batches: size, checksum, and samples that are small enough to check step by step."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

import rollserve

__all__ = ["arrays_of", "num_bytes", "observations_checksum", "sample_segments"]

_STEP_COLUMNS = ("observations", "actions", "rewards", "agent_infos", "env_infos")
_LARGE_COLUMNS = (*_STEP_COLUMNS, "last_observations", "episode_infos")


def arrays_of(column: Any) -> list[np.ndarray]:
    """Return the arrays of a column: its leaves, or the column itself if it is a single array."""
    return list(column.values()) if isinstance(column, Mapping) else [column]


def num_bytes(batch: rollserve.EpisodeBatch) -> int:
    """Return the number of bytes of a batch's observations, actions, rewards and infos."""
    return sum(array.nbytes for name in _LARGE_COLUMNS for array in arrays_of(getattr(batch, name)))


def observations_checksum(batch: rollserve.EpisodeBatch, checksum: int = 0) -> int:
    """Return the CRC-32 of all observations, continued from the checksum of an earlier batch."""
    for array in arrays_of(batch.observations):
        checksum = zlib.crc32(np.ascontiguousarray(array).data, checksum)
    return checksum


def sample_segments(batch: rollserve.EpisodeBatch, num_steps: int) -> rollserve.EpisodeBatch:
    """Return about `num_steps` steps in whole segments, spread evenly from the batch's first segment to its last."""
    num_segments = max(int(num_steps / batch.lengths.mean()), 2)
    positions = np.unique(np.linspace(0, len(batch) - 1, num_segments).astype(np.int64))
    return rollserve.EpisodeBatch.concatenate(*(_segment(batch, int(position)) for position in positions))


def _segment(batch: rollserve.EpisodeBatch, position: int) -> rollserve.EpisodeBatch:
    begin = int(batch.lengths[:position].sum())
    steps = slice(begin, begin + int(batch.lengths[position]))
    columns: dict[str, Any] = {}
    for field in dataclasses.fields(batch):
        column = getattr(batch, field.name)
        if isinstance(column, np.ndarray | Mapping):
            rows = steps if field.name in _STEP_COLUMNS else slice(position, position + 1)
            columns[field.name] = _take(column, rows)
    return rollserve.EpisodeBatch(**columns)


def _take(column: Any, rows: slice) -> Any:
    if isinstance(column, Mapping):
        return {name: array[rows] for name, array in column.items()}
    return column[rows]
