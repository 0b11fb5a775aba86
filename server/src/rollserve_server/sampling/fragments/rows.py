"""Rows of environments that run episodes one after the other, from call to call."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from rollserve_server.errors import AgentFailedError, EnvFailedError, EpisodeFailedError
from rollserve_server.sampling.collect.acting import act
from rollserve_server.sampling.collect.noise import RowNoise
from rollserve_server.sampling.collect.rows import column_keys, located
from rollserve_server.sampling.collect.seeding import EpisodeGenerator
from rollserve_server.sampling.fragments.outbox import EpisodeOutbox
from rollserve_server.sampling.fragments.recording import FragmentRecording
from rollserve_server.sampling.protocol.fragments import RowProgress, RowState
from rollserve_server.sampling.record.episodes import Episode, Recorder
from rollserve_server.sampling.record.infos import NO_INFOS

if TYPE_CHECKING:
    from rollserve_server.agents import Agent
    from rollserve_server.envs import RowEnvs
    from rollserve_server.sampling.protocol.fragments import RowSequenceSpec
    from rollserve_server.sampling.record.infos import InfoKey

__all__ = ["FragmentRows"]

_Failed = TypeVar("_Failed", bound=EpisodeFailedError)


class FragmentRows(FragmentRecording):
    """Steps M rows, all of them at once, and records the fragments that they make.

    A row whose episode ends begins the next one of its own with the next step.
    """

    _envs: RowEnvs

    def __init__(
        self, sequence: RowSequenceSpec, envs: RowEnvs, states: Sequence[RowState], num_retries: int = 0
    ) -> None:
        """Takes environments for itself, and the states that its rows are to be brought to by `restore`.

        And how often the environment of an episode is made anew if it raises an error.
        """
        super().__init__(sequence, states, num_retries)
        self._envs = envs
        self._seeds = EpisodeGenerator()
        self._rows = [_Row(state.reset_index, state.episode_index) for state in states]
        # Of each row: the steps since its environment's reset, 0 before it, and those of its episode.
        self._env_steps = np.zeros(len(states), np.int64)
        self._episode_steps = np.zeros(len(states), np.int64)
        self._restoring = self._restore(states)
        self._noise: RowNoise
        self._recorder: Recorder
        self.outbox: EpisodeOutbox = EpisodeOutbox(lambda fragment: self._recorder.release(fragment))
        # Of each row: at which of the call's steps its last reset was.
        self._reset_steps = np.zeros(len(states), np.int64)

    @property
    def step_bytes(self) -> int:
        """See FragmentRecording."""
        return self._recorder.step_bytes

    def episode_of(self, row: int) -> int:
        """See FragmentRecording."""
        return self._rows[row].episode_index

    def set_agent(self, agent: Agent) -> None:
        """See FragmentRecording."""
        super().set_agent(agent)
        self._recorder = Recorder(self.num_rows, column_keys(self._envs, agent), self._infos)
        groups = ("observations", "actions", "rewards", "agent_infos", "states")
        self._columns = {group: self._recorder.columns(group) for group in groups}
        self._noise = RowNoise(self.num_rows, agent)
        for row in self._rows:
            row.has_noise = False

    def begin_call(self, num_steps: int, *, tell_actions: bool) -> None:
        """See FragmentRecording."""
        super().begin_call(num_steps, tell_actions=tell_actions)
        self._reset_steps[:] = 0

    def restore(self) -> int:
        """Makes one step of a row; see FragmentRecording."""
        return next(self._restoring, 0)

    def step(self) -> None:
        """See FragmentRecording."""
        envs, recorder, columns = self._envs, self._recorder, self._columns
        self.num_repeated_steps = 0
        for number, row in enumerate(self._rows):
            if not row.is_open:
                self._open(number, row)
        rows, states = range(self.num_rows), self._recurrent_states.columns
        if states:
            recorder.write(columns["states"], states)
        try:
            actions, agent_infos = act(self._agent, envs.observations, self._noise.next(), states, lambda: rows)
        except AgentFailedError as error:
            raise self._located(error) from error
        recorder.write(columns["observations"], envs.observations)
        infos = envs.step(rows, actions)
        if envs.failures:
            infos += self._step_again(envs.failures, actions)
        recorder.write(columns["actions"], actions)
        recorder.write(columns["rewards"], (envs.rewards,))
        recorder.write(columns["agent_infos"], agent_infos.values())
        for number, info in infos:
            recorder.write_infos(number, info)
        self._keep_actions(actions)
        self._step += 1
        self._env_steps += 1
        self._episode_steps += 1
        self._end_episodes()
        if self._step == self._num_steps:
            for number, row in enumerate(self._rows):
                if row.is_open:
                    self._finish(number, terminated=False, truncated=False)
        recorder.advance()

    def progress(self) -> list[RowProgress]:
        """See FragmentRecording."""
        recurrent_states = self._recurrent_states.recurrent_states()
        return [
            RowProgress(
                row.reset_index,
                row.episode_index,
                int(self._env_steps[number] - self._episode_steps[number]),
                int(self._env_steps[number]),
                self._actions_since_reset(number) if self._tells_actions else None,
                recurrent_states[number],
            )
            for number, row in enumerate(self._rows)
        ]

    def _open(self, number: int, row: _Row) -> None:
        """Begins a fragment: with an episode, or where the row's episode was cut."""
        if not row.has_noise:
            self._noise.begin(number, self._stream.root_seed, row.episode_index, int(self._episode_steps[number]))
            row.has_noise = True
        if not self._env_steps[number]:
            row.env_seed = self._seeds.begin(self._stream.root_seed, row.reset_index)
            row.reset_infos = self._infos.read_copies(self._reset(number, row))
            self._reset_steps[number] = self._step
            self._history.reset(number, self._step)
        first_step = int(self._episode_steps[number])
        if not first_step:
            self._recurrent_states.begin(number)
        fragment = Episode(row.episode_index, row.env_seed, row.reset_infos, first_step=first_step)
        self._recorder.begin(number, fragment)
        row.is_open = True

    def _reset(self, number: int, row: _Row) -> Mapping[str, Any]:
        """Begins an episode in a row; returns the environment's infos, and raises as `step`."""
        while True:
            try:
                return self._envs.reset(number, row.env_seed)
            except EnvFailedError as error:
                self._retry(self._located(error), row.episode_index)

    def _step_again(
        self, failures: Sequence[EnvFailedError], actions: Sequence[np.ndarray]
    ) -> list[tuple[int, Mapping[str, Any]]]:
        """Steps rows whose environments failed, in others that are brought to where they stood.

        Returns and raises as `step` of environments and of rows.
        """
        envs = self._envs
        infos: list[tuple[int, Mapping[str, Any]]] = []
        for failure in failures:
            number, error = failure.row, failure
            while True:
                error = self._located(error)
                self._retry(error, self._rows[number].episode_index)
                try:
                    self._bring_back(number, error)
                except EnvFailedError as another:
                    if self.is_stranded:
                        raise
                    error = another
                    continue
                infos += envs.step((number,), actions)
                if not envs.failures:
                    break
                error = envs.failures[0]
        return infos

    def _bring_back(self, number: int, error: EnvFailedError) -> None:
        """Brings a row, whose environment failed, to where it stood before the current step.

        Raises:
            EnvFailedError: the environment failed again; or it does not come there, `is_stranded`, and the error is the
                one of before.
        """
        row, num_steps = self._rows[number], int(self._env_steps[number])
        given = self._history.since_reset(number, self._step, num_steps)
        if given is None:
            self._strand(error)
        first_step = num_steps - int(self._episode_steps[number])
        shown = [column[number] for column in self._recorder.last_written("observations")]
        try:
            state = RowState(row.reset_index, row.episode_index, first_step, num_steps, given)
            self.num_repeated_steps += sum(self._replay(number, state))
        except _OtherwiseEndedError:
            self._strand(error)
        now = [column[number] for column in self._envs.observations]
        if any(one.tobytes() != other.tobytes() for one, other in zip(now, shown, strict=True)):
            self._strand(error)

    def _end_episodes(self) -> None:
        """Ends the episodes that are over with the current step."""
        envs, limit = self._envs, self._stream.max_episode_length
        over = envs.terminated | envs.truncated
        # A limit that the environment ends at by itself is no other end.
        cut = ~over & (self._episode_steps == limit) if limit is not None else np.zeros_like(over)
        for number in np.flatnonzero(over | cut).tolist():
            row = self._rows[number]
            truncated = bool(envs.truncated[number] or cut[number])
            self._finish(number, terminated=bool(envs.terminated[number]), truncated=truncated)
            self._episode_steps[number] = 0
            self.attempts.succeed(row.episode_index)
            row.episode_index += self._stream.stride
            row.has_noise = False
            if over[number] or not self._stream.soft_horizon:
                row.reset_index = row.episode_index
                self._env_steps[number] = 0
            else:
                row.reset_infos = NO_INFOS

    def _finish(self, number: int, *, terminated: bool, truncated: bool) -> None:
        self._rows[number].is_open = False
        self.outbox.add(self._recorder.finish(number, terminated, truncated, self._last_observations(number)))

    def _cut(self) -> None:
        for number, row in enumerate(self._rows):
            if row.is_open:
                row.is_open = False
                self.outbox.add(self._recorder.cut(number, self._last_observations(number)))

    def _last_observations(self, number: int) -> Sequence[np.ndarray]:
        return tuple(column[number].copy() for column in self._envs.observations)

    def _actions_since_reset(self, number: int) -> Sequence[np.ndarray]:
        start = self._reset_steps[number] if self._env_steps[number] else self._step
        return [column[start : self._step, number] for column in self._actions_made]

    def _restore(self, states: Sequence[RowState]) -> Iterator[int]:
        """Makes the states' steps again; says with each iteration how many it made."""
        for number, state in enumerate(states):
            if state.num_steps:
                stands = yield from self._stands_again(number, state)
                if stands:
                    self._env_steps[number] = state.num_steps
                    self._episode_steps[number] = state.num_steps - state.first_step
                else:
                    self.num_broken_off += 1
                    row = self._rows[number]
                    row.episode_index += self._stream.stride
                    row.reset_index = row.episode_index

    def _stands_again(self, number: int, state: RowState) -> Generator[int, None, bool]:
        """Brings a row to where it stood, as often as it may fail; returns whether it stands there."""
        while True:
            try:
                yield from self._replay(number, state)
            except EnvFailedError as error:
                if not self.attempts.fail(state.episode_index, [state.episode_index], self._located(error)):
                    return False
            except _OtherwiseEndedError:
                return False
            else:
                return True

    def _replay(self, number: int, state: RowState) -> Iterator[int]:
        row, envs = self._rows[number], self._envs
        row.env_seed = self._seeds.begin(self._stream.root_seed, state.reset_index)
        info = envs.reset(number, row.env_seed)
        row.reset_infos = self._infos.read_copies(info) if state.first_step == 0 else NO_INFOS
        for step in range(state.num_steps):
            envs.step((number,), self._repeated(state.actions, step))
            if envs.failures:
                raise envs.failures[0]
            yield 1
            if envs.terminated[number] or envs.truncated[number]:
                raise _OtherwiseEndedError

    def _repeated(self, actions: Sequence[np.ndarray], step: int) -> list[np.ndarray]:
        """The actions of a step as if they were those of all rows."""
        leaves = zip(self._envs.action_leaves, actions, strict=True)
        return [np.broadcast_to(log[step].astype(leaf.dtype), (self.num_rows, *leaf.shape)) for leaf, log in leaves]

    def _located(self, error: _Failed) -> _Failed:
        row = self._rows[error.row]
        return located(error, row.episode_index, row.env_seed, int(self._episode_steps[error.row]))


@dataclass(eq=False, slots=True)
class _Row:
    """A row.

    Attributes:
        reset_index: the episode that its environment was reset for, or is to be.
        episode_index: the episode that it runs, or begins with the next step.
        env_seed: what its environment was reset with.
        reset_infos: the environment's infos of the reset that began the episode.
        is_open: whether a fragment of it is being recorded.
        has_noise: whether the noise stands where the episode does.
    """

    reset_index: int
    episode_index: int
    env_seed: int = 0
    reset_infos: Mapping[InfoKey, Any] = field(default_factory=lambda: NO_INFOS)
    is_open: bool = False
    has_noise: bool = False


class _OtherwiseEndedError(Exception):
    """An episode that was made again has ended where it had gone on."""
