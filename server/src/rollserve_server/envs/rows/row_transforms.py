"""Transforms of rows that are stepped one by one, and the columns that they write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.envs.leaves import any_value, leaves_of_space

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rollserve_server.envs.leaves import Leaf
    from rollserve_server.envs.rows.step_results import StepResults
    from rollserve_server.envs.transforms.transforms import Transforms

__all__ = ["RowTransforms"]


class RowTransforms:
    """Transforms of M rows, which may differ. Rows with the same transforms are transformed together.

    Attributes:
        observations: observations that agents see, (M, *O) for each leaf.
        rewards: rewards that agents get, (M,) float64. Without transforms of them, both are the results' own arrays.
        changes_actions: whether any row's actions are transformed.
    """

    def __init__(self, transforms: Sequence[Transforms], results: StepResults, action_leaves: Sequence[Leaf]) -> None:
        """Begin with rows that have had no reset.

        Args:
            transforms: transforms of each row, which lead to the same spaces; equal ones are one object.
            results: results of the environments' steps.
            action_leaves: leaves of the environments' action space.
        """
        self._results = results
        self._action_leaves = action_leaves
        self._num_rows = len(transforms)
        rows_of: dict[Transforms, list[int]] = {}
        for row, each in enumerate(transforms):
            rows_of.setdefault(each, []).append(row)
        self._groups = [(each, np.array(rows)) for each, rows in rows_of.items()]
        self._changes_observations = any(each.changes_observations for each, _ in self._groups)
        self._changes_rewards = any(each.changes_rewards for each, _ in self._groups)
        self.changes_actions = any(each.changes_actions for each, _ in self._groups)
        self.observations, self.rewards = results.observations, results.rewards
        if self._changes_observations:
            leaves = leaves_of_space(transforms[0].observation_space)
            self.observations = [np.repeat(any_value(leaf)[np.newaxis], self._num_rows, axis=0) for leaf in leaves]
        if self._changes_rewards:
            self.rewards = np.zeros(self._num_rows)

    def environment_actions(self, actions: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Return what the environments get for the agent's actions, (M, *A) for each leaf."""
        if len(self._groups) == 1:
            return self._groups[0][0].environment_actions(actions)
        found = [np.empty((self._num_rows, *leaf.shape), leaf.dtype) for leaf in self._action_leaves]
        for transforms, rows in self._groups:
            own = transforms.environment_actions([column[rows] for column in actions])
            for column, values in zip(found, own, strict=True):
                column[rows] = values
        return found

    def update(self, rows: Sequence[int], *, with_rewards: bool = True) -> None:
        """Transform the results of rows that were stepped, or reset, since the last update."""
        if not (self._changes_observations or (with_rewards and self._changes_rewards)):
            return
        if len(self._groups) == 1 and len(rows) == self._num_rows:
            self._update(self._groups[0][0], slice(None), with_rewards=with_rewards)
            return
        for transforms, members in self._groups:
            stepped = np.array(rows) if len(self._groups) == 1 else members[np.isin(members, rows)]
            if len(stepped):
                self._update(transforms, stepped, with_rewards=with_rewards)

    def _update(self, transforms: Transforms, rows: slice | NDArray[np.int64], *, with_rewards: bool) -> None:
        results = self._results
        if self._changes_observations:
            seen = transforms.seen_observations([column[rows] for column in results.observations])
            for column, values in zip(self.observations, seen, strict=True):
                column[rows] = values
        if with_rewards and self._changes_rewards:
            rewards = results.rewards[rows].copy()  # rewards of untransformed rows stay as they are
            transforms.write_rewards(rewards, rewards)
            self.rewards[rows] = rewards
