"""Rows that are stepped together, and run episodes one after the other, from call to call."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from rollserve_server.errors import AgentFailedError, EnvFailedError, EpisodeFailedError
from rollserve_server.sampling.collect.acting import act
from rollserve_server.sampling.collect.noise import BlockNoise
from rollserve_server.sampling.collect.rows import column_keys, located
from rollserve_server.sampling.collect.seeding import EpisodeGenerator
from rollserve_server.sampling.encode.tables import FragmentsOfStep
from rollserve_server.sampling.fragments.outbox import TableOutbox
from rollserve_server.sampling.fragments.recording import FragmentRecording
from rollserve_server.sampling.protocol.fragments import RowProgress
from rollserve_server.sampling.record.infos import NO_INFOS
from rollserve_server.sampling.record.step_columns import StepColumns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve_server.agents import Agent
    from rollserve_server.envs import VectorEnvs
    from rollserve_server.sampling.protocol.fragments import RowSequenceSpec, RowState
    from rollserve_server.sampling.record.infos import InfoKey

__all__ = ["VectorFragmentRows"]

_Failed = TypeVar("_Failed", bound=EpisodeFailedError)


class VectorFragmentRows(FragmentRecording):
    """Steps M rows of one environment, which begin anew by themselves, and records the fragments that they make.

    Together they are one block for as long as they go on: all that they do is a function of the seed of the episode
    that the first of them began with, and of their actions since then.
    """

    _envs: VectorEnvs

    def __init__(
        self, sequence: RowSequenceSpec, envs: VectorEnvs, states: Sequence[RowState], num_retries: int = 0
    ) -> None:
        """Takes an environment for itself, and the states that its rows are to be brought to by `restore`.

        And how often the environment is made anew if it raises an error.
        """
        super().__init__(sequence, states, num_retries)
        self._envs = envs
        self.outbox: TableOutbox = TableOutbox(self._infos)
        self._columns: StepColumns
        # Of each row: its episode, and the infos that it began with.
        self._indices = np.array([state.episode_index for state in states])
        self._reset_infos: list[Mapping[InfoKey, Any]] = [NO_INFOS] * len(states)
        self._has_reset_infos = False
        # Of each row: at which of the call's steps its fragment began, and how many steps its episode has before that.
        self._starts = np.zeros(len(states), np.int64)
        self._first_steps = np.zeros(len(states), np.int64)
        # Of the block: the episode that it was begun for, its seed, and the steps since then.
        self._block_start = states[0].reset_index
        self._env_seed = 0
        self._block_steps = 0
        self._restoring = self._restore(states)
        self._noise: BlockNoise
        self._has_noise = False
        # At which of the call's steps the block began.
        self._begin_step = 0

    @property
    def step_bytes(self) -> int:
        """See FragmentRecording."""
        num_bytes: int = self._columns.step_bytes + self._columns.info_step_bytes
        return num_bytes

    def episode_of(self, row: int) -> int:
        """See FragmentRecording."""
        return int(self._indices[row])

    def set_agent(self, agent: Agent) -> None:
        """See FragmentRecording."""
        super().set_agent(agent)
        self._columns = StepColumns(self.num_rows, 0, column_keys(self._envs, agent))
        self._noise = BlockNoise(self.num_rows, agent)
        self._has_noise = False

    def begin_call(self, num_steps: int, *, tell_actions: bool) -> None:
        """See FragmentRecording."""
        self._first_steps = self._episode_steps
        self._starts[:] = 0
        super().begin_call(num_steps, tell_actions=tell_actions)
        if not self._columns.begin_anew(num_steps):
            self._columns = StepColumns(self.num_rows, num_steps, self._columns.keys)
        self._begin_step = 0

    def restore(self) -> int:
        """Makes a step of all rows; see FragmentRecording."""
        return next(self._restoring, 0)

    def step(self) -> None:
        """See FragmentRecording."""
        envs, columns, step = self._envs, self._columns, self._step
        self.num_repeated_steps = 0
        if not self._block_steps:
            self._begin_block()
        if not self._has_noise:
            self._noise.begin(self._stream.root_seed, self._block_start, self._block_steps)
            self._has_noise = True
            self._recurrent_states.begin(np.flatnonzero(self._episode_steps == 0))
        states = self._recurrent_states.columns
        columns.write("observations", step, envs.observations)
        columns.write("states", step, states)
        try:
            noise = self._noise.next(self._indices)
            actions, agent_infos = act(self._agent, envs.observations, noise, states, lambda: range(self.num_rows))
        except AgentFailedError as error:
            raise self._located(error) from error
        columns.write("actions", step, actions)
        columns.write("agent_infos", step, agent_infos.values())
        infos = self._step_envs(actions)
        columns.write("rewards", step, (envs.rewards,))
        for part, rows in envs.info_parts(infos):
            for key, values, present in self._infos.read_columns(part, rows):
                columns.write_info(key, step, values, present)
        self._keep_actions(actions)
        self._step += 1
        self._block_steps += 1
        self._end_episodes(infos)
        if self._step == self._num_steps:
            self._cut()

    def progress(self) -> list[RowProgress]:
        """See FragmentRecording."""
        made = [column[self._begin_step : self._step].swapaxes(0, 1) for column in self._actions_made]
        actions = [np.ascontiguousarray(column) for column in made]
        first_steps = (self._block_steps - self._episode_steps).tolist()
        recurrent_states = self._recurrent_states.recurrent_states()
        return [
            RowProgress(
                self._block_start,
                index,
                first_steps[number],
                self._block_steps,
                [column[number] for column in actions] if self._tells_actions else None,
                recurrent_states[number],
            )
            for number, index in enumerate(self._indices.tolist())
        ]

    @property
    def _episode_steps(self) -> NDArray[np.int64]:
        """(M,), how many steps each row's episode has so far."""
        return self._first_steps + (self._step - self._starts)

    def _begin_block(self) -> None:
        self._block_start = int(self._indices[0])
        self._begin_step = self._step
        self._has_noise = False
        self._env_seed = EpisodeGenerator().begin(self._stream.root_seed, self._block_start)
        self._take_reset_infos(self._begin_envs(), np.arange(self.num_rows))
        self._history.reset(np.arange(self.num_rows), self._step)

    def _begin_envs(self) -> Mapping[str, Any]:
        """Begins an episode in every row; returns the environment's infos, and raises as `step`."""
        while True:
            try:
                return self._envs.begin(self._env_seed)
            except EnvFailedError as error:
                self._retry(self._located(error), self._block_start)

    def _step_envs(self, actions: Sequence[np.ndarray]) -> Mapping[str, Any]:
        """Steps the environment, and if it fails another one that is brought to where it stood.

        Returns the environment's infos, and raises as `step`.
        """
        failure = None
        while True:
            try:
                if failure is not None:
                    self._bring_back(failure)
                return self._envs.step(actions)
            except EnvFailedError as error:
                if self.is_stranded:
                    raise
                failure = self._located(error)
            self._retry(failure, self._block_start)

    def _bring_back(self, error: EnvFailedError) -> None:
        """Brings all rows, whose environment failed, to where they stood before the current step.

        Raises:
            EnvFailedError: the environment failed again; or it does not come there, `is_stranded`, and the error is the
                one of before.
        """
        num_steps = self._block_steps
        logs = [self._history.since_reset(number, self._step, num_steps) for number in range(self.num_rows)]
        known = [log for log in logs if log is not None]
        if len(known) < len(logs):
            self._strand(error)
        self._envs.begin(self._env_seed)
        for actions in self._logged(known, num_steps):
            self._envs.step(actions)
            self.num_repeated_steps += self.num_rows
        shown = self._columns.written("observations", self._step)
        if any(one.tobytes() != other.tobytes() for one, other in zip(self._envs.observations, shown, strict=True)):
            self._strand(error)

    def _take_reset_infos(self, infos: Mapping[str, Any], rows: NDArray[np.int64]) -> None:
        of_rows = self._envs.reset_infos(infos, rows)
        if of_rows or self._has_reset_infos:
            self._has_reset_infos = True
            for number in rows.tolist():
                self._reset_infos[number] = self._infos.read_copies(of_rows[number]) if number in of_rows else NO_INFOS

    def _end_episodes(self, infos: Mapping[str, Any]) -> None:
        """Ends the episodes that are over with the current step."""
        envs = self._envs
        truncated = envs.truncated
        rows = over = np.flatnonzero(envs.fresh)
        if self._stream.soft_horizon:  # any other limit is the environment's own
            cut = ~envs.fresh & (self._episode_steps == self._stream.max_episode_length)
            truncated = truncated | cut
            rows = np.flatnonzero(envs.fresh | cut)
        if not len(rows):
            return
        self.attempts.succeed(self._block_start)
        self._finish(rows, envs.terminated[rows], truncated[rows])
        self._starts[rows] = self._step
        self._first_steps[rows] = 0
        self._indices[rows] += self._stream.stride
        self._recurrent_states.begin(rows)
        if self._has_reset_infos:
            for number in set(rows.tolist()).difference(over.tolist()):
                self._reset_infos[number] = NO_INFOS
        self._take_reset_infos(infos, over)

    def _cut(self) -> None:
        going_on = np.flatnonzero(self._starts < self._step)
        never = np.zeros(len(going_on), np.bool_)
        self._finish(going_on, never, never)

    def _finish(self, rows: NDArray[np.int64], terminated: NDArray[np.bool_], truncated: NDArray[np.bool_]) -> None:
        """Ends the fragments of rows with the current step."""
        fragments = FragmentsOfStep(
            self._step,
            self._columns,
            self._env_seed,
            rows,
            self._starts[rows],
            self._indices[rows],
            self._first_steps[rows],
            terminated,
            truncated,
            self._envs.last_observations(rows),
            [self._reset_infos[row] for row in rows.tolist()] if self._has_reset_infos else (),
        )
        self.outbox.add(fragments)

    def _restore(self, states: Sequence[RowState]) -> Iterator[int]:
        """Makes the states' steps again; says with each iteration how many it made."""
        num_steps = {state.num_steps for state in states}
        if num_steps == {0}:
            return
        stands = False
        if len(num_steps) == 1:
            stands = (yield from self._made_again(states)) and all(map(self._stands, range(self.num_rows), states))
        if not stands:
            # Of rows that are stepped together none can be brought back alone.
            going_on = np.array([state.num_steps > 0 for state in states])
            self.num_broken_off += int(going_on.sum())
            self._indices[going_on] += self._stream.stride
            self._first_steps[:] = 0
            self._block_steps = 0

    def _made_again(self, states: Sequence[RowState]) -> Generator[int, None, bool]:
        """Makes the states' steps again, as often as that may fail; returns whether it went well."""
        while True:
            try:
                yield from self._replay(states)
            except EnvFailedError as error:
                first = min(state.episode_index for state in states)
                if not self.attempts.fail(self._block_start, [first], self._located(error)):
                    return False
            else:
                return True

    def _replay(self, states: Sequence[RowState]) -> Iterator[int]:
        envs = self._envs
        self._env_seed = EpisodeGenerator().begin(self._stream.root_seed, self._block_start)
        self._first_steps[:] = 0
        self._block_steps = 0
        self._take_reset_infos(envs.begin(self._env_seed), np.arange(self.num_rows))
        for actions in self._logged([state.actions for state in states], states[0].num_steps):
            infos = envs.step(actions)
            self._first_steps += 1
            over = np.flatnonzero(envs.fresh)
            self._first_steps[over] = 0
            self._take_reset_infos(infos, over)
            self._block_steps += 1
            yield self.num_rows

    def _logged(self, logs: Sequence[Sequence[np.ndarray]], num_steps: int) -> Iterator[list[np.ndarray]]:
        """The actions of all rows, (M, *A) for each leaf, step by step, from those of each row (num_steps, *A)."""
        leaves = zip(self._envs.action_leaves, zip(*logs, strict=True), strict=True)
        columns = [np.stack(log).astype(leaf.dtype, copy=False) for leaf, log in leaves]
        for step in range(num_steps):
            yield [column[:, step] for column in columns]

    def _stands(self, number: int, state: RowState) -> bool:
        """Whether a row has come to where it stood; after a soft horizon, its episode began after the last reset."""
        num_steps, since_reset = state.num_steps - state.first_step, int(self._first_steps[number])
        if num_steps != since_reset:
            self._reset_infos[number] = NO_INFOS
        self._first_steps[number] = num_steps
        return num_steps == since_reset or (self._stream.soft_horizon and num_steps < since_reset)

    def _located(self, error: _Failed) -> _Failed:
        # An environment's error is one of all rows, and told of the first episode.
        row = error.row if isinstance(error, AgentFailedError) else int(self._indices.argmin())
        return located(error, int(self._indices[row]), self._env_seed, int(self._episode_steps[row]))
