"""Fragments of rows whose environments are stepped one by one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from typing_extensions import override

from rollserve_server.errors import EnvFailedError, EpisodeFailedError, InvalidValueError
from rollserve_server.sampling.collect.collector import with_episode
from rollserve_server.sampling.collect.noise import EpisodeGenerator, RowNoise
from rollserve_server.sampling.collect.stepping import SingleRows
from rollserve_server.sampling.encode.encoder import ONE_AGENT
from rollserve_server.sampling.fragments.collector import AgentFragmentCollector, DivergedError, Ended, is_same
from rollserve_server.sampling.fragments.outbox import EpisodeOutbox
from rollserve_server.sampling.protocol import RowsProgress, RowState
from rollserve_server.sampling.record.episodes import Episode, Recorder
from rollserve_server.sampling.record.infos import NO_RESET_INFOS, ResetInfos

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rollserve_server.agents import Agent, PolicyAgents
    from rollserve_server.envs import RowEnvs
    from rollserve_server.sampling.protocol import RowSequenceSpec
    from rollserve_server.sampling.record.columns import ColumnKey

__all__ = ["RowFragmentCollector"]

_Failed = TypeVar("_Failed", bound=EpisodeFailedError)


class RowFragmentCollector(AgentFragmentCollector):
    """Steps M rows one by one, all in every step. A row whose episode ends begins its next one with the next step."""

    _rows: SingleRows
    _columns: Recorder

    def __init__(
        self,
        sequence: RowSequenceSpec,
        envs: RowEnvs,
        states: Sequence[RowState],
        num_retries: int,
        memory_bytes: int,
    ) -> None:
        self._envs, self._rows = envs, SingleRows(envs)
        super().__init__(sequence, self._rows, states, num_retries, memory_bytes)
        self._seeds = EpisodeGenerator()
        self._positions = [_Position(state.reset_index, state.episode_index) for state in states]
        # For each row: the steps since its environment's reset, 0 before it, and the steps of its episode.
        self._env_steps = np.zeros(len(states), np.int64)
        self._episode_steps = np.zeros(len(states), np.int64)
        # For each row: the step of the call before which its environment was reset.
        self._reset_steps = np.zeros(len(states), np.int64)
        self._restoring = self._restore_each(states, self._replay, self._break_off)
        self._noise: RowNoise
        self.outbox: EpisodeOutbox[Episode] = EpisodeOutbox()

    def episode_index(self, row: int) -> int:
        """Return the index of the episode that a row runs or begins."""
        return self._positions[row].episode_index

    @override
    def episode_indices(self) -> NDArray[np.int64]:
        return np.array([position.episode_index for position in self._positions], np.int64)

    @override
    def env_seeds(self) -> NDArray[np.uint64]:
        return np.array([position.env_seed for position in self._positions], np.uint64)

    @override
    def set_agent(self, agent: Agent | PolicyAgents) -> None:
        super().set_agent(agent)
        # The recorder's method: one of this collector's would be in a cycle, whose buffers only a collection frees.
        self.outbox.form, self.outbox.release = ONE_AGENT, self._columns.release

    def begin_call(self, num_steps: int, *, report_actions: bool) -> None:
        """Begin a call."""
        super().begin_call(num_steps, report_actions=report_actions)
        self._reset_steps[:] = 0

    @override
    def _begin_step(self) -> None:
        seeds = {
            row: self._env_seed(position.episode_index)
            for row, position in enumerate(self._positions)
            if not (self._env_steps[row] or position.is_reset)
        }
        self._envs.begin_resets(seeds)
        for row, seed in seeds.items():
            self._reset(row, self._positions[row], seed)

    @override
    def _make_step(self) -> None:
        envs, recorder = self._envs, self._columns
        self.num_repeated_steps = 0
        rows: Sequence[int] = range(self.num_rows)
        if idle := self.idle:
            self._check_idle(idle)
            rows = [row for row in rows if row not in idle]
        for row in rows:
            if not self._positions[row].is_open:
                self._open(row, self._positions[row])
        actions = self._rows.act(self._noise.next(), lambda: rows, self._with_episode)
        at_limit = self._at_limit()
        infos = envs.step(rows, actions, at_limit)
        if envs.failures:
            infos += self._step_again(envs.failures, actions, at_limit)
        for column in (envs.rewards, envs.raw_rewards, envs.terminated, envs.truncated) if idle else ():
            column[list(idle)] = 0
        self._rows.record(infos)
        self._running_returns.add(envs.rewards)
        for row, info in infos:
            recorder.write_infos(row, info)
        self._keep_actions(actions)
        self._step += 1
        self._env_steps += 1
        self._episode_steps += 1
        if idle:
            self._begin_later(idle)
        self._end_episodes()
        if self._step == self.num_steps:
            self._end_open(before=False)
        recorder.advance()

    def progress(self) -> RowsProgress:
        """Return where the rows stand at the end of a call."""
        return RowsProgress(
            np.array([position.reset_index for position in self._positions]),
            np.array([position.episode_index for position in self._positions]),
            self._env_steps - self._episode_steps,
            self._env_steps.copy(),
            np.where(self._env_steps > 0, self._step - self._reset_steps, 0),
            self._actions_so_far(),
            self._rows.states.copies() if self._rows.states.columns else (),
        )

    @override
    def _new_columns(self, keys: Sequence[ColumnKey]) -> Recorder:
        return Recorder(self.num_rows, keys, self.infos, self._buffer_bytes, self._spill.keep)

    @override
    def _begin_noise(self, agent: Agent) -> None:
        self._noise = RowNoise(self.num_rows, agent)
        for position in self._positions:
            position.has_noise = False

    def _check_idle(self, rows: Sequence[int]) -> None:
        """Raise InvalidValueError for rows that cannot leave out a step, because their episodes have begun."""
        for row in rows:
            if self._env_steps[row]:
                expected = "rows whose present episode has made no step"
                got = f"one in episode {self.episode_index(row)}"
                raise InvalidValueError.of("actions.idle", expected=expected, got=got)

    def _begin_later(self, rows: Sequence[int]) -> None:
        """Have the episodes of rows that have left out the current step begin with the next one."""
        self._env_steps[list(rows)] = self._episode_steps[list(rows)] = 0
        self._reset_steps[list(rows)] = self._step
        self._history.reset(np.array(rows), self._step)

    def _reset(self, row: int, position: _Position, seed: int) -> None:
        """Reset a row's environment, for an episode that begins with the next step."""
        position.env_seed = seed
        info = self._begun(lambda: self._envs.reset(row, position.env_seed), position.episode_index)
        position.reset_infos = self.infos.read_reset(info)
        position.is_reset = True
        self._rows.read_mask(row, info)
        self._reset_steps[row] = self._step
        self._history.reset(row, self._step)

    def _open(self, row: int, position: _Position) -> None:
        """Begin a fragment, at the start of an episode or where the row's last fragment ended."""
        first_step = int(self._episode_steps[row])
        if not position.has_noise:
            self._noise.begin(row, self._sequence.root_seed, position.episode_index, first_step)
            position.has_noise = True
        if not first_step:
            self._rows.begin(row)
            self._running_returns.begin(row)
        fragment = Episode.begin(
            position.episode_index,
            position.env_seed,
            position.reset_infos,
            first_step,
            float(self._rows.total_rewards[row]),
            position.began if first_step else 0.0,
            float(self._running_returns.values[row]),
        )
        self._columns.begin(row, fragment)
        position.is_open = True

    def _at_limit(self) -> NDArray[np.bool_] | None:
        """Return the rows that will be reset after this step because of a limit, if callbacks need to know."""
        limit = self._sequence.max_episode_length
        if limit is None or self._sequence.soft_horizon or not self._envs.has_callbacks:
            return None
        at_limit: NDArray[np.bool_] = self._episode_steps + 1 == limit
        return at_limit

    def _step_again(
        self, failures: Sequence[EnvFailedError], actions: Sequence[np.ndarray], at_limit: NDArray[np.bool_] | None
    ) -> list[tuple[int, Mapping[str, Any]]]:
        """Repeat the step of rows whose environments failed, in fresh environments; return the rows' infos."""
        envs = self._envs
        infos: list[tuple[int, Mapping[str, Any]]] = []
        for failure in failures:
            row, error = failure.row, failure
            while True:
                error = self._with_episode(error)
                self._retry(error, self._positions[row].episode_index)
                try:
                    self._recover(row, error)
                except EnvFailedError as another:
                    if self.is_stranded:
                        raise
                    error = another
                    continue
                infos += envs.step((row,), actions, at_limit)
                if not envs.failures:
                    break
                error = envs.failures[0]
        return infos

    def _recover(self, row: int, error: EnvFailedError) -> None:
        """Restore a row whose environment failed, up to the current step.

        Raises:
            EnvFailedError: the environment failed again; or the row cannot be restored and `is_stranded`, and this is
                the given error.
        """
        position, num_steps = self._positions[row], int(self._env_steps[row])
        actions = self._history.since_reset(row, self._step, num_steps)
        if actions is None:
            self._strand(error)
        first_step = num_steps - int(self._episode_steps[row])
        recorded = [column[row] for column in self._columns.written("observations")]
        state = RowState(position.reset_index, position.episode_index, first_step, num_steps, actions)
        try:
            self.num_repeated_steps += sum(self._replay(row, state))
        except DivergedError:
            self._strand(error)
        if not is_same([column[row] for column in self._envs.observations], recorded):
            self._strand(error)

    def _end_episodes(self) -> None:
        """End the episodes that are over after the current step."""
        envs, limit, is_soft = self._envs, self._sequence.max_episode_length, self._sequence.soft_horizon
        over, truncated = envs.terminated | envs.truncated, envs.truncated
        if limit is not None:
            at_limit = self._episode_steps == limit
            # A soft horizon cuts what goes on: an episode that the environment ends in this step is not cut.
            truncated = truncated | (at_limit & ~over if is_soft else at_limit)
        rows = np.flatnonzero(over | truncated)
        self.ended = None
        if len(rows):
            last_observations = [column[rows] for column in envs.observations]
            shown = self._rows.shown_infos() if self.shows_infos else {}
            infos = [shown.get(row, {}) for row in rows.tolist()]
            self.ended = Ended(rows, envs.terminated[rows], truncated[rows], last_observations, infos)
        for row in rows.tolist():
            position = self._positions[row]
            self._finish(row, terminated=bool(envs.terminated[row]), truncated=bool(truncated[row]))
            self._episode_steps[row] = 0
            self.attempts.succeed(position.episode_index)
            position.episode_index += self._sequence.stride
            position.has_noise = False
            if over[row] or not is_soft:
                position.reset_index = position.episode_index
                position.is_reset = False
                self._env_steps[row] = 0
            else:
                position.reset_infos = NO_RESET_INFOS

    def _finish(self, row: int, *, terminated: bool = False, truncated: bool = False, before: bool = False) -> None:
        """End a row's fragment with the current step, or before it, and with it perhaps its episode."""
        fragment = self._columns.finish(row, terminated, truncated, *self._rows.ending(row), before=before)
        self._positions[row].close(fragment)
        self.outbox.add(fragment)

    def _cut(self) -> None:
        self._end_open(before=True)

    def _end_open(self, *, before: bool) -> None:
        """End the fragments of episodes that go on, with the current step or before it."""
        for row, position in enumerate(self._positions):
            if position.is_open:
                self._finish(row, before=before)

    def _break_off(self, row: int) -> None:
        """Let a row begin the episode after the present one with the next step."""
        position = self._positions[row]
        position.episode_index += self._sequence.stride
        position.reset_index = position.episode_index

    def _replay(self, row: int, state: RowState) -> Iterator[int]:
        """Reset a row and repeat the state's steps. Yields 1 after each step."""
        position = self._positions[row]
        position.env_seed = self._env_seed(state.reset_index)
        info = self._envs.reset(row, position.env_seed)
        position.reset_infos = self.infos.read_reset(info) if state.first_step == 0 else NO_RESET_INFOS
        position.began = time.perf_counter()
        self._rows.total_rewards[row] = 0.0
        self._running_returns.begin(row)
        for step, shown in enumerate(_replay_row(self._envs, row, state.actions, state.num_steps)):
            if step >= state.first_step:
                self._rows.add_rewards(row)
                self._running_returns.add(self._envs.rewards, row)
            info = shown
            yield 1
        self._rows.read_mask(row, info)
        self._env_steps[row], self._episode_steps[row] = state.num_steps, state.num_steps - state.first_step

    def _env_seed(self, episode_index: int) -> int:
        """Return the seed of the reset that begins an episode."""
        first = self._sequence.first_env_seeds  # of the episodes 0, 1 and so on, each the first one of its row
        if episode_index < len(first):
            return first[episode_index]
        return self._seeds.env_seed(self._sequence.root_seed, episode_index)

    def _with_episode(self, error: _Failed) -> _Failed:
        position = self._positions[error.row]
        return with_episode(error, position.episode_index, position.env_seed, int(self._episode_steps[error.row]))


