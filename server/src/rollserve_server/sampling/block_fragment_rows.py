"""Rows that are stepped together, and run episodes one after the other, from call to call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.errors import EnvFailedError
from rollserve_server.sampling.collector import located
from rollserve_server.sampling.episodes import Episode
from rollserve_server.sampling.fragment_orders import RowProgress
from rollserve_server.sampling.fragment_recording import FragmentRecording
from rollserve_server.sampling.infos import NO_INFOS
from rollserve_server.sampling.noise import BlockNoise
from rollserve_server.sampling.seeding import EpisodeGenerator

if TYPE_CHECKING:
    from rollserve_server.agents import Agent
    from rollserve_server.envs import BlockEnvs
    from rollserve_server.sampling.fragment_orders import RowState, RowStream
    from rollserve_server.sampling.infos import InfoKey

__all__ = ["BlockFragmentRows"]


class BlockFragmentRows(FragmentRecording):
    """Steps M rows of one environment, which begin anew by themselves, and records the fragments that they make.

    Together they are one block for as long as they go on: all that they do is a function of the seed of the episode
    that the first of them began with, and of their actions since then.
    """

    _envs: BlockEnvs

    def __init__(self, stream: RowStream, envs: BlockEnvs, states: Sequence[RowState]) -> None:
        """Takes an environment for itself, and the states that its rows are to be brought to by `restore`."""
        super().__init__(stream, len(states))
        self._envs = envs
        # Of each row: its episode, how many steps that has, and the infos that it began with.
        self._indices = np.array([state.episode_index for state in states])
        self._episode_steps = np.zeros(len(states), np.int64)
        self._reset_infos: list[Mapping[InfoKey, Any]] = [NO_INFOS] * len(states)
        # Of the block: the episode that it was begun for, its seed, and the steps since then.
        self._block_start = states[0].reset_index
        self._env_seed = 0
        self._block_steps = 0
        self._restoring = self._restore(states)
        self._noise: BlockNoise
        self._has_noise = False
        # At which of the call's steps the block began.
        self._begin_step = 0

    def set_agent(self, agent: Agent) -> None:
        """See FragmentRecording."""
        super().set_agent(agent)
        self._noise = BlockNoise(self.num_rows, agent)
        self._has_noise = False

    def begin_call(self, num_steps: int, *, tell_actions: bool) -> None:
        """See FragmentRecording."""
        super().begin_call(num_steps, tell_actions=tell_actions)
        self._begin_step = 0

    def restore(self) -> int:
        """Makes a step of all rows to bring them to where they stood; returns how many it made: 0 once they do."""
        return next(self._restoring, 0)

    def step(self) -> list[Episode]:
        """Steps all rows, which have been restored.

        Returns:
            The fragments of those whose episodes ended; with the call's last step, then those of the others. All are
            whole fragments of the call, in the order of the rows.

        Raises:
            EnvFailedError: the environment raised an error.
        """
        envs, recorder, columns = self._envs, self._recorder, self._columns
        if not self._block_steps:
            self._begin_block()
        if not self._has_noise:
            self._noise.begin(self._stream.root_seed, self._block_start, self._block_steps)
            self._has_noise = True
        if not self._step:
            self._open(range(self.num_rows))
        recorder.write(columns["observations"], envs.observations)
        actions, agent_infos = self._agent.act(envs.observations, self._noise.next())
        recorder.write(columns["actions"], actions)
        recorder.write(columns["agent_infos"], agent_infos.values())
        try:
            infos = envs.step(actions)
        except EnvFailedError as error:
            raise self._located(error) from error
        recorder.write(columns["rewards"], (envs.rewards,))
        for number, info in envs.step_infos(infos, range(self.num_rows)):
            recorder.write_infos(number, info)
        self._keep_actions(actions)
        self._step += 1
        self._block_steps += 1
        self._episode_steps += 1
        fragments, begun = self._end_episodes(infos)
        is_last = self._step == self._num_steps
        if is_last:
            cut = sorted(set(range(self.num_rows)).difference(begun))
            fragments += [self._finish(number, terminated=False, truncated=False) for number in cut]
        recorder.advance()
        if not is_last:
            self._open(begun)
        return fragments

    def progress(self) -> list[RowProgress]:
        """Where the rows stand at the end of a call."""
        return [
            RowProgress(
                self._block_start,
                int(self._indices[number]),
                self._block_steps - int(self._episode_steps[number]),
                self._block_steps,
                [column[number, self._begin_step : self._step] for column in self._actions_made]
                if self._tells_actions
                else None,
            )
            for number in range(self.num_rows)
        ]

    def _begin_block(self) -> None:
        self._block_start = int(self._indices[0])
        self._begin_step = self._step
        self._has_noise = False
        self._env_seed = EpisodeGenerator().begin(self._stream.root_seed, self._block_start)
        try:
            infos = self._envs.begin(self._env_seed)
        except EnvFailedError as error:
            raise self._located(error) from error
        self._take_reset_infos(infos, range(self.num_rows))

    def _take_reset_infos(self, infos: Mapping[str, Any], numbers: Sequence[int]) -> None:
        of_rows = self._envs.reset_infos(infos, numbers)
        for number in numbers:
            self._reset_infos[number] = self._infos.read_copies(of_rows[number]) if number in of_rows else NO_INFOS

    def _open(self, numbers: Sequence[int]) -> None:
        """Begins fragments: with an episode, or where the row's episode was cut."""
        for number in numbers:
            first_step = int(self._episode_steps[number])
            index = int(self._indices[number])
            fragment = Episode(index, self._env_seed, self._reset_infos[number], first_step=first_step)
            self._recorder.begin(number, fragment)

    def _end_episodes(self, infos: Mapping[str, Any]) -> tuple[list[Episode], list[int]]:
        """Ends the episodes that are over with the current step; returns their fragments, and their rows."""
        envs, limit = self._envs, self._stream.max_episode_length
        over = envs.terminated | envs.truncated
        # Any other limit is the environment's own.
        cut = ~over & (self._episode_steps == limit) if self._stream.soft_horizon else np.zeros_like(over)
        ended = np.flatnonzero(over | cut).tolist()
        fragments = [
            self._finish(
                number, terminated=bool(envs.terminated[number]), truncated=bool(envs.truncated[number] or cut[number])
            )
            for number in ended
        ]
        self._episode_steps[ended] = 0
        self._indices[ended] += self._stream.stride
        for number in np.flatnonzero(cut).tolist():
            self._reset_infos[number] = NO_INFOS
        self._take_reset_infos(infos, np.flatnonzero(over).tolist())
        return fragments, ended

    def _finish(self, number: int, *, terminated: bool, truncated: bool) -> Episode:
        envs = self._envs
        if envs.terminated[number] or envs.truncated[number]:
            last_observations = envs.last_observations(number)
        else:
            last_observations = tuple(column[number].copy() for column in envs.observations)
        return self._recorder.finish(number, terminated, truncated, last_observations)

    def _restore(self, states: Sequence[RowState]) -> Iterator[int]:
        """Makes the states' steps again; says with each iteration how many it made."""
        num_steps = {state.num_steps for state in states}
        if num_steps == {0}:
            return
        stands = False
        if len(num_steps) == 1:
            try:
                yield from self._replay(states)
            except EnvFailedError:
                pass
            else:
                stands = all(map(self._stands, range(self.num_rows), states))
        if not stands:
            # Of rows that are stepped together none can be brought back alone.
            going_on = np.array([state.num_steps > 0 for state in states])
            self.num_broken_off += int(going_on.sum())
            self._indices[going_on] += self._stream.stride
            self._episode_steps[:] = 0
            self._block_steps = 0

    def _replay(self, states: Sequence[RowState]) -> Iterator[int]:
        envs = self._envs
        self._env_seed = EpisodeGenerator().begin(self._stream.root_seed, self._block_start)
        self._take_reset_infos(envs.begin(self._env_seed), range(self.num_rows))
        columns = [np.stack(leaf) for leaf in zip(*(state.actions for state in states), strict=True)]
        for step in range(states[0].num_steps):
            infos = envs.step([column[:, step] for column in columns])
            self._episode_steps += 1
            over = np.flatnonzero(envs.terminated | envs.truncated).tolist()
            self._episode_steps[over] = 0
            self._take_reset_infos(infos, over)
            self._block_steps += 1
            yield self.num_rows

    def _stands(self, number: int, state: RowState) -> bool:
        """Whether a row has come to where it stood; after a soft horizon, its episode began after the last reset."""
        num_steps, since_reset = state.num_steps - state.first_step, int(self._episode_steps[number])
        if num_steps != since_reset:
            self._reset_infos[number] = NO_INFOS
        self._episode_steps[number] = num_steps
        return num_steps == since_reset or (self._stream.soft_horizon and num_steps < since_reset)

    def _located(self, error: EnvFailedError) -> EnvFailedError:
        index = int(self._indices.min())
        return located(error, index, self._env_seed, int(self._episode_steps[self._indices.argmin()]))
