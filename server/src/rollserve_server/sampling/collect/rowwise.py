"""The base of the loops that run each episode in a row of its own: which row runs which episode."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from rollserve_server.sampling.collect.collector import EpisodeCollector

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rollserve_server.errors import EpisodeFailedError
    from rollserve_server.sampling.collect.waiting import WaitingForAnyRow, WaitingForOwnRow
    from rollserve_server.sampling.protocol.episodes import EpisodeRange

__all__ = ["RowwiseCollector"]


class _Indexed(Protocol):
    """An episode, or what stands for it."""

    @property
    def index(self) -> int:
        """Index of the episode."""


_Episode = TypeVar("_Episode")
_Running = TypeVar("_Running", bound=_Indexed)


class RowwiseCollector(EpisodeCollector[_Episode], Generic[_Episode, _Running]):
    """Runs each episode in a row of its own. Subclasses set `_waiting`, and add to `_running`."""

    _waiting: WaitingForAnyRow | WaitingForOwnRow

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
        while (taken := self._waiting.take(before)) is not None:
            self._beginning = taken
            if not self._begin_episode(*taken):
                break
        return bool(self._running)

    def cancel(self, index: int) -> int:
        """Forget an episode that waits or runs, and return the number of its steps."""
        row = next((row for row, running in self._running.items() if running.index == index), None)
        if self._waiting.remove(index) or row is None:
            return 0
        self._waiting.free(row)
        return self._forget(row)

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
