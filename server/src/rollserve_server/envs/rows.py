"""Rows of environments that are stepped together, each with a seed of its own."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve import Reproducibility
from rollserve_server.activity import Phase, current_activity
from rollserve_server.envs.determinism import QUICK_SECONDS, Trace, classify, trace_episode
from rollserve_server.envs.leaves import any_value, assemble_rows, leaves_of_space, store_observation
from rollserve_server.envs.making import close_env, make_env, own_infos, set_task
from rollserve_server.envs.observation_checks import check_observations, unfit_rows
from rollserve_server.envs.row_specs import RowSpecs, WorkerSpecs, specs_of_rows
from rollserve_server.errors import EnvFailedError, InvalidValueError, at_row, describe, show

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gymnasium import Space

    from rollserve import EnvSpec

__all__ = ["RowEnvs"]

_Outcome = tuple[Any, Any, Any, Any, Any]
"""What a step returns: observation, reward, terminated, truncated and info."""

_SMALL_BYTES = 4 << 10
"""Up to here observations are stored for all rows at once; larger ones as they come, while they are in the caches."""
_MOST_QUICK_SECONDS = 1.0
"""How long quick looks at rows that differ may take in all."""


class RowEnvs:
    """M copies of an environment, or M that differ but for their spaces.

    Only the rows that are named are stepped; nothing is reset by itself.

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
        failures: of the last `step`, the errors of those rows whose environments raised any.
        checks_observations: whether one that is outside its space, or no number, is an error.
        rows_differ: whether each row has a spec of its own, so that each episode belongs to a row.
    """

    def __init__(self, specs: WorkerSpecs, num_rows: int) -> None:
        """Makes the environments.

        Args:
            specs: what to make: the same in all rows, or one for each.
            num_rows: M.

        Raises:
            NotFoundError, InvalidValueError: see `make_env`; or the rows' spaces differ.
        """
        self.rows_differ = isinstance(specs, RowSpecs)
        self._specs = specs_of_rows(specs, num_rows)
        self._broken: set[int] = set()
        self.failures: list[EnvFailedError] = []
        self._activity = current_activity()
        self.checks_observations = False
        with at_row(0):
            self._envs = [make_env(self._specs[0])]
        try:
            self.observation_space: Space[Any] = self._envs[0].observation_space
            self.action_space: Space[Any] = self._envs[0].action_space
            self.observation_leaves = leaves_of_space(self.observation_space)
            self.action_leaves = leaves_of_space(self.action_space)
            for row in range(1, num_rows):
                with at_row(row):
                    self._envs.append(make_env(self._specs[row]))
                    self._check_spaces(row)
            # Agents also see rows that have had no episode yet.
            self.observations = [
                np.repeat(any_value(leaf)[np.newaxis], num_rows, axis=0) for leaf in self.observation_leaves
            ]
        except BaseException:
            self.close()
            raise
        self._plain = next((leaf for leaf in self.observation_leaves if not leaf.path), None)
        small = self._plain is not None and self._plain.shape and self.observations[0][0].nbytes <= _SMALL_BYTES
        self._num_together = num_rows if small else 1
        self.rewards = np.zeros(num_rows)
        self.terminated = np.zeros(num_rows, np.bool_)
        self.truncated = np.zeros(num_rows, np.bool_)

    @property
    def num_rows(self) -> int:
        """M."""
        return len(self._envs)

    @property
    def max_episode_steps(self) -> int | None:
        """The step limit of the environments' registrations, the highest where rows differ; None if one has none."""
        registered = [env.spec for env in (self._envs if self.rows_differ else self._envs[:1])]
        limits = [spec and spec.max_episode_steps for spec in registered]
        return max((limit for limit in limits if limit), default=None) if all(limits) else None

    def can_change(self, specs: WorkerSpecs) -> bool:
        """Whether `change` to these would leave anything in place."""
        wanted = specs_of_rows(specs, self.num_rows)
        return len(wanted) == self.num_rows and any(map(_differ_in_place, self._specs, wanted))

    def change(self, specs: WorkerSpecs) -> None:
        """Makes them what the specs say: in place where no more than task and options of resets change, else anew.

        Raises:
            NotFoundError, InvalidValueError: see `make_env` and `set_task`, or the rows' spaces would differ; the rows
                are then of no use any more.
        """
        self.rows_differ = isinstance(specs, RowSpecs)
        before, self._specs = self._specs, specs_of_rows(specs, self.num_rows)
        for row, spec in enumerate(self._specs):
            with at_row(row):
                if row in self._broken or not _differ_in_place(before[row], spec):
                    self._break(row)
                    self._remake(row)
                    self._check_spaces(row)
                elif spec.task is not None:
                    set_task(self._envs[row], spec.task)

    def classify(self) -> Reproducibility:
        """What of the environments comes again, as far as a quick look at some rows of each kind can tell."""
        kinds: dict[str, list[int]] = {}
        for row, spec in enumerate(self._specs):
            kinds.setdefault(repr(spec), []).append(row)
        seconds = min(QUICK_SECONDS, _MOST_QUICK_SECONDS / len(kinds))
        for rows in kinds.values():
            envs, options = [self._envs[row] for row in rows[:2]], self._specs[rows[0]].reset_options
            if classify(envs, options, seconds) is Reproducibility.WORKER:
                return Reproducibility.WORKER
        return Reproducibility.EPISODE

    @property
    def is_declared_impure(self) -> bool:
        """Whether a registration says itself that its environment is not deterministic."""
        return any(env.spec is not None and env.spec.nondeterministic for env in self._envs)

    def trace(self, seed: int, max_steps: int) -> Trace:
        """Runs an episode in the first row with random actions; see `trace_episode`.

        Raises:
            EnvFailedError: the environment raised an error.
        """
        try:
            return trace_episode(self._envs[0], seed, max_steps, self._specs[0].reset_options)
        except BaseException as error:
            raise self._failure("an episode", 0, error) from error

    def reset(self, row: int, seed: int) -> Mapping[str, Any]:
        """Begins an episode in a row, and returns the environment's infos.

        Raises:
            EnvFailedError: the environment raised an error, its observation is not as its space says (see
                `store_observation`), or it failed before and cannot be made anew.
        """
        try:
            if row in self._broken:
                self._remake(row)
            self._activity.begin(Phase.RESET, row)
            # Environments may change what they are given.
            given = self._specs[row].reset_options
            options = copy.deepcopy(dict(given)) if given else None
            observation, info = self._envs[row].reset(seed=seed, options=options)
            self._store(observation, row)
            if self.checks_observations:
                check_observations(self.observation_leaves, self.observations, (row,))
            return own_infos(info)
        except BaseException as error:
            raise self._failure("reset", row, error) from error

    def step(self, rows: Sequence[int], actions: Sequence[np.ndarray]) -> list[tuple[int, Mapping[str, Any]]]:
        """Steps the rows, and returns the infos of those that have any.

        Of rows whose environments raise an error, or show what is not as their space says, `failures` tells: those are
        closed, and the next `reset` makes others in their place. The other rows have been stepped.

        Args:
            rows: which rows to step.
            actions: for each leaf of the action space (M, *A). Not kept: environments may hold on to what they are
                given, so they get copies.
        """
        if self.failures:
            self.failures = []
        row_actions = assemble_rows(self.action_space, iter([column.copy() for column in actions]))
        infos: list[tuple[int, Mapping[str, Any]]] = []
        self._activity.begin(Phase.STEP)
        for start in range(0, len(rows), self._num_together):
            infos += self._step_together(rows[start : start + self._num_together], row_actions)
        if self.checks_observations:
            infos = self._without_unfit(rows, infos)
        self._activity.phase = Phase.WORKING
        return infos

    def close(self) -> None:
        """Closes the environments."""
        for row, env in enumerate(self._envs):
            if row not in self._broken:
                close_env(env)

    def _step_together(self, rows: Sequence[int], row_actions: Sequence[Any]) -> list[tuple[int, Mapping[str, Any]]]:
        """Steps rows, then stores what came of it; returns as `step`."""
        envs, activity = self._envs, self._activity
        outcomes: list[_Outcome] = []
        for row in rows:
            activity.row = row
            try:
                outcome = envs[row].step(row_actions[row])
                outcomes.append(outcome if type(outcome) is tuple else tuple(outcome))
            except BaseException as error:
                self._fail(row, error)
        if self.failures:
            rows = [row for row in rows if row not in self._broken]
        if len(outcomes) == 1 or not self._store_all(rows, outcomes):
            self._store_each(rows, outcomes)
        stepped = list(zip(rows, outcomes, strict=True))
        if self.failures:
            stepped = [(row, outcome) for row, outcome in stepped if row not in self._broken]
        infos = [(row, outcome[4]) for row, outcome in stepped if type(outcome[4]) is not dict or outcome[4]]
        return infos if all(type(info) is dict for _, info in infos) else self._own_infos(infos)

    def _own_infos(self, given: Sequence[tuple[int, Any]]) -> list[tuple[int, Mapping[str, Any]]]:
        infos: list[tuple[int, Mapping[str, Any]]] = []
        for row, info in given:
            try:
                own = own_infos(info)
            except BaseException as error:
                self._fail(row, error)
            else:
                if own:
                    infos.append((row, own))
        return infos

    def _without_unfit(
        self, rows: Sequence[int], infos: Sequence[tuple[int, Mapping[str, Any]]]
    ) -> list[tuple[int, Mapping[str, Any]]]:
        """Takes rows whose observations are outside their space for failed; returns the infos of the others."""
        stepped = [row for row in rows if row not in self._broken]
        for row, text in unfit_rows(self.observation_leaves, self.observations, stepped).items():
            self._fail(row, ValueError(text))
        return [(row, info) for row, info in infos if row not in self._broken]

    def _store_all(self, rows: Sequence[int], outcomes: Sequence[_Outcome]) -> bool:
        """Stores what came of some rows' steps at once; returns whether that is possible."""
        num_rows, column = len(rows), self.observations[0]
        try:
            observations, rewards, terminated, truncated, _ = zip(*outcomes, strict=True)
            if set(map(len, observations)) != {column.shape[1]}:
                return False
            gathered = np.empty((num_rows * column.shape[1], *column.shape[2:]), column.dtype)
            np.concatenate(observations, out=gathered, casting="no")
            column[rows] = gathered.reshape(num_rows, *column.shape[1:])
            self.rewards[rows] = np.fromiter(rewards, np.float64, num_rows)
            self.terminated[rows] = np.fromiter(terminated, np.bool_, num_rows)
            self.truncated[rows] = np.fromiter(truncated, np.bool_, num_rows)
        except BaseException:  # something is of another kind or shape, and may be fine all the same
            return False
        return True

    def _store_each(self, rows: Sequence[int], outcomes: Sequence[_Outcome]) -> None:
        """Stores what came of rows' steps one by one."""
        for row, outcome in zip(rows, outcomes, strict=True):
            try:
                observation, self.rewards[row], self.terminated[row], self.truncated[row], _ = outcome
                self._store(observation, row)
            except BaseException as error:
                self._fail(row, error)

    def _store(self, observation: Any, row: int) -> None:
        if self._plain is not None and self._plain.takes(observation):
            self.observations[0][row] = observation
        else:
            store_observation(observation, self.observation_leaves, self.observations, row)

    def _fail(self, row: int, error: BaseException) -> None:
        """Takes in that a row could not be stepped: it has not come to an end."""
        self.failures.append(self._failure("step", row, error))
        self.rewards[row] = 0.0
        self.terminated[row] = self.truncated[row] = False
        self._activity.begin(Phase.STEP)  # of the others, now that this one is closed

    def _failure(self, what: str, row: int, error: BaseException) -> EnvFailedError:
        """The error for the caller. The environment may be broken for good, so the next reset makes a new one."""
        self._break(row)
        message = f"{self._specs[row].id} raised in {what}: {describe(error)}"
        return EnvFailedError(message, row)

    def _break(self, row: int) -> None:
        """Closes a row's environment, in whose place another is to be made."""
        if row not in self._broken:
            close_env(self._envs[row])
            self._broken.add(row)

    def _remake(self, row: int) -> None:
        """Makes another environment in the place of one that is closed."""
        self._envs[row] = make_env(self._specs[row])
        self._broken.discard(row)

    def _check_spaces(self, row: int) -> None:
        """Raises InvalidValueError if a row that may differ has other spaces than the others."""
        for name in ("observation_space", "action_space") if self.rows_differ else ():
            came, expected = getattr(self._envs[row], name), getattr(self, name)
            if came != expected:
                text = f"its {name} is {show(came)}, {show(expected)}, as of the other rows, was expected"
                raise InvalidValueError(text)


def _differ_in_place(before: EnvSpec, after: EnvSpec) -> bool:
    """Whether nothing but the task and the options of resets differs, and the task can be set in place."""
    if dataclasses.replace(before, task=after.task, reset_options=after.reset_options) != after:
        return False
    # There is no way back from a task to none, nor to what another method has set.
    return before.task is None or (after.task is not None and after.task.method == before.task.method)
