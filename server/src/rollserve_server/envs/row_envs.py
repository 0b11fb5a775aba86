"""Rows of environments that are stepped one by one, with their transforms."""

from __future__ import annotations

import copy
import dataclasses
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.activity import Phase, current_activity
from rollserve_server.envs.callbacks import AddedInfo, Callbacks, with_added
from rollserve_server.envs.columns import (
    assemble_rows,
    check_observations,
    check_precision,
    store_observation,
    unfit_rewards,
    unfit_rows,
)
from rollserve_server.envs.determinism import QUICK_SECONDS, Trace, Traces, classify, trace_episode, trace_name
from rollserve_server.envs.hosts.connection import HostError
from rollserve_server.envs.hosts.host import Host, HostResults, host_of, is_hosted
from rollserve_server.envs.leaves import Leaf, any_value, leaves_of_space
from rollserve_server.envs.making import close_env, make_env, set_task
from rollserve_server.envs.outcomes import (
    ReturnedError,
    failure_text,
    flag_of,
    infos_of,
    parts_of_reset,
    parts_of_step,
    reward_of,
)
from rollserve_server.envs.row_specs import RowSpecs, WorkerSpecs, identity_of, specs_of_rows
from rollserve_server.envs.transforms import Transforms
from rollserve_server.errors import EnvFailedError, InvalidValueError, at_row, show
from rollserve_wire.environments import EnvSpec, Reproducibility
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import gymnasium
    from gymnasium import Space
    from numpy.typing import NDArray

__all__ = ["RowEnvs"]

_RowInfos = list[tuple[int, "Mapping[str, Any]"]]

_MAX_SMALL_BYTES = 4 << 10
"""Largest observation that is stored for many rows at once; larger ones are stored while they are in a cache."""

_FLOATS = frozenset({float, np.float64, np.float32})


