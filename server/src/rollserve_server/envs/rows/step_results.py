"""Results of the last step of each row, in one column for each value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.envs.columns import check_precision, store_observation
from rollserve_server.envs.leaves import any_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_server.envs.leaves import Leaf

__all__ = ["Outcome", "StepResults"]

Outcome = tuple[Any, Any, Any, Any, Any]
"""Result of a step: observation, reward, terminated, truncated and info."""

_MAX_SMALL_BYTES = 4 << 10
"""Largest observation that is stored for many rows at once; larger ones are stored while they are in a cache."""


class StepResults:
    """Columns for the results of M rows.

    Attributes:
        observations: an array (M, *O) for each leaf of the observation space; any valid value before the first reset.
        rewards: (M,) float64.
        terminated: (M,) bool.
        truncated: (M,) bool.
        max_rows_at_once: number of rows whose results are stored together.
        checks_precision: whether an observation of wider floats than its space announces is invalid, not rounded.
    """

    def __init__(self, leaves: Sequence[Leaf], num_rows: int) -> None:
        self._leaves = leaves
        self.checks_precision = False
        # Agents also act in rows that have had no reset yet.
        self.observations = [np.repeat(any_value(leaf)[np.newaxis], num_rows, axis=0) for leaf in leaves]
        self.rewards = np.zeros(num_rows)
        self.terminated = np.zeros(num_rows, np.bool_)
        self.truncated = np.zeros(num_rows, np.bool_)
        self._only_leaf = next((leaf for leaf in leaves if not leaf.path), None)
        is_small = (
            self._only_leaf is not None and self._only_leaf.shape and self.observations[0][0].nbytes <= _MAX_SMALL_BYTES
        )
        self.max_rows_at_once = num_rows if is_small else 1
        # All observations, joined along the first axis of a row's.
        self._joined = self.observations[0].reshape(-1, *leaves[0].shape[1:]) if is_small else None

    def store_observation(self, row: int, observation: Any) -> None:
        """Store the observation of a row; raise what `columns.store_observation` and `check_precision` raise."""
        if self.checks_precision:
            check_precision(observation, self._leaves)
        if self._only_leaf is not None and self._only_leaf.takes(observation):
            self.observations[0][row] = observation
        else:
            store_observation(observation, self._leaves, self.observations, row)

    def store(self, rows: Sequence[int], outcomes: Sequence[Outcome]) -> Sequence[tuple[int, BaseException]]:
        """Store the results of steps of rows, which rise; return rows whose results are invalid, with the errors."""
        if len(outcomes) == 1 or self.checks_precision or not self._store_all(rows, outcomes):
            return self._store_each(rows, outcomes)
        return ()

    def clear(self, row: int) -> None:
        """Record for a row that failed that its episode has not ended."""
        self.rewards[row] = 0.0
        self.terminated[row] = self.truncated[row] = False

    def _store_all(self, rows: Sequence[int], outcomes: Sequence[Outcome]) -> bool:
        """Store several rows at once; return whether that is possible."""
        num_rows, column = len(rows), self.observations[0]
        try:
            observations, rewards, terminated, truncated, _ = zip(*outcomes, strict=True)
            if set(map(len, observations)) != {column.shape[1]}:
                return False
            if num_rows == len(column):
                places: Any = slice(None)
                np.concatenate(observations, out=self._joined, casting="no")
            else:
                places = np.array(rows)
                gathered = np.empty((num_rows * column.shape[1], *column.shape[2:]), column.dtype)
                np.concatenate(observations, out=gathered, casting="no")
                column[places] = gathered.reshape(num_rows, *column.shape[1:])
            self.rewards[places] = np.fromiter(rewards, np.float64, num_rows)
            self.terminated[places] = np.fromiter(terminated, np.bool_, num_rows)
            self.truncated[places] = np.fromiter(truncated, np.bool_, num_rows)
        except BaseException:  # a value has another type or shape, and may be valid all the same
            return False
        return True

    def _store_each(self, rows: Sequence[int], outcomes: Sequence[Outcome]) -> list[tuple[int, BaseException]]:
        """Store rows one by one."""
        invalid = []
        for row, outcome in zip(rows, outcomes, strict=True):
            try:
                observation, self.rewards[row], self.terminated[row], self.truncated[row], _ = outcome
                self.store_observation(row, observation)
            except BaseException as error:
                invalid.append((row, error))
        return invalid
