"""The loop that everything is fast or slow by: rows of environments, one agent, and a queue of episodes to run."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from rollserve_server.errors import EnvFailedError, EpisodeFailedError
from rollserve_server.sampling.collect.acting import act
from rollserve_server.sampling.collect.attempts import Attempts
from rollserve_server.sampling.collect.noise import RowNoise
from rollserve_server.sampling.collect.recurrent_state import RowStates
from rollserve_server.sampling.collect.waiting import Waiting, WaitingForAnyRow, WaitingForTheirRows
from rollserve_server.sampling.record.episodes import Episode, Recorder
from rollserve_server.sampling.record.infos import InfoKey, InfoReader

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Iterator

    from rollserve_server.agents import Agent
    from rollserve_server.envs import RowEnvs, VectorEnvs
    from rollserve_server.sampling.protocol.episodes import EpisodeRange
    from rollserve_server.sampling.record.episodes import ColumnKey

__all__ = ["RowCollector", "column_keys", "located"]

_Failed = TypeVar("_Failed", bound=EpisodeFailedError)


class RowCollector:
    """Runs episodes of one stream in rows of environments, each up to its end or a number of steps.

    Any row may run any episode, unless their environments differ: then the episode of index i runs in row i modulo
    their number. So an episode's content is a function of the root seed, its index, the agent and the environments.

    Attributes:
        num_simulated_steps: steps made so far.
        num_idle_steps: those of them that are thrown away; always 0.
        attempts: which episodes failed, and so run again, in any row, or not.
    """

    num_idle_steps = 0

    def __init__(
        self,
        root_seed: int,
        envs: RowEnvs,
        agent: Agent,
        max_episode_length: int | None = None,
        num_retries: int = 0,
    ) -> None:
        self.attempts = Attempts(num_retries)
        self._root_seed = root_seed
        self._max_episode_length = max_episode_length
        self._envs = envs
        self._agent = agent
        self._noise = RowNoise(envs.num_rows, agent)
        self._recurrent_states = RowStates(envs.num_rows, agent.states)
        self._infos = InfoReader()
        self._recorder = Recorder(envs.num_rows, column_keys(envs, agent), self._infos)
        self._observations = self._recorder.columns("observations")
        self._actions = self._recorder.columns("actions")
        self._rewards = self._recorder.columns("rewards")
        self._agent_infos = self._recorder.columns("agent_infos")
        self._states = self._recorder.columns("states")
        kind = WaitingForTheirRows if envs.rows_differ else WaitingForAnyRow
        self._waiting: Waiting = kind(envs.num_rows)
        self._steps_left = np.zeros(envs.num_rows, np.int64)
        self._running: dict[int, Episode] = {}
        self._beginning = (0, 0)
        self.num_simulated_steps = 0

    @property
    def num_waiting(self) -> int:
        """How many episodes wait for a row."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """How many episodes have a row."""
        return len(self._running)

    def episode_of(self, row: int) -> int | None:
        """The index of the episode that a row runs, or begins."""
        episode = self._running.get(row)
        if episode is not None:
            return episode.index
        beginning, index = self._beginning
        return index if row == beginning else None

    @property
    def dropped_infos(self) -> Counter[str]:
        """By name, how many values of infos had no place in a column. The caller may clear it."""
        return self._infos.dropped

    def enqueue(self, ranges: Iterable[EpisodeRange]) -> None:
        """Has the episodes run, beginning with the lowest index as rows are free."""
        for episodes in ranges:
            for index in episodes.indices:
                self._waiting.add(index)

    def begin(self, before: int | None = None) -> bool:
        """Begins waiting episodes in rows that are free, up to one whose environment fails.

        Args:
            before: only those of lower indices; None for all.

        Returns:
            Whether there is anything to be stepped.
        """
        while (taken := self._waiting.take(before)) is not None:
            row, index = self._beginning = taken
            env_seed = self._noise.begin(row, self._root_seed, index)
            try:
                info = self._envs.reset(row, env_seed)
            except EnvFailedError as error:
                self._retry(row, index, located(error, index, env_seed, 0))
                break
            episode = self._running[row] = Episode(index, env_seed, self._infos.read_copies(info))
            self._recorder.begin(row, episode)
            self._recurrent_states.begin(row)
            self._steps_left[row] = self._max_episode_length or -1
        return bool(self._running)

    def step(self) -> list[Episode]:
        """Steps all rows that have an episode; returns the episodes that ended.

        Raises:
            AgentFailedError: the agent failed.
        """
        envs, recorder = self._envs, self._recorder
        rows = sorted(self._running)
        states = self._recurrent_states.columns
        if states:
            recorder.write(self._states, states)
        try:
            actions, agent_infos = act(self._agent, envs.observations, self._noise.next(), states, lambda: rows)
        except EpisodeFailedError as error:
            raise self._located(error) from error
        recorder.write(self._observations, envs.observations)
        infos = envs.step(rows, actions)
        self.num_simulated_steps += len(rows) - len(envs.failures)
        recorder.write(self._actions, actions)
        recorder.write(self._rewards, (envs.rewards,))
        recorder.write(self._agent_infos, agent_infos.values())
        for row, info in infos:
            recorder.write_infos(row, info)
        for failure in envs.failures:
            rows.remove(failure.row)
            self._abandon(failure)
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

    def cancel(self, index: int) -> int:
        """Forgets an episode that waits or runs; returns how many steps it had."""
        row = next((row for row, episode in self._running.items() if episode.index == index), None)
        if self._waiting.remove(index) or row is None:
            return 0
        num_steps = self._recorder.length(row)
        self._recorder.abandon(row)
        del self._running[row]
        self._waiting.free(row)
        return num_steps

    def _finish(self, row: int) -> Episode:
        self.attempts.succeed(self._running.pop(row).index)
        self._waiting.free(row)
        envs = self._envs
        last_observations = tuple(column[row].copy() for column in envs.observations)
        episode = self._recorder.finish(row, bool(envs.terminated[row]), bool(envs.truncated[row]), last_observations)
        envs.terminated[row] = envs.truncated[row] = False
        return episode

    def _abandon(self, error: EpisodeFailedError) -> None:
        """Throws away what the episode of a row has so far, whose environment failed."""
        located_error, num_steps = self._located(error), self._recorder.length(error.row)
        self._recorder.abandon(error.row)
        self._retry(error.row, self._running.pop(error.row).index, located_error, num_steps)

    def _retry(self, row: int, index: int, error: EpisodeFailedError, num_lost_steps: int = 0) -> None:
        """Has an episode, which had a row, wait for one again, unless it has failed too often."""
        self._waiting.free(row)
        if self.attempts.fail(index, [index], error, num_lost_steps):
            self._waiting.add(index)

    def _located(self, error: EpisodeFailedError) -> EpisodeFailedError:
        episode = self._running[error.row]
        return located(error, episode.index, episode.env_seed, self._recorder.length(error.row))


def column_keys(envs: RowEnvs | VectorEnvs, agent: Agent) -> Iterator[ColumnKey]:
    """The columns that every step has."""
    for leaf in envs.observation_leaves:
        yield "observations", InfoKey(leaf.name, leaf.dtype, leaf.shape)
    for leaf in envs.action_leaves:
        yield "actions", InfoKey(leaf.name, leaf.dtype, leaf.shape)
    yield "rewards", InfoKey("", np.dtype(np.float64), ())
    for info in agent.infos:
        yield "agent_infos", InfoKey(info.name, info.dtype, info.shape)
    for name, initial in agent.states:
        yield "states", InfoKey(name, initial.dtype, initial.shape)


def located(error: _Failed, index: int, env_seed: int, num_steps: int) -> _Failed:
    """The error with the episode that it happened in, which had so many steps."""
    where = f"episode {index} (environment seed {env_seed}), after {num_steps} steps"
    return type(error)(f"{where}: {error.message}", error.row, index)
