"""Whole episodes of environments that are stepped row by row: which row runs which, and the loop for one agent."""

from __future__ import annotations

import functools
import heapq
from abc import abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
from typing_extensions import override

from rollserve_server.errors import EnvFailedError, EpisodeFailedError
from rollserve_server.sampling.collect.collector import Collector, EpisodeCollector, with_episode
from rollserve_server.sampling.collect.noise import EpisodeGenerator, RowNoise
from rollserve_server.sampling.collect.stepping import SingleRows
from rollserve_server.sampling.record.episodes import Episode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from rollserve_server.agents import Agent
    from rollserve_server.envs import RowEnvs
    from rollserve_server.sampling.collect.running import RunningEpisode
    from rollserve_server.sampling.protocol import EpisodeRange

__all__ = ["RowCollector", "RowwiseCollector", "WaitingForAnyRow"]


_Episode = TypeVar("_Episode")

_Running = TypeVar("_Running", bound="Episode | RunningEpisode")


class RowwiseCollector(EpisodeCollector[_Episode], Generic[_Episode, _Running]):
    """Runs each episode in a row of its own. Subclasses set `_waiting`, and add to `_running`."""

    _waiting: WaitingForAnyRow | _WaitingForOwnRow

    def __init__(self, root_seed: int, num_retries: int) -> None:
        super().__init__(root_seed, num_retries)
        self._running: dict[int, _Running] = {}
        # Row and index of the last episode that has begun.
        self._beginning = (0, 0)

    @property
    def num_waiting(self) -> int:
        """Number of episodes that wait for a row."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Number of episodes that have a row."""
        return len(self._running)

    def episode_index(self, row: int) -> int | None:
        """Return the index of the episode that a row runs or begins; None if it has none."""
        running = self._running.get(row)
        if running is not None:
            return running.index
        beginning, index = self._beginning
        return index if row == beginning else None

    def enqueue(self, ranges: Iterable[EpisodeRange]) -> None:
        """Add episodes, which begin when rows are free, the lowest index first."""
        for episodes in ranges:
            for index in episodes.indices:
                self._waiting.add(index)

    def begin(self, before: int | None = None) -> bool:
        """Begin waiting episodes in free rows, up to one whose environment fails; return whether rows have episodes."""
        taken = deque(iter(functools.partial(self._waiting.take, before), None))
        self._begin_resets(taken)
        while taken:
            self._beginning = taken.popleft()
            if not self._begin_episode(*self._beginning):
                break
        for row, index in taken:
            self._waiting.free(row)
            self._waiting.add(index)
        return bool(self._running)

    def cancel(self, index: int) -> int:
        """Forget an episode that waits or runs, and return the number of its steps."""
        row = next((row for row, running in self._running.items() if running.index == index), None)
        if self._waiting.remove(index) or row is None:
            return 0
        self._waiting.free(row)
        return self._forget(row)

    def _begin_resets(self, episodes: Collection[tuple[int, int]]) -> None:
        """Begin resets for episodes, given rows and indices, where that is faster than one reset after the other."""

    @abstractmethod
    def _begin_episode(self, row: int, index: int) -> bool:
        """Begin an episode in a row; if its environment fails, `_retry` it and return False."""

    @abstractmethod
    def _forget(self, row: int) -> int:
        """Forget the episode that a row runs, and return the number of its steps."""

    def _end(self, row: int) -> None:
        """Free the row of an episode that has ended."""
        self.attempts.succeed(self._running.pop(row).index)
        self._waiting.free(row)

    def _abandon(self, error: EpisodeFailedError) -> None:
        """Throw away the steps of the row whose environment failed, given the error with its episode."""
        index = self._running[error.row].index
        self._retry(error.row, index, error, self._forget(error.row))

    def _retry(self, row: int, index: int, error: EpisodeFailedError, num_lost_steps: int = 0) -> None:
        """Free the row of a failed episode, which waits for a row again unless it has failed too often."""
        self._waiting.free(row)
        if self.attempts.fail(index, [index], error, num_lost_steps):
            self._waiting.add(index)


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
        self._rows = SingleRows(envs)
        super().__init__(root_seed, self._rows, agent, num_retries)
        self._max_episode_length = max_episode_length
        self._envs = envs
        self._noise, self._seeds = RowNoise(envs.num_rows, agent), EpisodeGenerator()
        self._waiting = (_WaitingForOwnRow if envs.rows_differ else WaitingForAnyRow)(envs.num_rows)
        self._steps_left = np.zeros(envs.num_rows, np.int64)

    def step(self) -> list[Episode]:
        """Step all rows that have an episode, and return the episodes that ended."""
        envs, recorder = self._envs, self.recorder
        rows = sorted(self._running)
        actions = self._rows.act(self._noise.next(), lambda: rows, self._located)
        sees_limit = envs.has_callbacks and self._max_episode_length is not None
        infos = envs.step(rows, actions, self._steps_left == 1 if sees_limit else None)
        self._rows.record(infos)
        for row, info in infos:
            recorder.write_infos(row, info)
        self.num_simulated_steps += len(rows) - len(envs.failures)
        for failure in envs.failures:
            self._abandon(self._located(failure))
        if self._max_episode_length is not None:
            self._steps_left -= 1
            envs.truncated |= self._steps_left == 0
        ended = np.flatnonzero(envs.terminated | envs.truncated).tolist()
        finished = [self._finish(row) for row in ended if row in self._running]
        recorder.advance()
        return finished

    @override
    def _begin_resets(self, episodes: Collection[tuple[int, int]]) -> None:
        if self._envs.resets_together and len(episodes) > 1:
            self._envs.begin_resets({row: self._seeds.env_seed(self._root_seed, index) for row, index in episodes})

    def _begin_episode(self, row: int, index: int) -> bool:
        env_seed = self._noise.begin(row, self._root_seed, index)
        try:
            info = self._envs.reset(row, env_seed)
        except EnvFailedError as error:
            self._retry(row, index, with_episode(error, index, env_seed, 0))
            return False
        episode = self._running[row] = Episode.begin(index, env_seed, self.infos.read_reset(info))
        self.recorder.begin(row, episode)
        self._rows.begin(row)
        self._rows.read_mask(row, info)
        self._steps_left[row] = self._max_episode_length or -1
        return True

    def _finish(self, row: int) -> Episode:
        self._end(row)
        envs = self._envs
        terminated, truncated = bool(envs.terminated[row]), bool(envs.truncated[row])
        episode = self.recorder.finish(row, terminated, truncated, *self._rows.ending(row))
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


