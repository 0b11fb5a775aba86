"""The loop for rows that are stepped together: blocks of episodes, each a function of the index that it begins with."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.errors import AgentFailedError, EnvFailedError, EpisodeFailedError
from rollserve_server.sampling.collect.acting import act
from rollserve_server.sampling.collect.attempts import Attempts
from rollserve_server.sampling.collect.noise import BlockNoise
from rollserve_server.sampling.collect.recurrent_state import RowStates
from rollserve_server.sampling.collect.rows import column_keys
from rollserve_server.sampling.record.episodes import Episode, Recorder
from rollserve_server.sampling.record.infos import NO_INFOS, InfoReader

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Mapping
    from typing import Any

    from rollserve_server.agents import Agent
    from rollserve_server.envs import VectorEnvs
    from rollserve_server.sampling.protocol.episodes import EpisodeRange

__all__ = ["VectorCollector"]


class VectorCollector:
    """Runs blocks of episodes of one stream, one block after the other.

    Which episodes a row runs is fixed when its block begins: neither speed nor shortness decides. A row that has run
    its share goes on with the others, and what it does then is thrown away, as are episodes that are not wanted.

    Attributes:
        num_simulated_steps: steps made so far.
        num_idle_steps: those of them that are thrown away because rows had to go on with the others.
        attempts: which blocks failed, and so run again, or not.
    """

    def __init__(self, root_seed: int, envs: VectorEnvs, agent: Agent, num_retries: int = 0) -> None:
        self.attempts = Attempts(num_retries)
        self._root_seed = root_seed
        self._envs = envs
        self._agent = agent
        self._noise = BlockNoise(envs.num_rows, agent)
        self._recurrent_states = RowStates(envs.num_rows, agent.states)
        self._reader = InfoReader()
        self._recorder = Recorder(envs.num_rows, column_keys(envs, agent), self._reader)
        self._observations = self._recorder.columns("observations")
        self._actions = self._recorder.columns("actions")
        self._rewards = self._recorder.columns("rewards")
        self._agent_infos = self._recorder.columns("agent_infos")
        self._states = self._recorder.columns("states")
        # Of each block that waits: its lowest episode that is wanted, where it begins, and all that are wanted.
        self._queue: list[tuple[int, int, set[int]]] = []
        self._block_start = self._env_seed = 0
        self._unfinished: set[int] = set()
        # Of each row: the episode that it runs, and whether it is recorded.
        self._indices = np.zeros(envs.num_rows, np.int64)
        self._recording = np.zeros(envs.num_rows, np.bool_)
        self.num_simulated_steps = self.num_idle_steps = 0

    @property
    def num_waiting(self) -> int:
        """How many portions of blocks wait for the rows."""
        return len(self._queue)

    @property
    def num_running(self) -> int:
        """How many episodes of the block that has the rows are wanted and have not ended."""
        return len(self._unfinished)

    def episode_of(self, row: int) -> int:
        """The index of the first episode of the block that is run, or begun."""
        return self._block_start

    @property
    def dropped_infos(self) -> Counter[str]:
        """By name, how many values of infos had no place in a column. The caller may clear it."""
        return self._reader.dropped

    def enqueue(self, ranges: Iterable[EpisodeRange]) -> None:
        """Has the episodes run, those of the lowest index first."""
        for episodes in ranges:
            heapq.heappush(self._queue, (episodes.indices.start, episodes.block_start, set(episodes.indices)))

    def begin(self, before: int | None = None) -> bool:
        """Begins the next block if the one before is done or has to wait.

        Args:
            before: step, and begin, only for the sake of an episode of a lower index; None for all.

        Returns:
            Whether there is anything to be stepped; not if the environment fails.
        """
        if self._unfinished and (before is None or min(self._unfinished) < before):
            return True
        if not self._queue or (before is not None and self._queue[0][0] >= before):
            return False
        if self._unfinished:
            self._set_aside()
        _, self._block_start, self._unfinished = heapq.heappop(self._queue)
        self._env_seed = self._noise.begin(self._root_seed, self._block_start)
        self._indices = self._block_start + np.arange(self._envs.num_rows)
        try:
            infos = self._envs.begin(self._env_seed)
        except EnvFailedError as error:
            self._retry(error)
            return False
        self._begin_episodes(infos)
        return True

    def step(self) -> list[Episode]:
        """Steps all rows; returns the wanted episodes that ended.

        Raises:
            AgentFailedError: the agent failed.
        """
        envs, recorder = self._envs, self._recorder
        recorder.write(self._observations, envs.observations)
        states = self._recurrent_states.columns
        if states:
            recorder.write(self._states, states)
        try:
            noise = self._noise.next(self._indices)
            actions, agent_infos = act(self._agent, envs.observations, noise, states, self._recording_rows)
            recorder.write(self._actions, actions)
            recorder.write(self._agent_infos, agent_infos.values())
            infos = envs.step(actions)
        except AgentFailedError as error:
            raise self._located(error) from error
        except EnvFailedError as error:
            self._retry(error)
            return []
        recorder.write(self._rewards, (envs.rewards,))
        for row, info in envs.step_infos(infos, self._recording_rows()):
            recorder.write_infos(row, info)
        num_steps = int(np.count_nonzero(envs.stepped))
        self.num_simulated_steps += num_steps
        self.num_idle_steps += num_steps - int(np.count_nonzero(self._recording))
        finished = []
        ended = envs.terminated | envs.truncated
        if ended.any():
            finished = [self._finish(row) for row in np.flatnonzero(ended & self._recording).tolist()]
            self._indices[ended] += envs.num_rows
        recorder.advance()
        if envs.fresh.any():
            self._begin_episodes(infos)
        return finished

    def release(self, episode: Episode) -> None:
        """Forgets a finished episode: its columns may be overwritten."""
        self._recorder.release(episode)

    def cancel(self, index: int) -> int:
        """Forgets an episode that waits or runs; returns how many steps of it were made for its own sake."""
        for entry in self._queue:
            if index in entry[2]:
                self._queue.remove(entry)
                heapq.heapify(self._queue)
                if left := entry[2] - {index}:
                    heapq.heappush(self._queue, (min(left), entry[1], left))
                return 0
        rows = np.flatnonzero(self._recording & (self._indices == index)).tolist()
        self._unfinished.discard(index)
        num_steps = sum(map(self._recorder.length, rows))
        for row in rows:
            self._recorder.abandon(row)
            self._recording[row] = False
        return num_steps

    def _set_aside(self) -> None:
        """Has the block, which has worked ahead, wait for others: what of it is not finished is run again later."""
        self.num_idle_steps += self._abandon()
        heapq.heappush(self._queue, (min(self._unfinished), self._block_start, self._unfinished))

    def _retry(self, error: EnvFailedError) -> None:
        """Has the block, whose environment failed, wait to be run again, unless it has failed too often."""
        located_error, unfinished = self._located(error), self._unfinished
        self._unfinished = set()
        if self.attempts.fail(self._block_start, sorted(unfinished), located_error, self._abandon()):
            heapq.heappush(self._queue, (min(unfinished), self._block_start, unfinished))

    def _abandon(self) -> int:
        """Throws away what of the block is not finished; returns how many steps that are."""
        rows = self._recording_rows()
        num_steps = sum(map(self._recorder.length, rows))
        for row in rows:
            self._recorder.abandon(row)
        self._recording[:] = False
        return num_steps

    def _begin_episodes(self, infos: Mapping[str, Any]) -> None:
        """Has rows that begin an episode record it, if it is wanted."""
        fresh = np.flatnonzero(self._envs.fresh).tolist()
        self._recurrent_states.begin(fresh)
        episodes = {row: index for row in fresh if (index := int(self._indices[row])) in self._unfinished}
        reset_infos = self._envs.reset_infos(infos, list(episodes))
        for row, index in episodes.items():
            info = self._reader.read_copies(reset_infos[row]) if row in reset_infos else NO_INFOS
            self._recorder.begin(row, Episode(index, self._env_seed, info))
            self._recording[row] = True

    def _finish(self, row: int) -> Episode:
        envs = self._envs
        self._recording[row] = False
        terminated, truncated = bool(envs.terminated[row]), bool(envs.truncated[row])
        episode = self._recorder.finish(
            row, terminated, truncated, [column[0] for column in envs.last_observations(np.array([row]))]
        )
        self._unfinished.discard(episode.index)
        if not self._unfinished:
            self.attempts.succeed(self._block_start)
        return episode

    def _recording_rows(self) -> list[int]:
        rows: list[int] = np.flatnonzero(self._recording).tolist()
        return rows

    def _located(self, error: EpisodeFailedError) -> EpisodeFailedError:
        index = min(self._unfinished)
        where = f"the block of episode {index} (environment seed {self._env_seed})"
        if isinstance(error, AgentFailedError):  # it concerns one episode
            num_steps = self._recorder.length(error.row)
            where = f"{where}, episode {self._indices[error.row]}, after {num_steps} steps"
        return type(error)(f"{where}: {error.message}", error.row, index)
