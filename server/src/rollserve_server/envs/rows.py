"""Rows of one environment that are stepped together, each with a seed of its own."""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.envs.leaves import assemble_rows, leaves_of_space, store_observation
from rollserve_server.envs.making import make_env, set_task
from rollserve_server.envs.purity import classify
from rollserve_server.errors import EnvFailedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import gymnasium
    from gymnasium import Space

    from rollserve import EnvSpec, Reproducibility

__all__ = ["RowEnvs"]


class RowEnvs:
    """M copies of an environment. Only the rows that are named are stepped; nothing is reset by itself.

    gymnasium's SyncVectorEnv would step all rows always; here a row without work costs nothing, an error is known to
    belong to a row, and observations go straight into place.

    Attributes:
        observation_space: the space of one row's observations.
        action_space: the space of one row's actions.
        observation_leaves: its leaves.
        action_leaves: its leaves.
        observations: for each leaf of the observation space (M, *O), what each row shows now.
        rewards: (M,), float64, of each row's last step.
        terminated: (M,), bool, of each row's last step.
        truncated: (M,), bool, of each row's last step.
        max_episode_steps: the step limit of the environment's registration, or None.
    """

    def __init__(self, spec: EnvSpec, num_rows: int) -> None:
        """Makes the environments.

        Raises:
            NotFoundError, InvalidValueError: see `make_env`.
        """
        self._spec = spec
        self._broken: set[int] = set()
        self._envs = [make_env(spec)]
        try:
            self.observation_space: Space[Any] = self._envs[0].observation_space
            self.action_space: Space[Any] = self._envs[0].action_space
            self.observation_leaves = leaves_of_space(self.observation_space)
            self.action_leaves = leaves_of_space(self.action_space)
            while len(self._envs) < num_rows:
                self._envs.append(make_env(spec))
            self.observations = [np.zeros((num_rows, *leaf.shape), leaf.dtype) for leaf in self.observation_leaves]
        except BaseException:
            self.close()
            raise
        self._plain = next((leaf for leaf in self.observation_leaves if not leaf.path), None)
        self.rewards = np.zeros(num_rows)
        self.terminated = np.zeros(num_rows, np.bool_)
        self.truncated = np.zeros(num_rows, np.bool_)
        registered = self._envs[0].spec
        self.max_episode_steps: int | None = registered.max_episode_steps if registered else None

    @property
    def num_rows(self) -> int:
        """M."""
        return len(self._envs)

    def change(self, spec: EnvSpec) -> None:
        """Makes them what the spec says in place. It may differ in its task and in the options of resets.

        Raises:
            InvalidValueError: see `set_task`; the rows are then of no use any more.
        """
        self._spec = spec
        for row, env in enumerate(self._envs):
            if row in self._broken:
                self._envs[row] = make_env(spec)
                self._broken.discard(row)
            elif spec.task is not None:
                set_task(env, spec.task)

    def classify(self) -> Reproducibility:
        """What of the environment comes again, as far as a quick look at some rows can tell."""
        return classify(self._envs[:2], self._spec.reset_options)

    def reset(self, row: int, seed: int) -> Mapping[str, Any]:
        """Begins an episode in a row, and returns the environment's infos.

        Raises:
            EnvFailedError: the environment raised an error, its observation is not as its space says (see
                `store_observation`), or it failed before and cannot be made anew.
        """
        try:
            if row in self._broken:
                self._envs[row] = make_env(self._spec)
                self._broken.discard(row)
            # Environments may change what they are given.
            options = copy.deepcopy(dict(self._spec.reset_options)) or None
            observation, info = self._envs[row].reset(seed=seed, options=options)
            self._store(observation, row)
        except Exception as error:
            raise self._failure("reset", row, error) from error
        return info

    def step(self, rows: Sequence[int], actions: Sequence[np.ndarray]) -> list[tuple[int, Mapping[str, Any]]]:
        """Steps the rows, and returns the infos of those that have any.

        Args:
            rows: which rows to step.
            actions: for each leaf of the action space (M, *A). Not kept: environments may hold on to what they are
                given, so they get copies.

        Raises:
            EnvFailedError: an environment raised an error, or its observation is not as its space says. The rows
                before it have been stepped.
        """
        row_actions = assemble_rows(self.action_space, iter([column.copy() for column in actions]))
        infos: list[tuple[int, Mapping[str, Any]]] = []
        row = 0
        try:
            for row in rows:
                observation, self.rewards[row], self.terminated[row], self.truncated[row], info = self._envs[row].step(
                    row_actions[row]
                )
                self._store(observation, row)
                if info:
                    infos.append((row, info))
        except Exception as error:
            raise self._failure("step", row, error) from error
        return infos

    def close(self) -> None:
        """Closes the environments."""
        for row, env in enumerate(self._envs):
            if row not in self._broken:
                _close(env)

    def _store(self, observation: Any, row: int) -> None:
        if self._plain is not None and self._plain.takes(observation):
            self.observations[0][row] = observation
        else:
            store_observation(observation, self.observation_leaves, self.observations, row)

    def _failure(self, what: str, row: int, error: Exception) -> EnvFailedError:
        """The error for the caller. The environment may be broken for good, so the next reset makes a new one."""
        if row not in self._broken:
            _close(self._envs[row])
            self._broken.add(row)
        message = f"{self._spec.id} raised in {what}: {type(error).__name__}: {error}"
        return EnvFailedError(message, row)


def _close(env: gymnasium.Env[Any, Any]) -> None:
    # What an environment raises at its end is of no interest any more.
    with contextlib.suppress(Exception):
        env.close()
