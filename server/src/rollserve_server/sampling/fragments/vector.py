"""Fragments of rows that are stepped together."""

from __future__ import annotations

import functools
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from typing_extensions import override

from rollserve_server.errors import AgentFailedError, EnvFailedError, EpisodeFailedError, InvalidValueError
from rollserve_server.sampling.collect.collector import with_episode
from rollserve_server.sampling.collect.noise import BlockNoise, EpisodeGenerator
from rollserve_server.sampling.collect.stepping import JointRows
from rollserve_server.sampling.encode.tables import FragmentTable
from rollserve_server.sampling.fragments.collector import AgentFragmentCollector, Ended, is_same
from rollserve_server.sampling.fragments.outbox import TableOutbox
from rollserve_server.sampling.protocol import RowsProgress
from rollserve_server.sampling.record.infos import NO_RESET_INFOS
from rollserve_server.sampling.record.step_columns import StepColumns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rollserve_server.agents import Agent
    from rollserve_server.envs import VectorEnvs
    from rollserve_server.sampling.protocol import RowSequenceSpec, RowState
    from rollserve_server.sampling.record.columns import ColumnKey

__all__ = ["VectorFragmentCollector"]

_Failed = TypeVar("_Failed", bound=EpisodeFailedError)


class VectorFragmentCollector(AgentFragmentCollector):
    """Steps M rows of one vector environment with same-step resets.

    All that the rows do, from their joint reset on, is one block: a function of the seed of the episode that the first
    row began with, and of the actions since then.
    """

    _rows: JointRows
    _columns: StepColumns

    def __init__(
        self,
        sequence: RowSequenceSpec,
        envs: VectorEnvs,
        states: Sequence[RowState],
        num_retries: int,
        memory_bytes: int,
    ) -> None:
        self._envs, self._rows = envs, JointRows(envs)
        super().__init__(sequence, self._rows, states, num_retries, memory_bytes)
        self.outbox: TableOutbox = TableOutbox(self.infos)
        # For each row: its episode, and the infos that the episode began with.
        self._indices = np.array([state.episode_index for state in states])
        self._reset_infos = [NO_RESET_INFOS] * len(states)
        self._has_reset_infos = False
        # For each row: the number of dropped values of infos of its fragment's steps, by name.
        self._dropped_infos: list[Counter[str]] = [Counter() for _ in states]
        # For each row: the step of the call at which its fragment began, and the steps of its episode before that.
        self._starts = np.zeros(len(states), np.int64)
        self._first_steps = np.zeros(len(states), np.int64)
        # For each row: the sum of its episode's rewards and the discounted return before its fragment, and when the
        # episode began (`time.perf_counter`).
        self._returns_before, self._discounted_before = np.zeros((2, len(states)))
        self._began = np.zeros(len(states))
        # Of the block: its first episode, the seed of its reset, the steps since then, and the step of the call at
        # which it began.
        self._block_start = states[0].reset_index
        self._env_seed = 0
        self._block_steps = 0
        self._block_began = 0
        self._restoring = self._restore(states)
        self._noise: BlockNoise
        self._has_noise = False

    def episode_index(self, row: int) -> int:
        """Return the index of the episode that a row runs or begins."""
        return int(self._indices[row])

    @override
    def episode_indices(self) -> NDArray[np.int64]:
        return self._indices

    @override
    def env_seeds(self) -> NDArray[np.uint64]:
        return np.full(self.num_rows, self._env_seed, np.uint64)

    def begin_call(self, num_steps: int, *, report_actions: bool) -> None:
        """Begin a call."""
        self._first_steps = self._episode_steps
        self._starts[:] = 0
        for dropped in filter(None, self._dropped_infos):
            dropped.clear()
        super().begin_call(num_steps, report_actions=report_actions)
        self._columns.begin_call(num_steps)
        self._block_began = 0

    @override
    def _begin_step(self) -> None:
        if not self._block_steps:
            self._begin_block()

    @override
    def _make_step(self) -> None:
        if self.idle:
            expected, got = "none, because the rows are stepped at once", f"{len(self.idle)} rows"
            raise InvalidValueError.of("actions.idle", expected=expected, got=got)
        envs, columns = self._envs, self._columns
        self.num_repeated_steps = 0
        if not self._step:  # all rows have been restored
            self._returns_before[:] = self._rows.total_rewards
            self._discounted_before[:] = self._running_returns.values
        if not self._has_noise:
            self._noise.begin(self._sequence.root_seed, self._block_start, self._block_steps)
            self._has_noise = True
            self._rows.states.begin(np.flatnonzero(self._episode_steps == 0))
        all_rows = range(self.num_rows)
        actions = self._rows.act(self._noise.next(self._indices), lambda: all_rows, self._with_episode)
        infos = self._step_envs(actions)
        self._rows.record(infos)
        self._running_returns.add(envs.rewards)
        for part, rows in envs.info_parts(infos):
            for key, values, present in self.infos.read_columns(part, rows, self._dropped_infos):
                columns.write_info(key, values, present)
        columns.advance()
        self._keep_actions(actions)
        self._step += 1
        self._block_steps += 1
        self._end_episodes(infos)
        if self._step == self.num_steps:
            self._cut()

    def progress(self) -> RowsProgress:
        """Return where the rows stand at the end of a call."""
        return RowsProgress(
            np.full(self.num_rows, self._block_start),
            self._indices.copy(),
            self._block_steps - self._episode_steps,
            np.full(self.num_rows, self._block_steps),
            np.full(self.num_rows, self._step - self._block_began),
            self._actions_so_far(),
            self._rows.states.copies() if self._rows.states.columns else (),
        )

    @property
    def _episode_steps(self) -> NDArray[np.int64]:
        """(M,), the number of steps that each row's episode has so far."""
        return self._first_steps + (self._step - self._starts)

    @override
    def _new_columns(self, keys: Sequence[ColumnKey]) -> StepColumns:
        return StepColumns(self.num_rows, keys, self._buffer_bytes, self._spill.keep)

    @override
    def _begin_noise(self, agent: Agent) -> None:
        self._noise = BlockNoise(self.num_rows, agent)
        self._has_noise = False

    def _begin_block(self) -> None:
        self._block_start = int(self._indices[0])
        self._block_began = self._step
        self._has_noise = False
        self._rows.total_rewards[:], self._began[:] = 0.0, time.perf_counter()
        self._running_returns.begin(slice(None))
        self._env_seed = EpisodeGenerator().env_seed(self._sequence.root_seed, self._block_start)
        infos = self._begun(lambda: self._envs.begin(self._env_seed), self._block_start)
        self._take_reset_infos(infos, np.arange(self.num_rows))
        self._rows.read_masks(infos)
        self._history.reset(np.arange(self.num_rows), self._step)

    def _step_envs(self, actions: Sequence[np.ndarray]) -> Mapping[str, Any]:
        """Step the environment, or after a failure a fresh one that is restored first; return its infos."""
        failure = None
        while True:
            try:
                if failure is not None:
                    self._recover(failure)
                return self._envs.step(actions)
            except EnvFailedError as error:
                if self.is_stranded:
                    raise
                failure = self._with_episode(error)
            self._retry(failure, self._block_start)

    def _recover(self, error: EnvFailedError) -> None:
        """Restore all rows, whose environment failed, up to the current step.

        Raises:
            EnvFailedError: the environment failed again; or the rows cannot be restored and `is_stranded`, and this is
                the given error.
        """
        num_steps = self._block_steps
        logs = [self._history.since_reset(row, self._step, num_steps) for row in range(self.num_rows)]
        known = [log for log in logs if log is not None]
        if len(known) < len(logs):
            self._strand(error)
        self._envs.begin(self._env_seed)
        for actions in _joint_actions(self._envs, known, num_steps):
            self._envs.step(actions)
            self.num_repeated_steps += self.num_rows
        if not is_same(self._envs.observations, self._columns.written("observations")):
            self._strand(error)

    def _take_reset_infos(self, infos: Mapping[str, Any], rows: NDArray[np.int64]) -> None:
        """Keep the infos of rows that have just been reset."""
        by_row = self._envs.reset_infos(infos, rows)
        if by_row or self._has_reset_infos:
            self._has_reset_infos = True
            for row in rows.tolist():
                self._reset_infos[row] = self.infos.read_reset(by_row.get(row, {}))

    def _end_episodes(self, infos: Mapping[str, Any]) -> None:
        """End the episodes that are over after the current step."""
        envs = self._envs
        truncated = envs.truncated
        rows = over = envs.fresh.nonzero()[0]
        if self._sequence.soft_horizon:  # any other limit is the environment's own
            cut = ~envs.fresh & (self._episode_steps == self._sequence.max_episode_length)
            truncated = truncated | cut
            rows = np.flatnonzero(envs.fresh | cut)
        self.ended = None
        if not len(rows):
            return
        of_rows = dict(envs.step_infos(infos, rows.tolist())) if self.shows_infos else {}
        last = envs.last_observations(rows), [of_rows.get(row, {}) for row in rows.tolist()]
        self.ended = Ended(rows, envs.terminated[rows], truncated[rows], *last)
        self.attempts.succeed(self._block_start)
        now = time.perf_counter()
        self._finish(self.ended, now)
        self._columns.begin(rows)
        self._starts[rows] = self._step
        self._first_steps[rows] = 0
        self._returns_before[rows] = self._discounted_before[rows] = 0.0
        self._running_returns.begin(rows)
        self._began[rows] = now
        self._indices[rows] += self._sequence.stride
        self._rows.begin(rows)
        if self._has_reset_infos:
            for row in set(rows.tolist()).difference(over.tolist()):
                self._reset_infos[row] = NO_RESET_INFOS
        self._take_reset_infos(infos, over)

    def _cut(self) -> None:
        going_on = np.flatnonzero(self._starts < self._step)
        never = np.zeros(len(going_on), np.bool_)
        self._finish(Ended(going_on, never, never, self._envs.last_observations(going_on)), time.perf_counter())

    def _finish(self, ended: Ended, now: float) -> None:
        """End the fragments of rows with the step before the current one, whether or not their episodes go on."""
        rows = ended.rows
        fragments = FragmentTable(
            self._columns,
            self._env_seed,
            rows,
            self._starts[rows],
            np.full(len(rows), self._step),
            self._indices[rows],
            self._first_steps[rows],
            ended.terminated,
            ended.truncated,
            self._rows.total_rewards[rows],
            self._returns_before[rows],
            self._discounted_before[rows],
            now - self._began[rows],
            ended.last_observations,
            self._rows.states.of_rows(rows),
            [self._take_dropped_infos(row) for row in rows.tolist()],
            [self._reset_infos[row].values for row in rows.tolist()] if self._has_reset_infos else (),
        )
        self.outbox.add(fragments)

    def _take_dropped_infos(self, row: int) -> Mapping[str, int]:
        """Return the number of dropped values of infos of the row's fragment, by name; its next one starts at 0."""
        if not (self._dropped_infos[row] or self._reset_infos[row].dropped):
            return NO_RESET_INFOS.dropped
        dropped, self._dropped_infos[row] = self._dropped_infos[row], Counter()
        dropped.update(self._reset_infos[row].dropped)
        return dropped

    def _restore(self, states: Sequence[RowState]) -> Iterator[int]:
        """Restore all rows together, because none can be restored alone. Yields M after each step."""
        num_steps = {state.num_steps for state in states}
        if num_steps == {0}:
            return
        is_restored = False
        if len(num_steps) == 1:
            first = min(state.episode_index for state in states)
            is_replayed = yield from self._restored(functools.partial(self._replay, states), self._block_start, first)
            is_restored = is_replayed and all(map(self._is_restored, range(self.num_rows), states))
        if not is_restored:
            going_on = np.array([state.num_steps > 0 for state in states])
            self.num_broken_off += int(going_on.sum())
            self._indices[going_on] += self._sequence.stride
            self._first_steps[:] = 0
            self._block_steps = 0

    def _replay(self, states: Sequence[RowState]) -> Iterator[int]:
        """Reset all rows and repeat the states' steps. Yields M after each step."""
        envs = self._envs
        self._env_seed = EpisodeGenerator().env_seed(self._sequence.root_seed, self._block_start)
        self._first_steps[:] = 0
        self._block_steps = 0
        self._rows.total_rewards[:], self._began[:] = 0.0, time.perf_counter()
        self._running_returns.begin(slice(None))
        first_steps = np.array([state.first_step for state in states])
        self._take_reset_infos(envs.begin(self._env_seed), np.arange(self.num_rows))
        for actions in _joint_actions(envs, [state.actions for state in states], states[0].num_steps):
            infos = envs.step(actions)
            self._rows.add_rewards(self._block_steps >= first_steps)
            self._running_returns.add(envs.rewards)
            self._running_returns.begin(self._block_steps < first_steps)
            self._first_steps += 1
            over = np.flatnonzero(envs.fresh)
            self._first_steps[over] = 0
            self._take_reset_infos(infos, over)
            self._block_steps += 1
            yield self.num_rows
        self._rows.read_masks(infos)

    def _is_restored(self, row: int, state: RowState) -> bool:
        """Return whether a replayed row stands where the state says, and set the steps of its episode.

        After a soft horizon, the episode began later than the environment's last reset.
        """
        num_steps, since_reset = state.num_steps - state.first_step, int(self._first_steps[row])
        if num_steps != since_reset:
            self._reset_infos[row] = NO_RESET_INFOS
        self._first_steps[row] = num_steps
        return num_steps == since_reset or (self._sequence.soft_horizon and num_steps < since_reset)

    def _with_episode(self, error: _Failed) -> _Failed:
        # An environment fails in all rows at once; its error names the first episode.
        row = error.row if isinstance(error, AgentFailedError) else int(self._indices.argmin())
        return with_episode(error, int(self._indices[row]), self._env_seed, int(self._episode_steps[row]))


def _joint_actions(
    envs: VectorEnvs, logs: Sequence[Sequence[np.ndarray]], num_steps: int
) -> Iterator[list[np.ndarray]]:
    """Yield the actions of all rows, (M, *A) for each leaf, step by step, given each row's actions (num_steps, *A)."""
    leaves = zip(envs.action_leaves, zip(*logs, strict=True), strict=True)
    columns = [np.stack(log).astype(leaf.dtype, copy=False) for leaf, log in leaves]
    for step in range(num_steps):
        yield [column[:, step] for column in columns]