class RowEnvs:
    """M environments, which may differ except in their spaces. The caller says which rows step, and resets them.

    gymnasium's SyncVectorEnv always steps all rows. Here a row without work costs nothing, an error belongs to a row,
    and observations are written directly to their columns.

    Attributes:
        num_rows: M.
        observation_space: observation space of one row, as agents see it, with its transforms.
        action_space: action space of one row, as agents choose from it.
        observation_leaves: leaves of the observation space.
        action_leaves: leaves of the action space.
        raw_observation_leaves: leaves of the environments' own observation space.
        environment_action_leaves: leaves of the environments' own action space if actions are transformed, else none.
        observations: current observation of each row, (M, *O) for each leaf.
        rewards: reward of each row's last step, (M,) float64.
        raw_rewards: the environments' own rewards, (M,) float64; the same array if rewards are not transformed.
        environment_actions: what the environments got for the last actions, (M, *A) for each leaf; empty if actions
            are not transformed.
        terminated: whether each row's last step terminated its episode, (M,) bool.
        truncated: whether each row's last step truncated its episode, (M,) bool.
        failures: errors of the rows whose environments failed in the last `step`.
        checks_observations: whether an observation with NaN or outside its space, or a reward that is not finite, is an
            error.
        rows_differ: whether each row has a spec of its own, so that each episode belongs to a row.
        has_callbacks: whether callbacks see the steps.
        resets_together: whether `begin_resets` resets rows at the same time.
        traces: of the last `classify`.
    """

    observations: Sequence[np.ndarray]
    rewards: NDArray[np.float64]
    raw_rewards: NDArray[np.float64]
    environment_action_leaves: Sequence[Leaf]
    environment_actions: Sequence[np.ndarray]
    _transforms: _RowTransforms | None

    def __init__(
        self, specs: WorkerSpecs, num_rows: int, callbacks: Sequence[str] = (), *, has_threads: bool = False
    ) -> None:
        """Make the environments.

        Args:
            specs: environments: the same for all rows, or one for each.
            num_rows: M.
            callbacks: names of callbacks.
            has_threads: whether rows step, and are reset, at the same time, each in a thread.

        Raises:
            NotFoundError, InvalidValueError: an environment cannot be made, see `make_env`; spaces differ; or a
                callback cannot be made.
        """
        self.rows_differ = isinstance(specs, RowSpecs)
        self.num_rows = num_rows
        self._specs = specs_of_rows(specs, num_rows)
        self._broken: set[int] = set()
        self._threads = ThreadPoolExecutor(num_rows, "row") if has_threads and not is_hosted(self._specs[0]) else None
        self._resets: dict[int, tuple[int, Future[Any]]] = {}  # that have begun: seed and result by row
        self.failures: list[EnvFailedError] = []
        self.traces: Traces = {}
        self._activity = current_activity()
        self.checks_observations = False
        # The host of all rows, if one has them; rows that differ have a host each.
        self._host: Host | None = None
        self._envs: list[gymnasium.Env[Any, Any]] = []
        try:
            with at_row(0):
                if not self.rows_differ:
                    self._host = host_of(self._specs[0], num_rows)
                self._envs.append(self._made(0))
            self._own_spaces: tuple[Space[Any], Space[Any]] = (
                self._envs[0].observation_space,
                self._envs[0].action_space,
            )
            self.raw_observation_leaves = leaves_of_space(self._own_spaces[0], "observations")
            self._own_action_leaves = leaves_of_space(self._own_spaces[1], "actions", texts=False)
            with at_row(0):
                first = Transforms(self._specs[0].transforms, *self._own_spaces)
            self.observation_space, self.action_space = first.observation_space, first.action_space
            self.observation_leaves = leaves_of_space(self.observation_space, "observations")
            self.action_leaves = leaves_of_space(self.action_space, "actions", texts=False)
            for row in range(1, num_rows):
                with at_row(row):
                    self._envs.append(self._made(row))
                    self._check_spaces(row)
            self._results = results = _StepResults(self.raw_observation_leaves, num_rows)
            self._set_transforms()
            leaves = self.observation_leaves, self._own_action_leaves
            spaces = self.observation_space, self._own_spaces[1]
            self._callbacks = Callbacks(callbacks, num_rows, *spaces, leaves) if callbacks else None
            self.has_callbacks = self._callbacks is not None
        except BaseException:
            self.close()
            raise
        self.terminated, self.truncated = results.terminated, results.truncated
        self.resets_together = self._threads is not None or self._host is not None

    def check_precision(self) -> None:
        """Make observations of wider floats than their space announces an error from now on, instead of rounding."""
        self._results.checks_precision = True

    @property
    def text_info_bytes(self) -> int:
        """Bytes of each text among the infos, the same in all rows; 0 for no texts."""
        return self._specs[0].text_info_bytes

    @property
    def max_episode_steps(self) -> int | None:
        """Step limit of the environments' registrations, the highest where rows differ; None if one has no limit."""
        registered = [env.spec for env in (self._envs if self.rows_differ else self._envs[:1])]
        limits = [spec and spec.max_episode_steps for spec in registered]
        return max((limit for limit in limits if limit), default=None) if all(limits) else None

    def can_change(self, specs: WorkerSpecs) -> bool:
        """Whether `change` to these specs would keep at least one environment."""
        row_specs = specs_of_rows(specs, self.num_rows)
        is_as_long = self._host is None and len(row_specs) == self.num_rows
        return is_as_long and any(map(_differ_in_place, self._specs, row_specs))

    def change(self, specs: WorkerSpecs) -> None:
        """Change the environments: in place where only task and reset options differ, else by making new ones.

        Raises:
            NotFoundError, InvalidValueError: an environment cannot be made or refuses its task, see `make_env` and
                `set_task`; or spaces would differ. The rows are then unusable.
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
        self._set_transforms()

    def classify(self) -> Reproducibility:
        """Return the reproducibility class, by a quick check of up to two rows with each spec."""
        kinds: dict[bytes, list[int]] = {}
        for row, spec in enumerate(self._specs):
            kinds.setdefault(identity_of(spec), []).append(row)
        seconds = QUICK_SECONDS / len(kinds)
        self.traces = traces = {}
        for rows in kinds.values():
            envs, spec = [self._envs[row] for row in rows[:2]], self._specs[rows[0]]
            found, traces[trace_name(spec)] = classify(envs, spec.reset_options, seconds)
            if found is Reproducibility.WORKER:
                return Reproducibility.WORKER
        return Reproducibility.EPISODE

    @property
    def is_declared_nondeterministic(self) -> bool:
        """Whether the registration of an environment declares it nondeterministic."""
        return any(env.spec is not None and env.spec.nondeterministic for env in self._envs)

    def trace(self, seed: int, max_steps: int, until: float | None = None) -> Trace:
        """Run an episode in the first row with random actions; see `trace_episode`.

        Raises:
            EnvFailedError: the environment raised an error.
        """
        try:
            return trace_episode(self._envs[0], seed, max_steps, self._specs[0].reset_options, until)
        except BaseException as error:
            raise self._failure("an episode", 0, error) from error

    def begin_resets(self, seeds: Mapping[int, int]) -> None:
        """Begin resets with these seeds, by row, if rows have threads or a host; `reset` waits for them."""
        rows = seeds.keys() - self._broken
        if self._threads is not None:
            for row in rows:
                self._resets[row] = seeds[row], self._threads.submit(self._reset, row, seeds[row])
        elif self._host is not None and rows:
            self._resets |= _host_resets(self._host, {row: seeds[row] for row in rows})

    def reset(self, row: int, seed: int) -> Mapping[str, Any]:
        """Begin an episode in a row, and return the environment's infos.

        Raises:
            EnvFailedError: the environment raised an error, its observation does not fit its space (see
                `store_observation`), or the environment failed before and cannot be made again.
        """
        try:
            if row in self._broken:
                self._remake(row)
            self._activity.begin(Phase.RESET, row)
            begun_seed, begun = self._resets.pop(row, (seed, None))
            outcome = self._reset(row, seed) if begun is None else begun.result()
            observation, info = parts_of_reset(outcome if begun_seed == seed else self._reset(row, seed))
            self._results.store_observation(row, observation)
            if self.checks_observations:
                check_observations(self.raw_observation_leaves, self._results.observations, (row,))
            if self._transforms is not None:
                self._transforms.update((row,), with_rewards=False)
            if self._callbacks is not None:
                self._callbacks.begin((row,), [column[[row]] for column in self.observations])
            return infos_of(info)
        except BaseException as error:
            raise self._failure("reset", row, error) from error

    def step(
        self, rows: Sequence[int], actions: Sequence[np.ndarray], at_limit: NDArray[np.bool_] | None = None
    ) -> _RowInfos:
        """Step rows, and return their infos, without empty ones.

        A row whose environment raises an error, or whose observation does not fit its space, is recorded in `failures`.
        Its environment is closed, and the next `reset` makes a new one. The other rows are stepped.

        Args:
            rows: indices of the rows, rising.
            actions: an array (M, *A) for each leaf of the action space; copied, because environments may keep it.
            at_limit: (M,), the rows whose episodes the caller ends with this step, for callbacks; None for none.
        """
        if self.failures:
            self.failures = []
        if self.environment_action_leaves:
            assert self._transforms is not None  # noqa: S101  # actions are transformed
            self.environment_actions = actions = self._transforms.environment_actions(actions)
        if self._host is None:
            row_actions = assemble_rows(self._own_spaces[1], map(np.ndarray.copy, actions), self.num_rows)
            infos = self._step_each(rows, row_actions)
        else:
            infos = self._step_host(self._host, rows, actions)
        if self.checks_observations:
            infos = self._without_unfit(rows, infos)
        if self._transforms is not None:
            self._transforms.update(rows)
        if self._callbacks is not None:
            infos = self._with_callbacks(self._callbacks, rows, actions, infos, at_limit)
        self._activity.end()
        return infos

    def close(self) -> None:
        """Close the environments."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        for row, env in enumerate(self._envs):
            if row not in self._broken:
                close_env(env)
        if self._host is not None:
            self._host.close()

    def _reset(self, row: int, seed: int) -> Any:
        # Copy the options, because environments may change their arguments.
        reset_options = self._specs[row].reset_options
        options = copy.deepcopy(dict(reset_options)) if reset_options else None
        return self._envs[row].reset(seed=seed, options=options)

    def _step_each(self, rows: Sequence[int], row_actions: Sequence[Any]) -> _RowInfos:
        """Step rows and store their results; return infos as `step` does."""
        envs, activity, take, threads = self._envs, self._activity, self._results.take, self._threads
        infos: _RowInfos = []
        activity.begin(Phase.STEP)
        begun = threads and {row: threads.submit(envs[row].step, row_actions[row]) for row in rows}
        for row in rows:
            activity.row = row
            try:
                info = take(row, begun[row].result() if begun else envs[row].step(row_actions[row]))
                if info:
                    infos.append((row, info))
            except BaseException as error:
                self._fail(row, error)
        self._results.store()
        return infos

    def _step_host(self, host: Host, rows: Sequence[int], actions: Sequence[np.ndarray]) -> _RowInfos:
        """Step rows of a host and store their results; return infos as `step` does."""
        self._activity.begin(Phase.STEP)
        is_all = len(rows) == self.num_rows
        try:
            results = host.step(rows, actions if is_all else [column[list(rows)] for column in actions])
        except HostError as error:  # which has none of the rows any more
            for row in rows:
                self._fail(row, error)
            return []
        self._results.store_all(rows, results)
        for position, text in results.failures.items():
            self._fail(rows[position], HostError(text))
        return [
            (rows[position], info)
            for position, info in sorted(results.infos.items())
            if position not in results.failures
        ]

    def _without_unfit(self, rows: Sequence[int], infos: _RowInfos) -> _RowInfos:
        """Let rows fail whose observations are outside their space, or rewards not finite; return the others' infos."""
        stepped = [row for row in rows if row not in self._broken]
        unfit = unfit_rows(self.raw_observation_leaves, self._results.observations, stepped)
        for row, text in {**unfit_rewards(self._results.rewards, stepped), **unfit}.items():
            self._fail(row, ReturnedError(text))
        return [(row, info) for row, info in infos if row not in self._broken]

    def _with_callbacks(
        self,
        callbacks: Callbacks,
        rows: Sequence[int],
        actions: Sequence[np.ndarray],
        infos: _RowInfos,
        at_limit: NDArray[np.bool_] | None,
    ) -> _RowInfos:
        """Return the infos with what callbacks add; all rows that have stepped fail if a callback raises an error."""
        stepped = np.array([row for row in rows if row not in self._broken], np.int64)
        merged: dict[int, Mapping[str, Any]] = dict(infos)
        truncated = self.truncated if at_limit is None else self.truncated | (at_limit & ~self.terminated)
        try:
            added = callbacks.step(
                stepped,
                [column[stepped] for column in actions],
                self.rewards[stepped],
                self.raw_rewards[stepped],
                [column[stepped] for column in self.observations],
                self.terminated[stepped],
                truncated[stepped],
                merged,
                self._envs,
            )
            for row, info in _by_row(added).items():
                merged[row] = with_added(merged.get(row, {}), info)
        except BaseException as error:
            for row in stepped.tolist():
                self._fail(row, error)
            return []
        return sorted(merged.items())

    def _fail(self, row: int, error: BaseException) -> None:
        """Record that a row's step failed."""
        failure = self._failure("step", row, error)
        failure.__cause__ = error.with_traceback(None)  # whose frames would hold the environment
        self.failures.append(failure)
        self._results.clear(row)
        self._activity.begin(Phase.STEP)  # of the other rows, after this one was closed

    def _failure(self, what: str, row: int, error: BaseException) -> EnvFailedError:
        """Return the error for the caller. The environment may stay broken, so the next reset makes a new one."""
        self._break(row)
        return EnvFailedError(failure_text(self._specs[row].id, what, error), row)

    def _break(self, row: int) -> None:
        """Close a row's environment, which a new one will replace."""
        if row not in self._broken:
            close_env(self._envs[row])
            self._broken.add(row)

    def _remake(self, row: int) -> None:
        """Replace a row's closed environment."""
        self._envs[row] = self._made(row)
        self._broken.discard(row)

    def _made(self, row: int) -> gymnasium.Env[Any, Any]:
        """Return a new environment of a row."""
        return make_env(self._specs[row]) if self._host is None else self._host.row(row)

    def _check_spaces(self, row: int) -> None:
        """Raise InvalidValueError if the row's spaces, without transforms or with them, differ from the first row's."""
        if not self.rows_differ:
            return
        env = self._envs[row]
        self._check_same((env.observation_space, env.action_space), self._own_spaces)
        transforms = Transforms(self._specs[row].transforms, *self._own_spaces)
        spaces = self.observation_space, self.action_space
        self._check_same((transforms.observation_space, transforms.action_space), spaces)

    def _check_same(self, spaces: Sequence[Space[Any]], expected: Sequence[Space[Any]]) -> None:
        for name, got, space in zip(("observation_space", "action_space"), spaces, expected, strict=True):
            if got != space:
                raise InvalidValueError(f"{name}: {mismatch(f'{show(space)}, as in the first row', show(got))}")

    def _set_transforms(self) -> None:
        """Make the transforms of all rows, and the columns that they write."""
        results = self._results
        self._transforms = None
        self.observations, self.rewards, self.raw_rewards = results.observations, results.rewards, results.rewards
        self.environment_action_leaves = self.environment_actions = ()
        if any(spec.transforms for spec in self._specs):
            kinds = {tuple(spec.transforms) for spec in self._specs}
            made = {kind: Transforms(kind, *self._own_spaces) for kind in kinds}
            of_rows = [made[tuple(spec.transforms)] for spec in self._specs]
            self._transforms = rows = _RowTransforms(of_rows, results, self._own_action_leaves)
            self.observations, self.rewards = rows.observations, rows.rewards
            if rows.changes_actions:
                self.environment_action_leaves = self._own_action_leaves


