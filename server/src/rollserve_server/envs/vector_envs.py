"""Rows of a vector environment, which steps and resets all of them at once."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rollserve_server.activity import Phase, current_activity
from rollserve_server.envs.callbacks import AddedInfo, Callbacks, columns_of_infos, with_added
from rollserve_server.envs.columns import (
    batch_of_leaves,
    check_observations,
    check_precision,
    check_rewards,
    leaves_of_batch,
    rows_of_batch,
)
from rollserve_server.envs.determinism import (
    QUICK_STEPS,
    Trace,
    Traces,
    differences,
    digest,
    numbers_in,
    trace_name,
)
from rollserve_server.envs.envpool import make_envpool
from rollserve_server.envs.info_columns import FINAL_INFO, FINAL_OBSERVATION, info_columns
from rollserve_server.envs.leaves import leaves_of_space
from rollserve_server.envs.legal_actions import legal_columns, random_value
from rollserve_server.envs.making import close_env
from rollserve_server.envs.native import make_native
from rollserve_server.envs.outcomes import (
    ReturnedError,
    failure_text,
    flags_of,
    form_of,
    parts_of_reset,
    parts_of_step,
    plain_infos,
    rewards_of,
)
from rollserve_server.envs.transforms import Transforms
from rollserve_server.errors import EnvFailedError
from rollserve_wire.environments import EnvSpec, Reproducibility
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from gymnasium import Space
    from numpy.typing import NDArray

    from rollserve_server.envs.row_specs import WorkerSpecs

__all__ = ["VectorEnvs"]


class VectorEnvs:
    """M rows of one vector environment. All rows are reset together; a row whose episode ends then resets itself.

    The rows share their random numbers, so what they do is a function of the first reset's seed and of all actions.

    Attributes:
        num_rows: M.
        max_episode_length: step limit that was requested beside the environment's own; None without one.
        observation_space: observation space of one row, as agents see it, with its transforms.
        action_space: action space of one row, as agents choose from it.
        observation_leaves: leaves of the observation space.
        action_leaves: leaves of the action space.
        raw_observation_leaves: leaves of the environment's own observation space.
        environment_action_leaves: leaves of the environment's own action space if actions are transformed, else none.
        observations: current observation of each row, (M, *O) for each leaf.
        rewards: reward of each row's last step, (M,) float64.
        raw_rewards: the environment's own rewards, (M,) float64; the same array if rewards are not transformed.
        environment_actions: what the environment got for the last actions, (M, *A) for each leaf; empty if actions are
            not transformed.
        terminated: whether each row's last step terminated its episode, (M,) bool.
        truncated: whether each row's last step truncated its episode, (M,) bool.
        fresh: whether each row's observation is the first of an episode, (M,) bool.
        stepped: whether the last vector step was a step of each row, (M,) bool; otherwise it was the row's reset.
        same_step: whether rows reset in the step that ends an episode, so that each vector step is a step of all rows.
        max_episode_steps: step limit of episodes; None if it is unknown.
        traces: of the last `classify`.
        checks_observations: whether an observation with NaN or outside its space, or a reward that is not finite, is an
            error.
    """

    def __init__(
        self,
        spec: EnvSpec,
        num_rows: int,
        max_episode_length: int | None = None,
        *,
        same_step: bool = False,
        callbacks: Sequence[str] = (),
    ) -> None:
        """Make the vector environment.

        Args:
            spec: environment.
            num_rows: M.
            max_episode_length: step limit of episodes; None for the environment's own.
            same_step: whether to reset rows in the step that ends an episode, where the environment can.
            callbacks: names of callbacks.

        Raises:
            NotFoundError, InvalidValueError: the environment cannot be made, see `make_native` and `make_envpool`; or a
                callback cannot be made.
        """
        self._spec = spec
        self.num_rows = num_rows
        self.max_episode_length = max_episode_length
        self._broken = False
        self.checks_observations = False
        self.traces: Traces = {}
        self._checks_precision = False
        self._same_step_requested = same_step
        self._activity = current_activity()
        self._env = self._make()
        try:
            own_spaces: tuple[Space[Any], Space[Any]] = (
                self._env.single_observation_space,
                self._env.single_action_space,
            )
            self.raw_observation_leaves = leaves_of_space(own_spaces[0], "observations", texts=False)
            own_action_leaves = leaves_of_space(own_spaces[1], "actions", texts=False)
            self._own_action_space = own_spaces[1]
            self._transforms = Transforms(spec.transforms, *own_spaces)
            self.observation_space, self.action_space = (
                self._transforms.observation_space,
                self._transforms.action_space,
            )
            self.observation_leaves = leaves_of_space(self.observation_space, "observations", texts=False)
            self.action_leaves = leaves_of_space(self.action_space, "actions", texts=False)
            leaves = self.observation_leaves, own_action_leaves
            spaces = self.observation_space, own_spaces[1]
            self._callbacks = Callbacks(callbacks, num_rows, *spaces, leaves) if callbacks else None
        except BaseException:
            self.close()
            raise
        self.same_step = self._env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        # The last observations of the episodes that ended with the last step, if rows have reset in it: a column for
        # each leaf of the environment's own space, and the place of each row (M,) in them.
        self._final: Sequence[np.ndarray] = ()
        self._final_places = np.zeros(num_rows, np.int64)
        self._has_stepped = False
        self.observations: Sequence[np.ndarray] = [
            np.zeros((num_rows, *leaf.shape), leaf.dtype) for leaf in self.observation_leaves
        ]
        self.raw_rewards = np.zeros(num_rows)
        self.rewards = np.zeros(num_rows) if self._transforms.changes_rewards else self.raw_rewards
        self.environment_action_leaves = own_action_leaves if self._transforms.changes_actions else ()
        self.environment_actions: Sequence[np.ndarray] = ()
        self.terminated, self.truncated, self.fresh = np.zeros((3, num_rows), np.bool_)
        self.stepped = np.ones(num_rows, np.bool_)
        registered = self._env.spec
        self.max_episode_steps: int | None = registered.kwargs.get("max_episode_steps") if registered else None

    def check_precision(self) -> None:
        """Make observations of wider floats than their space announces an error from now on, instead of rounding."""
        self._checks_precision = True

    @property
    def text_info_bytes(self) -> int:
        """Bytes of each text among the infos; 0 for no texts."""
        return self._spec.text_info_bytes

    @property
    def is_customized(self) -> bool:
        """Whether a step limit or same-step reset was requested beside the spec."""
        return self._same_step_requested or self.max_episode_length is not None

    def can_change(self, specs: WorkerSpecs) -> bool:
        """Whether `change` to these specs would keep the environment."""
        if self._spec.vectorization == "envpool" or not isinstance(specs, EnvSpec):  # EnvPool has no reset options
            return False
        return dataclasses.replace(self._spec, reset_options={}) == dataclasses.replace(specs, reset_options={})

    def change(self, specs: WorkerSpecs) -> None:
        """Change the reset options, which alone may differ."""
        assert isinstance(specs, EnvSpec)  # noqa: S101  # `can_change` was true
        self._spec = specs

    @property
    def is_declared_nondeterministic(self) -> bool:
        """Whether the registration of the environment declares it nondeterministic."""
        return bool(self._env.spec is not None and self._env.spec.nondeterministic)

    def classify(self) -> Reproducibility:
        """Return the reproducibility class, by a quick check that runs a block twice."""
        if self.is_declared_nondeterministic:
            return Reproducibility.WORKER
        try:
            one, other = (self.trace(0, QUICK_STEPS) for _ in range(2))
        except EnvFailedError:  # sampling reports it
            return Reproducibility.BLOCK
        self.traces = {f"{self.num_rows} rows of {trace_name(self._spec)}": digest(one)}
        differs = any(difference.counts for difference in differences(one, other))
        return Reproducibility.WORKER if differs else Reproducibility.BLOCK

    def trace(self, seed: int, max_steps: int, seconds: float = math.inf) -> Trace:
        """Run a block with random actions, for so long after its reset; the seed determines the reset and the actions.

        Raises:
            EnvFailedError: the environment failed, see `begin` and `step`.
        """
        actions = batch_space(self.action_space, self.num_rows)
        actions.seed(seed)
        infos = self.begin(seed)
        steps = [numbers_in({"observations": self._by_name(), "episode_infos": infos})]
        until = time.perf_counter() + seconds
        for _ in range(max_steps):
            sampled = leaves_of_batch(random_value(actions), self.action_leaves, self.num_rows)
            infos = self.step(legal_columns(self.action_space, sampled, self._by_name(), infos))
            results = {"observations": self._by_name(), "rewards": self.raw_rewards}
            ends = {"terminated": self.terminated, "truncated": self.truncated}
            steps.append(numbers_in({**results, **ends, "environment_infos": infos}))
            if time.perf_counter() > until:
                break
        return Trace(seed, steps)

    def begin(self, seed: int) -> Mapping[str, Any]:
        """Begin an episode in every row, and return the environment's infos: a column for all rows by name.

        Raises:
            EnvFailedError: the environment raised an error, its observations do not fit their space, or it failed
                before and cannot be made again.
        """
        try:
            if self._broken:
                self._env = self._make()
                self._broken = False
            self._activity.begin(Phase.RESET)
            options = copy.deepcopy(dict(self._spec.reset_options)) or None
            observations, infos = parts_of_reset(self._env.reset(seed=seed, options=options))
            self._store(observations)
            infos = info_columns(plain_infos(infos), self.num_rows)
        except BaseException as error:
            raise self._failure("reset", error) from error
        self.terminated[:] = self.truncated[:] = False
        self.fresh[:] = True
        self._has_stepped = False
        self._begin_callbacks()
        return infos

    def step(self, actions: Sequence[np.ndarray]) -> Mapping[str, Any]:
        """Step all rows, and return the environment's infos: a column for all rows by name.

        Args:
            actions: an array (M, *A) for each leaf of the action space; copied, because environments may keep it.

        Raises:
            EnvFailedError: the environment raised an error, or its observations do not fit their space; or rows reset
                in the step that ends an episode, and the episode's last observations are missing or do not fit.
        """
        if self.environment_action_leaves:
            actions = self.environment_actions = self._transforms.environment_actions(actions)
        batch = batch_of_leaves(self._own_action_space, map(np.ndarray.copy, actions))
        ended = None if self.same_step else self.terminated | self.truncated
        self._activity.begin(Phase.STEP)
        try:
            observations, rewards, terminated, truncated, infos = parts_of_step(self._env.step(batch))
            self._store(observations)
            self.raw_rewards[...] = rewards_of(rewards, self.num_rows)
            if self.checks_observations:
                check_rewards(self.raw_rewards, range(self.num_rows))
            self.terminated[...] = flags_of("terminated", terminated, self.num_rows)
            self.truncated[...] = flags_of("truncated", truncated, self.num_rows)
            infos = plain_infos(infos)
            columns = info_columns(infos, self.num_rows)
            if self.same_step and (over := self.terminated | self.truncated).any():
                self._take_final(infos, columns, np.flatnonzero(over))
        except BaseException as error:
            raise self._failure("step", error) from error
        self._activity.end()
        if self.rewards is not self.raw_rewards:
            self._transforms.write_rewards(self.raw_rewards, self.rewards)
        self._has_stepped = True
        if ended is None:
            self.fresh = self.terminated | self.truncated
        else:
            self.fresh, self.stepped = ended, ~ended
        return columns if self._callbacks is None else self._with_callbacks(self._callbacks, actions, infos, columns)

    def last_observations(self, rows: NDArray[np.integer[Any]]) -> list[np.ndarray]:
        """Return the observation after the last step of each of these rows, (rows, *O) for each leaf."""
        ended = self.fresh[rows]
        if not (self.same_step and ended.any()):
            return [column[rows] for column in self.observations]
        # Rows that have ended already show the first observation of their next episode.
        if ended.all():
            return self._final_observations(rows)
        shown = [column[rows] for column in self.observations]
        for column, final in zip(shown, self._final_observations(rows[ended]), strict=True):
            column[ended] = final
        return shown

    def info_parts(self, infos: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], NDArray[np.bool_]]]:
        """Yield the infos of the last step in parts, each with the rows (M,) to which it applies.

        Args:
            infos: infos that `step` returned.
        """
        if not infos:
            return
        final = infos.get(FINAL_INFO)
        ended = self.terminated | self.truncated
        # Infos beside the final ones belong to the row's next episode.
        yield _without_final(infos), ~ended if final is not None else np.ones(self.num_rows, np.bool_)
        if final is not None:
            yield final, ended

    def step_infos(self, infos: Mapping[str, Any], rows: Sequence[int]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the infos of the last step of each of these rows.

        Args:
            infos: infos that `step` returned.
            rows: indices of the rows.
        """
        if infos:
            own = _without_final(infos)
            final = infos.get(FINAL_INFO, own)
            # Infos beside the final ones belong to the row's next episode.
            ended = self.terminated | self.truncated
            yield from ((row, _infos_of_row(final if ended[row] else own, row)) for row in rows)

    def shown_info(self, infos: Mapping[str, Any], path: Sequence[str]) -> tuple[Any, NDArray[np.bool_]]:
        """Return the column of an info about the present observations, and which rows (M,) have it; None without one.

        Args:
            infos: infos that `begin` or `step` returned.
            path: name of the info, with the names of the mappings around it in front.
        """
        rows = np.ones(self.num_rows, np.bool_)
        if self.same_step and self._has_stepped and FINAL_INFO not in infos:
            rows = ~self.fresh  # whose infos belong to the step, not to the reset
        return _info_column(infos, path, rows)

    def shown_infos(self, infos: Mapping[str, Any], name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield each row that has infos about its present observation, with the info of a name, if it has that.

        Args:
            infos: infos that `begin` or `step` returned.
            name: name of the info.
        """
        _, rows = self.shown_info(infos, ())
        named = {key: infos[key] for key in (name, f"_{name}") if key in infos}
        for row in np.flatnonzero(rows).tolist():
            yield row, _infos_of_row(named, row)

    def reset_infos(self, infos: Mapping[str, Any], rows: Iterable[int]) -> Mapping[int, Mapping[str, Any]]:
        """Return the infos of the reset of each of these rows.

        Args:
            infos: infos that `begin` or `step` returned.
            rows: indices of the rows.
        """
        has_any = infos and not (self.same_step and self._has_stepped and FINAL_INFO not in infos)
        own = _without_final(infos)
        return {row: _infos_of_row(own, row) for row in rows} if has_any else {}

    def close(self) -> None:
        """Close the environment."""
        close_env(self._env)

    def _begin_callbacks(self) -> None:
        """Begin the episodes of fresh rows for callbacks; raise EnvFailedError if one raises an error."""
        if self._callbacks is not None and self.fresh.any():
            rows = np.flatnonzero(self.fresh)
            try:
                self._callbacks.begin(rows, [column[rows] for column in self.observations])
            except BaseException as error:
                raise self._failure("reset", error) from error

    def _with_callbacks(
        self, callbacks: Callbacks, actions: Sequence[np.ndarray], infos: Mapping[Any, Any], columns: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return the infos of a step with what callbacks add; raise EnvFailedError if a callback raises an error.

        Args:
            callbacks: the callbacks.
            actions: the actions, as the environment got them.
            infos: the infos, as the environment returned them.
            columns: the same as columns of all rows.
        """
        rows = np.flatnonzero(self.stepped)
        try:
            added = callbacks.step(
                rows,
                [column[rows] for column in actions],
                self.rewards[rows],
                self.raw_rewards[rows],
                self.last_observations(rows),
                self.terminated[rows],
                self.truncated[rows],
                infos,
                self._env,
            )
            if added:
                columns = self._with_infos(columns, added)
        except BaseException as error:
            raise self._failure("step", error) from error
        self._begin_callbacks()
        return columns

    def _with_infos(self, infos: Mapping[str, Any], added: Sequence[AddedInfo]) -> Mapping[str, Any]:
        final = infos.get(FINAL_INFO)
        if final is None:
            return with_added(infos, columns_of_infos(added, np.ones(self.num_rows, np.bool_)))
        # Infos beside the final ones belong to the row's next episode.
        ended = self.terminated | self.truncated
        infos = {**infos, FINAL_INFO: with_added(final, columns_of_infos(added, ended))}
        return with_added(infos, columns_of_infos(added, ~ended))

    def _make(self) -> VectorEnv[Any, Any, Any]:
        self._activity.begin(Phase.MAKING)
        if self._spec.vectorization == "envpool":
            return make_envpool(self._spec, self.num_rows, self.max_episode_length)
        return make_native(self._spec, self.num_rows, self.max_episode_length, same_step=self._same_step_requested)

    def _store(self, observations: Any) -> None:
        if self._checks_precision:
            check_precision(observations, self.raw_observation_leaves)
        raw = leaves_of_batch(observations, self.raw_observation_leaves, self.num_rows)
        if self.checks_observations:
            check_observations(self.raw_observation_leaves, raw, range(self.num_rows))
        self.observations = self._transforms.seen_observations(raw)

    def _final_observations(self, rows: NDArray[np.integer[Any]]) -> list[np.ndarray]:
        """Return the last observations of episodes that ended in these rows, (rows, *O) for each leaf."""
        places = self._final_places[rows]
        return list(self._transforms.seen_observations([column[places] for column in self._final]))

    def _take_final(self, infos: Mapping[Any, Any], columns: dict[str, Any], rows: NDArray[np.integer[Any]]) -> None:
        """Take what an environment says of episodes that ended in rows which show their next ones already.

        Args:
            infos: infos of the step, as the environment returned them.
            columns: the same as columns of all rows, which get the infos of the last steps.
            rows: indices of the rows.

        Raises:
            ReturnedError: last observations are missing or do not fit their space, or the infos are no mapping.
        """
        final, mask = infos.get(FINAL_OBSERVATION), infos.get(f"_{FINAL_OBSERVATION}")
        present = np.ones(self.num_rows, np.bool_)
        if isinstance(mask, np.ndarray) and mask.shape == present.shape:
            present[:] = mask.astype(np.bool_)
        missing = rows if final is None else rows[~present[rows]]
        if len(missing):
            expected = f"the last observation of row {missing[0]}, whose episode has ended"
            got = f"none in {form_of(infos)}" if final is None else f"a mask '_{FINAL_OBSERVATION}' without it"
            raise ReturnedError(f"info {FINAL_OBSERVATION!r}: {mismatch(expected, got)}")
        try:
            self._final = rows_of_batch(final, self.raw_observation_leaves, rows.tolist(), self.num_rows)
            if self.checks_observations:
                check_observations(self.raw_observation_leaves, self._final, range(len(rows)))
        except ReturnedError as error:
            raise ReturnedError(f"info {FINAL_OBSERVATION!r}: {error}") from None
        self._final_places[rows] = np.arange(len(rows))
        final_infos = infos.get(FINAL_INFO)
        if final_infos is None:
            return
        if not isinstance(final_infos, Mapping):
            raise ReturnedError(f"info {FINAL_INFO!r}: {mismatch('a mapping of columns', form_of(final_infos))}")
        columns[FINAL_INFO] = info_columns(final_infos, self.num_rows)

    def _by_name(self) -> dict[str, np.ndarray]:
        return {leaf.name: column for leaf, column in zip(self.observation_leaves, self.observations, strict=True)}

    def _failure(self, what: str, error: BaseException) -> EnvFailedError:
        """Return the error for the caller. The environment may stay broken, so the next block makes a new one."""
        self.close()
        self._broken = True
        return EnvFailedError(failure_text(self._spec.id, what, error), 0)


def _without_final(infos: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the infos of a step without the infos of the last steps of episodes."""
    return {name: column for name, column in infos.items() if name != FINAL_INFO}


def _infos_of_row(infos: Mapping[str, Any], row: int) -> Mapping[str, Any]:
    """Return one row's infos, as its environment would return them alone.

    A row has an info unless gymnasium's mask, `_NAME`, says that it has none.
    """
    row_infos: dict[str, Any] = {}
    for name, column in infos.items():
        if name.startswith("_") or not _has_value(infos.get(f"_{name}"), row):
            continue
        row_infos[name] = _infos_of_row(column, row) if isinstance(column, Mapping) else column[row]
    return row_infos


def _info_column(infos: Mapping[str, Any], path: Sequence[str], rows: NDArray[Any]) -> tuple[Any, NDArray[Any]]:
    """Return the column of an info and the rows that have a value, among `rows` (M,) bool; None if there is no column.

    Args:
        infos: infos of a vector environment.
        path: name of the info, with the names of the mappings around it in front.
        rows: (M,) bool.
    """
    column: Any = infos
    for name in path:
        if not isinstance(column, Mapping) or name not in column:
            return None, rows
        mask = column.get(f"_{name}")
        column, rows = column[name], rows if mask is None else rows & mask
    return column, rows


def _has_value(mask: Any, row: int) -> bool:
    return mask is None or bool(mask[row])