class WaitingForAnyRow:
    """Episodes that wait for a row, and rows that are free; any row may run any episode.

    At first, all rows are free.
    """

    def __init__(self, num_rows: int) -> None:
        self._free = list(reversed(range(num_rows)))
        self._indices: list[int] = []

    def __len__(self) -> int:
        return len(self._indices)

    def add(self, index: int) -> None:
        """Add an episode."""
        heapq.heappush(self._indices, index)

    def free(self, row: int) -> None:
        """Mark a row as free."""
        self._free.append(row)

    def remove(self, index: int) -> bool:
        """Remove an episode; return whether it was waiting."""
        return _remove(self._indices, index)

    def take(self, before: int | None) -> tuple[int, int] | None:
        """Remove a free row and the lowest episode for it, and return them; None if there is no such pair.

        Args:
            before: upper bound for the episode's index, exclusive; None for no bound.
        """
        if self._free and self._indices and (before is None or self._indices[0] < before):
            return self._free.pop(), heapq.heappop(self._indices)
        return None


class _WaitingForOwnRow:
    """`WaitingForAnyRow` where episode i runs in row i modulo the number of rows, because their environments differ."""

    def __init__(self, num_rows: int) -> None:
        self._free = set(range(num_rows))
        self._indices: list[list[int]] = [[] for _ in range(num_rows)]
        self._num_waiting = 0
        # The lowest index of each free row, among outdated entries: see `_is_next`.
        self._next: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return self._num_waiting

    def add(self, index: int) -> None:
        """Add an episode."""
        row = index % len(self._indices)
        heapq.heappush(self._indices[row], index)
        self._num_waiting += 1
        if row in self._free:
            heapq.heappush(self._next, (index, row))

    def free(self, row: int) -> None:
        """Mark a row as free."""
        self._free.add(row)
        if self._indices[row]:
            heapq.heappush(self._next, (self._indices[row][0], row))

    def remove(self, index: int) -> bool:
        """Remove an episode; return whether it was waiting."""
        row = index % len(self._indices)
        waited = _remove(self._indices[row], index)
        self._num_waiting -= waited
        if waited and row in self._free and self._indices[row]:
            heapq.heappush(self._next, (self._indices[row][0], row))
        return waited

    def take(self, before: int | None) -> tuple[int, int] | None:
        """Remove the lowest episode below `before` whose row is free, and return the row and its index, or None."""
        while self._next and not self._is_next(*self._next[0]):
            heapq.heappop(self._next)
        if not self._next or (before is not None and self._next[0][0] >= before):
            return None
        index, row = heapq.heappop(self._next)
        heapq.heappop(self._indices[row])
        self._free.discard(row)
        self._num_waiting -= 1
        return row, index

    def _is_next(self, index: int, row: int) -> bool:
        """Return whether the row is free, and the episode is the lowest that waits for it."""
        return row in self._free and self._indices[row][:1] == [index]


def _remove(heap: list[int], index: int) -> bool:
    """Remove an index from a heap; return whether the heap had it."""
    if index not in heap:
        return False
    heap.remove(index)
    heapq.heapify(heap)
    return True