@dataclass(eq=False, slots=True)
class _Position:
    """Position of a row in its sequence.

    Attributes:
        reset_index: index of the episode that its environment was reset for, or will be.
        episode_index: index of the episode that it runs, or begins with the next step.
        env_seed: seed of its environment's reset.
        reset_infos: the environment's infos of the reset that began the episode.
        is_reset: whether its environment was reset for that episode.
        is_open: whether a fragment of it is being recorded.
        has_noise: whether the noise is at the episode's current step.
        began: when the episode began, or began to be restored (`time.perf_counter`).
    """

    reset_index: int
    episode_index: int
    env_seed: int = 0
    reset_infos: ResetInfos = NO_RESET_INFOS
    is_reset: bool = False
    is_open: bool = False
    has_noise: bool = False
    began: float = 0.0

    def close(self, fragment: Episode) -> None:
        """Record that the fragment is complete."""
        self.is_open, self.began = False, fragment.began


def _replay_row(envs: RowEnvs, row: int, actions: Sequence[np.ndarray], num_steps: int) -> Iterator[Mapping[str, Any]]:
    """Step one row, which has just been reset, with recorded actions. Yields the infos of each step after it.

    Args:
        envs: the environments.
        row: index of the row.
        actions: for each leaf of the action space (num_steps, *A).
        num_steps: number of steps.

    Raises:
        EnvFailedError: the environment failed.
        DivergedError: the episode ended.
    """
    for step in range(num_steps):
        infos = envs.step((row,), _for_all_rows(envs, actions, step))
        if envs.failures:
            raise envs.failures[0]
        yield infos[0][1] if infos else {}
        if envs.terminated[row] or envs.truncated[row]:
            raise DivergedError


def _for_all_rows(envs: RowEnvs, actions: Sequence[np.ndarray], step: int) -> list[np.ndarray]:
    """Return the actions of a step, repeated for all rows."""
    leaves = zip(envs.action_leaves, actions, strict=True)
    return [np.broadcast_to(log[step].astype(leaf.dtype), (envs.num_rows, *leaf.shape)) for leaf, log in leaves]
