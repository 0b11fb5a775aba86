"""Steps of sessions: observations for the next actions, and what followed the last ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_wire.columns import columns_of, concatenate_columns, concatenate_infos, map_columns
from rollserve_wire.protobuf import fields, keys_of
from rollserve_wire.representations import briefly
from rollserve_wire.tensors import PACKED_DTYPES, add_named_tensor
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from rollserve_wire.columns import Columns

__all__ = ["DrivenStep", "read_driven_step", "rows_of_step"]

_WORKERS = keys_of(pb.DrivenStep.DESCRIPTOR)["workers"]
_ROWS = pb.DrivenRows.DESCRIPTOR
_NAMED = {key: name for name, key in keys_of(_ROWS).items() if _ROWS.fields_by_name[name].message_type is not None}
_NUMBERS = {
    key: (name, PACKED_DTYPES[_ROWS.fields_by_name[name].type])
    for name, key in keys_of(_ROWS).items()
    if key not in _NAMED
}
_NO_ROWS = {name: np.empty(0, dtype) for name, dtype in _NUMBERS.values()}


@briefly
@dataclass(frozen=True, eq=False)
class DrivenStep:
    """Observations of N rows for the next actions of a session, and what followed the last ones.

    These are all rows of all workers, or, of a session with `min_ready`, those that are ready.

    Rows are reset in the step that ends an episode: such a row's observation is the first one of its next episode, and
    `last_observations` has the last one of the episode that has ended.

    Attributes:
        number: number of the step that actions are wanted for, from 0; with `min_ready`, of what was received.
        observations: (N, *O), or a mapping with such an array for each leaf of a nested space.
        episode_indices: (N,) int64, index of the episode that each row's next step belongs to.
        rewards: (N,) float64, of the last step; zeros before the first.
        terminated: (N,) bool, whether the environment has ended the row's episode with the last step.
        truncated: (N,) bool, whether a limit has. Both may be true.
        ended_rows: (E,) int64, positions among these rows of those whose episodes have ended with the last step.
        last_observations: (E, *O), or a mapping, the last observations of these episodes.
        env_seeds: (N,) uint64, seed of the last reset of each row's environment; of rows that are stepped at once, the
            seed of their joint reset.
        infos: (N, *I) by name, what came with the observations, if the session was begun with `infos=True`: as in the
            `env_infos` of batches, a bool column with `_` in front says which rows have one, if not all do.
        last_infos: (E, *I) by name, what came with the last observations, in the same form.
        rows: (N,) int64, the numbers of these rows among all rows.
        row_steps: (N,) int64, how many steps each of them has made in the session.
    """

    number: int
    observations: Columns
    episode_indices: NDArray[np.int64]
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    ended_rows: NDArray[np.int64]
    last_observations: Columns
    env_seeds: NDArray[np.uint64]
    infos: Mapping[str, np.ndarray]
    last_infos: Mapping[str, np.ndarray]
    rows: NDArray[np.int64]
    row_steps: NDArray[np.int64]


def read_driven_step(data: memoryview) -> DrivenStep:
    """Return a serialized step, whose columns are views of it if one worker has all rows.

    Raises:
        ValueError, UnusualError, IndexError: a malformed step.
    """
    workers, head = [], []
    for key, before, start, stop in fields(data, 0, len(data)):
        if key == _WORKERS:
            workers.append(_read_rows(data, start, stop))
        else:
            head.append(data[before:stop])
    counts = [len(rows["episode_indices"]) for rows in workers]
    num_rows, starts = sum(counts), np.cumsum([0, *counts])
    ended_rows = np.concatenate([start + rows["ended_rows"] for start, rows in zip(starts, workers, strict=False)])
    terminated, truncated = np.zeros((2, num_rows), np.bool_)
    terminated[ended_rows], truncated[ended_rows] = _joined(workers, "terminated"), _joined(workers, "truncated")
    observations = _columns([rows["observations"] for rows in workers])
    ending = [rows["last_observations"] for rows in workers if len(rows["ended_rows"])]
    rewards, rows = _joined(workers, "rewards"), _joined(workers, "rows")
    number = pb.DrivenStep.FromString(b"".join(head)).step
    return DrivenStep(
        number,
        observations,
        _joined(workers, "episode_indices"),
        rewards if len(rewards) else np.zeros(num_rows),
        terminated,
        truncated,
        ended_rows,
        _columns(ending) if ending else map_columns(lambda each: each[:0], observations),
        _joined(workers, "environment_seeds"),
        concatenate_infos([rows["infos"] for rows in workers], counts),
        concatenate_infos([rows["last_infos"] for rows in workers], [len(rows["ended_rows"]) for rows in workers]),
        rows if len(rows) else np.arange(num_rows),
        _joined(workers, "row_step_counts") if len(rows) else np.full(num_rows, number),
    )


def rows_of_step(step: DrivenStep, kept: NDArray[np.bool_]) -> DrivenStep:
    """Return a step with some of its rows alone.

    Args:
        step: the step.
        kept: (N,), which of its rows.
    """
    ended = kept[step.ended_rows]
    return DrivenStep(
        step.number,
        map_columns(lambda column: column[kept], step.observations),
        step.episode_indices[kept],
        step.rewards[kept],
        step.terminated[kept],
        step.truncated[kept],
        (np.cumsum(kept) - 1)[step.ended_rows[ended]],
        map_columns(lambda column: column[ended], step.last_observations),
        step.env_seeds[kept],
        {name: column[kept] for name, column in step.infos.items()},
        {name: column[ended] for name, column in step.last_infos.items()},
        step.rows[kept],
        step.row_steps[kept],
    )


def _read_rows(data: memoryview, start: int, stop: int) -> dict[str, Any]:
    """Return the fields of the rows of one worker."""
    rows: dict[str, Any] = dict(_NO_ROWS)
    rows |= {name: {} for name in _NAMED.values()}
    for key, _, begin, end in fields(data, start, stop):
        if key in _NAMED:
            add_named_tensor(rows[_NAMED[key]], data, begin, end)
        elif key in _NUMBERS:
            name, dtype = _NUMBERS[key]
            rows[name] = np.frombuffer(data[begin:end], dtype)
    return rows


def _joined(workers: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    return np.asarray(workers[0][name]) if len(workers) == 1 else np.concatenate([rows[name] for rows in workers])


def _columns(parts: Sequence[Mapping[str, np.ndarray]]) -> Columns:
    """Return columns whose rows come in parts; of one part, they are its arrays."""
    columns = [columns_of(part) for part in parts]
    return columns[0] if len(columns) == 1 else concatenate_columns(columns)
