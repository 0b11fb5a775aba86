"""Tables with a row for each step, as most formats have them, turned into segments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollserve._formats.sources import check_numbers
from rollserve_wire.columns import columns_of
from rollserve_wire.errors import mismatch

__all__ = ["LAST_KNOWN", "StepTable", "begins_of", "flags_of", "segments_of", "single_values"]

LAST_KNOWN = "last_observation_known"
"""Episode info, (N,) bool: whether a file holds the observation after a segment's last step; NaN or 0 stands for it."""


@dataclass(frozen=True)
class StepTable:
    """Columns with a row for each of T steps, at least one.

    Attributes:
        observations: (T, *O) each, by leaf.
        next_observations: (T, *O) each, observations after the steps; None if the file has none. Rows other than
            last steps are not looked at.
        actions: (T, *A) each, by leaf.
        rewards: (T,).
        terminated: (T,) bool.
        truncated: (T,) bool.
        begins: (T,) bool, whether a segment begins with the step.
        steps: (T,) integers, number of the episode's steps before each; None if unknown.
        episodes: (T,) integers, index of the episode; None if unknown.
        agent_infos: (T, *I) each.
        env_infos: (T, *I) each.
    """

    observations: Mapping[str, np.ndarray]
    next_observations: Mapping[str, np.ndarray] | None
    actions: Mapping[str, np.ndarray]
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    begins: np.ndarray
    steps: np.ndarray | None = None
    episodes: np.ndarray | None = None
    agent_infos: Mapping[str, np.ndarray] = field(default_factory=dict)
    env_infos: Mapping[str, np.ndarray] = field(default_factory=dict)


def single_values(name: str, column: Any) -> np.ndarray:
    """Return a column of one number for each step, (T,) or (T, 1), as (T,); raise ValueError for another shape."""
    array = check_numbers(name, np.asarray(column))
    if array.ndim == 0 or array.shape[1:] not in ((), (1,)):
        raise ValueError(f"{name}: {mismatch('a number for each step', f'shape {array.shape}')}")
    return array.reshape(-1)


def flags_of(name: str, column: Any, num_steps: int) -> np.ndarray:
    """Return a column of flags, (T,) bool; raise ValueError for other values than 0 and 1, or another length."""
    array = single_values(name, column)
    flags = array.astype(np.bool_)
    if not np.array_equal(flags, array):
        raise ValueError(f"{name}: {mismatch('flags, 0 or 1', 'other numbers')}")
    if len(flags) != num_steps:
        raise ValueError(f"{name}: {mismatch(f'{num_steps} rows, as rewards', len(flags))}")
    return flags


def begins_of(ended: np.ndarray, *labels: np.ndarray | None) -> np.ndarray:
    """Return where segments begin, (T,) bool: after each end, and where one of the labels changes."""
    begins = np.ones(len(ended), np.bool_)
    begins[1:] = ended[:-1]
    for label in labels:
        if label is not None:
            begins[1:] |= label[1:] != label[:-1]
    return begins


def segments_of(table: StepTable) -> dict[str, Any]:
    """Return the fields of the batch of a table's segments.

    Raises:
        ValueError: a column of another number of rows or of objects, or an end within a segment.
    """
    num_steps = len(table.rewards)
    _check_rows(table, num_steps)
    starts = np.flatnonzero(table.begins)
    ends = np.append(starts[1:], num_steps) - 1
    for name in ("terminated", "truncated"):
        flags = getattr(table, name)
        if flags.sum() != flags[ends].sum():
            raise ValueError(f"{name}: {mismatch('True at the last step of an episode alone', 'another step')}")
    fields: dict[str, Any] = {
        "observations": columns_of(table.observations),
        "last_observations": columns_of(_last_observations(table, ends)),
        "actions": columns_of(table.actions),
        "rewards": table.rewards,
        "lengths": ends + 1 - starts,
        "terminated": table.terminated[ends],
        "truncated": table.truncated[ends],
        "agent_infos": dict(table.agent_infos),
        "env_infos": dict(table.env_infos),
    }
    if table.next_observations is None:
        fields["episode_infos"] = {LAST_KNOWN: np.zeros(len(starts), np.bool_)}
    if table.steps is not None:
        fields["first_steps"] = table.steps[starts].astype(np.int64)
        if (table.steps != np.arange(num_steps) + np.repeat(table.steps[starts] - starts, fields["lengths"])).any():
            raise ValueError(f"t: {mismatch('numbers of steps that follow each other in an episode', 'others')}")
    if table.episodes is not None:
        fields["episode_indices"] = table.episodes[starts].astype(np.int64)
    return fields


def _last_observations(table: StepTable, ends: np.ndarray) -> dict[str, np.ndarray]:
    """Return the observations after the ends, of the dtypes of the observations."""
    last = {}
    for name, array in table.observations.items():
        if table.next_observations is None:
            last[name] = np.full_like(array[ends], np.nan if array.dtype.kind in "fc" else 0)
        else:
            last[name] = table.next_observations[name][ends].astype(array.dtype, copy=False)
    return last


def _check_rows(table: StepTable, num_steps: int) -> None:
    if table.next_observations is not None and table.next_observations.keys() != table.observations.keys():
        text = mismatch(f"leaves {sorted(table.observations)}", sorted(table.next_observations))
        raise ValueError(f"next_observations: {text}")
    groups: dict[str, Mapping[str, np.ndarray]] = {
        "observations": table.observations,
        "next_observations": table.next_observations or {},
        "actions": table.actions,
        "agent_infos": table.agent_infos,
        "env_infos": table.env_infos,
    }
    for group, columns in groups.items():
        for name, column in columns.items():
            path = f"{group}/{name}" if name else group
            check_numbers(path, column)
            if column.ndim < 1 or len(column) != num_steps:
                raise ValueError(f"{path}: {mismatch(f'{num_steps} rows, as rewards', f'shape {column.shape}')}")
    for name in ("terminated", "truncated", "steps", "episodes"):
        column = getattr(table, name)
        if column is not None and column.shape != (num_steps,):
            raise ValueError(f"{name}: {mismatch(f'shape {(num_steps,)}', f'shape {column.shape}')}")
