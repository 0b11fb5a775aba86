"""A few segments of a batch."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import numpy as np

import rollserve
from rollserve._codec.columns import map_columns

__all__ = ["spread_segments"]

_STEP_COLUMNS = ("observations", "actions", "rewards", "agent_infos", "env_infos")


def spread_segments(batch: rollserve.EpisodeBatch, num_steps: int) -> rollserve.EpisodeBatch:
    """Whole segments from all over a batch, the first and the last among them, with about so many steps in all."""
    wanted = max(int(num_steps / batch.lengths.mean()), 2)
    positions = np.unique(np.linspace(0, len(batch) - 1, wanted).astype(np.int64))
    return rollserve.EpisodeBatch.concatenate(*(_segment(batch, int(position)) for position in positions))


def _segment(batch: rollserve.EpisodeBatch, position: int) -> rollserve.EpisodeBatch:
    begin = int(batch.lengths[:position].sum())
    steps = slice(begin, begin + int(batch.lengths[position]))
    at = slice(position, position + 1)
    columns: dict[str, Any] = {}
    for field in dataclasses.fields(batch):
        column, rows = getattr(batch, field.name), steps if field.name in _STEP_COLUMNS else at
        if field.name != "account" and column is not None:
            columns[field.name] = map_columns(operator.itemgetter(rows), column)
    return rollserve.EpisodeBatch(**columns)
