"""What a client that acts in environments itself gets to know of each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_wire.columns import columns_of
from rollserve_wire.tensors import named_tensors_from_proto

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from rollserve_wire.columns import Columns
    from rollserve_wire.v1 import sampler_service_pb2 as pb

__all__ = ["DrivenStep", "driven_step_from_proto"]


@dataclass(frozen=True, eq=False)
class DrivenStep:
    """What followed the actions of a step in N rows, and the observations for the next ones.

    Rows are reset in the step that ends an episode: such a row's observation is the first one of its next episode, and
    `last_observations` has the last one of the episode that has ended.

    Attributes:
        number: number of the step that actions are wanted for, from 0.
        observations: (N, *O), or a mapping with such an array for each leaf of a nested space.
        episode_indices: (N,) int64, index of the episode that each row's next step belongs to.
        rewards: (N,) float64, of the last step; zeros before the first.
        terminated: (N,) bool, whether the environment has ended the row's episode with the last step.
        truncated: (N,) bool, whether a limit has. Both may be true.
        ended_rows: (E,) int64, rows whose episodes have ended with the last step.
        last_observations: (E, *O), or a mapping, the last observations of these episodes.
        env_seeds: (N,) uint64, seed of the last reset of each row's environment; of rows that are stepped at once, the
            seed of their joint reset.
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


def driven_step_from_proto(step: pb.DrivenStep) -> DrivenStep:
    """Return a step; raise ValueError for a malformed one."""
    workers = step.workers
    counts = [len(rows.episode_indices) for rows in workers]
    num_rows, starts = sum(counts), np.cumsum([0, *counts])
    rewards = np.array([each for rows in workers for each in rows.rewards])
    ended = [start + np.array(rows.ended_rows, np.int64) for start, rows in zip(starts, workers, strict=False)]
    ended_rows = np.concatenate(ended)
    terminated, truncated = np.zeros((2, num_rows), np.bool_)
    terminated[ended_rows] = [each for rows in workers for each in rows.terminated]
    truncated[ended_rows] = [each for rows in workers for each in rows.truncated]
    observations = _columns([rows.observations for rows in workers])
    ending = [rows.last_observations for rows in workers if rows.ended_rows]
    return DrivenStep(
        step.step,
        observations,
        np.array([each for rows in workers for each in rows.episode_indices], np.int64),
        rewards if len(rewards) else np.zeros(num_rows),
        terminated,
        truncated,
        ended_rows,
        _columns(ending) if ending else _none_of(observations),
        np.array([each for rows in workers for each in rows.environment_seeds], np.uint64),
    )


def _columns(parts: Sequence[Iterable[Any]]) -> Columns:
    """Return columns whose rows come in parts."""
    arrays = [named_tensors_from_proto(part, are_columns=True) for part in parts]
    if len(arrays) == 1:
        return columns_of(arrays[0])
    return columns_of({name: np.concatenate([part[name] for part in arrays]) for name in arrays[0]})


def _none_of(columns: Columns) -> Columns:
    return columns[:0] if isinstance(columns, np.ndarray) else {name: each[:0] for name, each in columns.items()}
