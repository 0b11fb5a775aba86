"""The loop that everything is fast or slow by: rows of environments, one agent, and a queue of episodes to run."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.errors import EnvFailedError
from rollserve_server.sampling.episodes import Episode, Recorder
from rollserve_server.sampling.infos import InfoKey, InfoReader
from rollserve_server.sampling.noise import RowNoise

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Iterator

    from rollserve_server.agents import Agent
    from rollserve_server.envs import RowEnvs
    from rollserve_server.sampling.episodes import ColumnKey

__all__ = ["Collector"]


class Collector:
    """Runs episodes of one stream in rows of environments, each up to its end or a number of steps.

    Any row may run any episode: an episode's content is a function of the root seed, its index, the agent and the
    environment.
    """

    def __init__(self, root_seed: int, envs: RowEnvs, agent: Agent, max_episode_length: int | None = None) -> None:
        self._root_seed = root_seed
        self._max_episode_length = max_episode_length
        self._envs = envs
        self._agent = agent
        self._noise = RowNoise(envs.num_rows, agent)
        self._infos = InfoReader()
        self._recorder = Recorder(envs.num_rows, _column_keys(envs, agent), self._infos)
        self._observations = self._recorder.columns("observations")
        self._actions = self._recorder.columns("actions")
        self._rewards = self._recorder.columns("rewards")
        self._agent_infos = self._recorder.columns("agent_infos")
        self._queue: list[int] = []
        self._free = list(reversed(range(envs.num_rows)))
        self._steps_left = np.zeros(envs.num_rows, np.int64)
        self._running: dict[int, Episode] = {}

    @property
    def num_running(self) -> int:
        """How many episodes are running."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """How many episodes wait for a row."""
        return len(self._queue)

    @property
    def dropped_infos(self) -> Counter[str]:
        """By name, how many values of infos had no place in a column. The caller may clear it."""
        return self._infos.dropped

    def enqueue(self, indices: Iterable[int]) -> None:
        """Has the episodes run, beginning with the lowest index as rows are free."""
        for index in indices:
            heapq.heappush(self._queue, index)

    def begin(self, before: int | None = None) -> None:
        """Begins waiting episodes in rows that are free.

        Args:
            before: only those of lower indices; None for all.

        Raises:
            EnvFailedError: an environment raised an error at its reset.
        """
        while self._free and self._queue and (before is None or self._queue[0] < before):
            row, index = self._free.pop(), heapq.heappop(self._queue)
            env_seed = self._noise.begin(row, self._root_seed, index)
            try:
                info = self._envs.reset(row, env_seed)
            except EnvFailedError as error:
                raise _located(error, index, env_seed, 0) from error
            episode = self._running[row] = Episode(index, env_seed, self._infos.read_copies(info))
            self._recorder.begin(row, episode)
            self._steps_left[row] = self._max_episode_length or -1

    def step(self) -> list[Episode]:
        """Steps all rows that have an episode; returns the episodes that ended.

        Raises:
            EnvFailedError: an environment raised an error.
        """
        envs, recorder = self._envs, self._recorder
        actions, agent_infos = self._agent.act(envs.observations, self._noise.next())
        recorder.write(self._observations, envs.observations)
        rows = sorted(self._running)
        try:
            infos = envs.step(rows, actions)
        except EnvFailedError as error:
            episode = self._running[error.row]
            num_steps = recorder.length(error.row)
            raise _located(error, episode.index, episode.env_seed, num_steps) from error
        recorder.write(self._actions, actions)
        recorder.write(self._rewards, (envs.rewards,))
        recorder.write(self._agent_infos, agent_infos.values())
        for row, info in infos:
            recorder.write_infos(row, info)
        if self._max_episode_length is not None:
            self._steps_left -= 1
            envs.truncated |= self._steps_left == 0
        ended = envs.terminated | envs.truncated
        finished = [self._finish(row) for row in rows if ended[row]] if ended.any() else []
        recorder.advance()
        return finished

    def release(self, episode: Episode) -> None:
        """Forgets a finished episode: its columns may be overwritten."""
        self._recorder.release(episode)

    def _finish(self, row: int) -> Episode:
        del self._running[row]
        self._free.append(row)
        envs = self._envs
        last_observations = tuple(column[row].copy() for column in envs.observations)
        episode = self._recorder.finish(row, bool(envs.terminated[row]), bool(envs.truncated[row]), last_observations)
        envs.terminated[row] = envs.truncated[row] = False
        return episode


def _column_keys(envs: RowEnvs, agent: Agent) -> Iterator[ColumnKey]:
    for leaf in envs.observation_leaves:
        yield "observations", InfoKey(leaf.name, leaf.dtype, leaf.shape)
    for leaf in envs.action_leaves:
        yield "actions", InfoKey(leaf.name, leaf.dtype, leaf.shape)
    yield "rewards", InfoKey("", np.dtype(np.float64), ())
    for info in agent.infos:
        yield "agent_infos", InfoKey(info.name, info.dtype, info.shape)


def _located(error: EnvFailedError, index: int, env_seed: int, num_steps: int) -> EnvFailedError:
    where = f"episode {index} (environment seed {env_seed}), after {num_steps} steps"
    return EnvFailedError(f"{where}: {error.message}", error.row, index)
