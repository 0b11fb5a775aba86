"""The loop for rows that are stepped together: blocks of episodes, each a function of the index that it begins with."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.errors import AgentFailedError, EnvFailedError, EpisodeFailedError
from rollserve_server.sampling.collect.collector import Collector
from rollserve_server.sampling.collect.noise import BlockNoise
from rollserve_server.sampling.collect.stepping import JointRows
from rollserve_server.sampling.record.episodes import Episode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from rollserve_server.agents import Agent
    from rollserve_server.envs import VectorEnvs
    from rollserve_server.sampling.protocol import EpisodeRange

__all__ = ["VectorCollector"]


class VectorCollector(Collector):
    """Runs blocks of episodes, one block after the other.

    The beginning of a block determines which row runs which episodes; neither speed nor length changes it. A row that
    has run its episodes goes on with the others, and its further steps are thrown away, like episodes of the block that
    are not requested.
    """

    def __init__(self, root_seed: int, envs: VectorEnvs, agent: Agent, num_retries: int = 0) -> None:
        self._rows = JointRows(envs)
        super().__init__(root_seed, self._rows, agent, num_retries)
        self._envs = envs
        self._noise = BlockNoise(envs.num_rows, agent)
        # For each block that waits: its lowest requested episode, its first episode, and all requested episodes.
        self._queue: list[tuple[int, int, set[int]]] = []
        # Of the running block: its first episode, the seed of its reset, and the steps since then.
        self._block_start = self._env_seed = self._block_steps = 0
        self._unfinished: set[int] = set()
        # For each row: the episode that it runs, and whether the episode is recorded.
        self._indices = np.zeros(envs.num_rows, np.int64)
        self._recording = np.zeros(envs.num_rows, np.bool_)

    @property
    def num_waiting(self) -> int:
        """Number of ranges of episodes that wait for their block to run."""
        return len(self._queue)

    @property
    def num_running(self) -> int:
        """Number of requested episodes of the running block that have not ended."""
        return len(self._unfinished)

    def episode_index(self, row: int) -> int:
        """Return the index of the first episode of the block that runs or begins."""
        return self._block_start

    def enqueue(self, ranges: Iterable[EpisodeRange]) -> None:
        """Add episodes, which run in the order of their lowest indices."""
        for episodes in ranges:
            heapq.heappush(self._queue, (episodes.indices.start, episodes.block_start, set(episodes.indices)))

    def begin(self, before: int | None = None) -> bool:
        """Begin the next block if the running one is done or has to wait; return whether a block runs."""
        if self._unfinished and (before is None or min(self._unfinished) < before):
            return True
        if not self._queue or (before is not None and self._queue[0][0] >= before):
            return False
        if self._unfinished:
            self._set_aside()
        _, self._block_start, self._unfinished = heapq.heappop(self._queue)
        self._env_seed = self._noise.begin(self._root_seed, self._block_start)
        self._block_steps = 0
        self._indices = self._block_start + np.arange(self._envs.num_rows)
        try:
            infos = self._envs.begin(self._env_seed)
        except EnvFailedError as error:
            self._retry(error)
            return False
        self._rows.read_masks(infos)
        self._begin_episodes(infos)
        return True

    def step(self) -> list[Episode]:
        """Step all rows, and return the requested episodes that ended."""
        envs, recorder = self._envs, self.recorder
        actions = self._rows.act(self._noise.next(self._indices), self._recording_rows, self._with_block)
        try:
            infos = envs.step(actions)
        except EnvFailedError as error:
            self._retry(error)
            return []
        self._block_steps += 1
        self._rows.record(infos)
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

    def cancel(self, index: int) -> int:
        """Forget an episode that waits or runs, and return the number of its recorded steps."""
        for entry in self._queue:
            _, block_start, indices = entry
            if index in indices:
                self._queue.remove(entry)
                heapq.heapify(self._queue)
                if left := indices - {index}:
                    heapq.heappush(self._queue, (min(left), block_start, left))
                return 0
        rows = np.flatnonzero(self._recording & (self._indices == index)).tolist()
        self._unfinished.discard(index)
        return self._abandon(rows)

    def _set_aside(self) -> None:
        """Put the running block, which has worked ahead, back into the queue; its unfinished episodes run again."""
        self.num_idle_steps += self._abandon(self._recording_rows())
        heapq.heappush(self._queue, (min(self._unfinished), self._block_start, self._unfinished))

    def _retry(self, error: EnvFailedError) -> None:
        """Put the block, whose environment failed, back into the queue, unless it has failed too often."""
        located, unfinished = self._with_block(error), self._unfinished
        self._unfinished = set()
        num_lost_steps = self._abandon(self._recording_rows())
        if self.attempts.fail(self._block_start, sorted(unfinished), located, num_lost_steps):
            heapq.heappush(self._queue, (min(unfinished), self._block_start, unfinished))

    def _abandon(self, rows: Sequence[int]) -> int:
        """Throw away the steps of the episodes that rows record, and return their number."""
        num_steps = sum(map(self.recorder.length, rows))
        for row in rows:
            self.recorder.abandon(row)
            self._recording[row] = False
        return num_steps

    def _begin_episodes(self, infos: Mapping[str, Any]) -> None:
        """Record the episodes that rows begin, if they are requested."""
        fresh = np.flatnonzero(self._envs.fresh)
        self._rows.begin(fresh)
        episodes = {row: index for row in fresh.tolist() if (index := int(self._indices[row])) in self._unfinished}
        reset_infos = self._envs.reset_infos(infos, list(episodes))
        for row, index in episodes.items():
            infos_of_row = self.infos.read_reset(reset_infos.get(row, {}))
            self.recorder.begin(row, Episode.begin(index, self._env_seed, infos_of_row))
            self._recording[row] = True

    def _finish(self, row: int) -> Episode:
        envs = self._envs
        self._recording[row] = False
        terminated, truncated = bool(envs.terminated[row]), bool(envs.truncated[row])
        episode = self.recorder.finish(row, terminated, truncated, *self._rows.ending(row))
        self._unfinished.discard(episode.index)
        if not self._unfinished:
            self.attempts.succeed(self._block_start)
        return episode

    def _recording_rows(self) -> list[int]:
        rows: list[int] = np.flatnonzero(self._recording).tolist()
        return rows

    def _with_block(self, error: EpisodeFailedError) -> EpisodeFailedError:
        index = min(self._unfinished)
        where = f"the block of episode {index} (environment seed {self._env_seed})"
        if isinstance(error, AgentFailedError):  # an agent fails in a single row
            num_steps = self.recorder.length(error.row)
            where = f"{where}, episode {self._indices[error.row]}, after {num_steps} steps"
        else:
            where = f"{where}, after {self._block_steps} steps"
        return type(error)(f"{where}: {error.message}", error.row, index)
