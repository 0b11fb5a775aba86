"""Results of the last step of each row, in one column for each value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.envs.columns import check_precision, store_observation
from rollserve_server.envs.leaves import any_value
from rollserve_server.envs.outcomes import flag_of, infos_of, parts_of_step, reward_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollserve_server.envs.leaves import Leaf

__all__ = ["StepResults"]

_MAX_SMALL_BYTES = 4 << 10
"""Largest observation that is stored for many rows at once; larger ones are stored while they are in a cache."""

_FLOATS = frozenset({float, np.float64, np.float32})


class StepResults:
    """Columns for the results of M rows.

    Each row's results are taken before the next row steps: environments may keep them in arrays and mappings that they
    share.

    Attributes:
        observations: an array (M, *O) for each leaf of the observation space; any valid value before the first reset.
        rewards: (M,) float64.
        terminated: (M,) bool.
        truncated: (M,) bool.
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
        is_small = self._only_leaf is not None and 0 < self.observations[0][0].nbytes <= _MAX_SMALL_BYTES
        # The dtype of small observations, whose bytes are joined and stored for all rows at once; else None.
        self._dtype = leaves[0].dtype if is_small and num_rows > 1 else None
        self._shape = leaves[0].shape if is_small else ()
        # Results that `store` will store.
        self._rows: list[int] = []
        self._bytes: list[bytes] = []
        self._rewards: list[float] = []
        self._ends: list[tuple[int, bool, bool]] = []

    def store_observation(self, row: int, observation: Any) -> None:
        """Store the observation of a row; raise what `columns.store_observation` and `check_precision` raise."""
        if self.checks_precision:
            check_precision(observation, self._leaves)
        if self._only_leaf is not None and self._only_leaf.takes(observation):
            self.observations[0][row] = observation
        else:
            store_observation(observation, self._leaves, self.observations, row)

    def take(self, row: int, outcome: Any) -> Mapping[Any, Any]:
        """Take the result of a row's step, which `store` stores, and return its infos, which are nobody else's.

        Raises:
            BaseException: the result is invalid, and the columns have no part of it but the observation; raises what
                `reward_of`, `flag_of`, `infos_of` and `store_observation` do.
        """
        is_tuple = type(outcome) is tuple and len(outcome) == 5
        observation, reward, terminated, truncated, info = outcome if is_tuple else parts_of_step(outcome)
        if type(reward) not in _FLOATS:
            reward = reward_of(reward)
        if terminated is not False:
            terminated = flag_of("terminated", terminated)
        if truncated is not False:
            truncated = flag_of("truncated", truncated)
        if info or type(info) is not dict:
            info = infos_of(info)
        dtype = self._dtype
        if dtype is None:
            self.store_observation(row, observation)
        elif type(observation) is np.ndarray and observation.dtype is dtype and observation.shape == self._shape:
            self._bytes.append(observation.tobytes())
        else:
            self.store_observation(row, observation)
            self._bytes.append(self.observations[0][row].tobytes())
        self._rows.append(row)
        self._rewards.append(reward)
        if terminated or truncated:
            self._ends.append((row, terminated, truncated))
        return info

    def store(self) -> None:
        """Store the results that were taken since the last call."""
        if not self._rows:
            return
        num_rows, rewards = len(self._rows), self.rewards
        places: Any = slice(None) if num_rows == len(rewards) else np.array(self._rows)
        rewards[places] = np.fromiter(self._rewards, np.float64, num_rows)
        self.terminated[places] = self.truncated[places] = False
        for row, terminated, truncated in self._ends:
            self.terminated[row], self.truncated[row] = terminated, truncated
        if self._dtype is not None:
            gathered = np.frombuffer(b"".join(self._bytes), self._dtype)
            self.observations[0][places] = gathered.reshape(num_rows, *self._shape)
        for results in (self._rows, self._bytes, self._rewards, self._ends):
            results.clear()

    def clear(self, row: int) -> None:
        """Record for a row that failed that its episode has not ended."""
        self.rewards[row] = 0.0
        self.terminated[row] = self.truncated[row] = False
