"""The loop that speed depends on most: environments stepped row by row, one agent, and a queue of episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.errors import EnvFailedError, EpisodeFailedError
from rollserve_server.sampling.collect.acting import act
from rollserve_server.sampling.collect.attempts import with_episode
from rollserve_server.sampling.collect.collector import Collector, write_untransformed
from rollserve_server.sampling.collect.noise import RowNoise
from rollserve_server.sampling.collect.rowwise import RowwiseCollector
from rollserve_server.sampling.collect.waiting import WaitingForAnyRow, WaitingForOwnRow
from rollserve_server.sampling.record.episodes import Episode

if TYPE_CHECKING:
    from rollserve_server.agents import Agent
    from rollserve_server.envs import RowEnvs

__all__ = ["RowCollector"]


class RowCollector(Collector, RowwiseCollector["Episode", "Episode"]):
    """Runs each episode in a row of its own, up to its end or a number of steps.

    Any row may run any episode, unless the rows' environments differ: then episode i runs in row i modulo M. Either
    way, an episode is a function of the root seed, its index, the agent and the environments.
    """

    def __init__(
        self,
        root_seed: int,
        envs: RowEnvs,
        agent: Agent,
        max_episode_length: int | None = None,
        num_retries: int = 0,
    ) -> None:
        super().__init__(root_seed, envs, agent, num_retries)
        self._max_episode_length = max_episode_length
        self._envs = envs
        self._noise = RowNoise(envs.num_rows, agent)
        self._waiting = (WaitingForOwnRow if envs.rows_differ else WaitingForAnyRow)(envs.num_rows)
        self._steps_left = np.zeros(envs.num_rows, np.int64)

    def step(self) -> list[Episode]:
        """Step all rows that have an episode, and return the episodes that ended."""
        envs, recorder = self._envs, self.recorder
        rows = sorted(self._running)
        noise, states = self._noise.next(), self._recurrent_states.columns
        if states:
            recorder.write("states", states)
        actions, agent_infos = act(
            self._agent, self._mask, envs.observations, noise, states, lambda: rows, self._located
        )
        recorder.write("observations", envs.observations)
        sees_limit = envs.has_callbacks and self._max_episode_length is not None
        infos = envs.step(rows, actions, self._steps_left == 1 if sees_limit else None)
        if self._mask is not None:
            self._mask.read_rows(infos)
        self.num_simulated_steps += len(rows) - len(envs.failures)
        recorder.write("actions", actions)
        recorder.write_rewards(envs.rewards, envs.raw_rewards)
        write_untransformed(recorder, envs)
        if states:
            self._recurrent_states.take_rewards(envs.rewards)
        recorder.write("agent_infos", agent_infos.values())
        for row, info in infos:
            recorder.write_infos(row, info)
        for failure in envs.failures:
            rows.remove(failure.row)
            self._abandon(self._located(failure))
        if self._max_episode_length is not None:
            self._steps_left -= 1
            envs.truncated |= self._steps_left == 0
        ended = np.flatnonzero(envs.terminated | envs.truncated).tolist()
        finished = [self._finish(row) for row in ended if row in self._running]
        recorder.advance()
        return finished

    def _begin_episode(self, row: int, index: int) -> bool:
        env_seed = self._noise.begin(row, self._root_seed, index)
        try:
            info = self._envs.reset(row, env_seed)
        except EnvFailedError as error:
            self._retry(row, index, with_episode(error, index, env_seed, 0))
            return False
        episode = self._running[row] = Episode.begin(index, env_seed, self.infos.read_reset(info))
        self.recorder.begin(row, episode)
        self._recurrent_states.begin(row)
        if self._mask is not None:
            self._mask.read_row(row, info)
        self._steps_left[row] = self._max_episode_length or -1
        return True

    def _finish(self, row: int) -> Episode:
        self._end(row)
        envs = self._envs
        last_observations = tuple(column[row].copy() for column in envs.observations)
        terminated, truncated = bool(envs.terminated[row]), bool(envs.truncated[row])
        last_states = self._recurrent_states.of_row(row)
        episode = self.recorder.finish(row, terminated, truncated, last_observations, last_states)
        envs.terminated[row] = envs.truncated[row] = False
        return episode

    def _forget(self, row: int) -> int:
        num_steps = self.recorder.length(row)
        self.recorder.abandon(row)
        del self._running[row]
        return num_steps

    def _located(self, error: EpisodeFailedError) -> EpisodeFailedError:
        episode = self._running[error.row]
        return with_episode(error, episode.index, episode.env_seed, self.recorder.length(error.row))