def _host_resets(host: Host, seeds: Mapping[int, int]) -> dict[int, tuple[int, Future[Any]]]:
    """Begin episodes in rows of a host; return seeds and results by row."""
    resets: dict[int, tuple[int, Future[Any]]] = {row: (seed, Future()) for row, seed in seeds.items()}
    try:
        found = host.reset(seeds)
    except HostError as error:
        for _, future in resets.values():
            future.set_exception(error)
        return resets
    for row, result in found.items():
        if isinstance(result, str):
            resets[row][1].set_exception(HostError(result))
        else:
            resets[row][1].set_result(result)
    return resets


def _by_row(added: Sequence[AddedInfo]) -> dict[int, dict[str, dict[str, Any]]]:
    """Return infos that callbacks have added by row and callback."""
    infos: dict[int, dict[str, dict[str, Any]]] = {}
    for callback, name, rows, values in added:
        for row, value in zip(rows.tolist(), values, strict=True):
            infos.setdefault(row, {}).setdefault(callback, {})[name] = value
    return infos


def _differ_in_place(before: EnvSpec, after: EnvSpec) -> bool:
    """Whether only task and reset options differ, and the task can be set in place."""
    if dataclasses.replace(before, task=after.task, reset_options=after.reset_options) != after:
        return False
    # A task cannot be unset, and one method cannot undo what another has set.
    return before.task is None or (after.task is not None and after.task.method == before.task.method)


class _StepResults:
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

    def store_all(self, rows: Sequence[int], results: HostResults) -> None:
        """Store the results of rows of a host."""
        places: Any = slice(None) if len(rows) == len(self.rewards) else list(rows)
        self.rewards[places] = results.rewards
        self.terminated[places], self.truncated[places] = results.terminated, results.truncated
        for column, values in zip(self.observations, results.observations, strict=True):
            column[places] = values

    def clear(self, row: int) -> None:
        """Record for a row that failed that its episode has not ended."""
        self.rewards[row] = 0.0
        self.terminated[row] = self.truncated[row] = False


class _RowTransforms:
    """Transforms of M rows, which may differ. Rows with the same transforms are transformed together.

    Attributes:
        observations: observations that agents see, (M, *O) for each leaf.
        rewards: rewards that agents get, (M,) float64. Without transforms of them, both are the results' own arrays.
        changes_actions: whether any row's actions are transformed.
    """

    def __init__(self, transforms: Sequence[Transforms], results: _StepResults, action_leaves: Sequence[Leaf]) -> None:
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
