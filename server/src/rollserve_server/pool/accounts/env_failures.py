"""What is told of environments that raise errors: in accounts, in counters, and in the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollserve_server.errors import shorten

if TYPE_CHECKING:
    from rollserve_server.sampling import EpisodeFailure

__all__ = ["EnvFailures", "FailedEpisode"]

_log = logging.getLogger(__name__)

_MOST_TOLD = 64
"""Episodes in an account."""
_MOST_TEXT = 256
"""Characters of an error in an account, whose size is to be bounded."""
_LOG_SECONDS = 0.25
"""How long there is no other line in the log after one, on average over `_MOST_LINES`."""
_MOST_LINES = 4


@dataclass(eq=False)
class FailedEpisode:
    """An episode whose environment raised an error, or the first of several that run as one.

    Attributes:
        index: which episode; of a population, which unit.
        worker: which worker ran it.
        num_attempts: how often it has failed.
        text: the last error, in full.
        is_skipped: whether the call goes on without it.
    """

    index: int
    worker: int
    num_attempts: int
    text: str
    is_skipped: bool = False

    @classmethod
    def of(cls, worker: int, failure: EpisodeFailure) -> FailedEpisode:
        """What a worker has told of."""
        return cls(failure.indices[0], worker, failure.num_attempts, failure.text)

    @property
    def short_text(self) -> str:
        """The beginning of the error."""
        return shorten(self.text, _MOST_TEXT)

    @property
    def final_text(self) -> str:
        """The error, with how often it has come."""
        return self.text if self.num_attempts == 1 else f"{self.text} (the last of {self.num_attempts} attempts)"


class EnvFailures:
    """Those of one call.

    Attributes:
        num_failures: how many errors there were.
        num_skipped: how many episodes the call goes on without.
        told: the first episodes that failed, by their indices.
    """

    def __init__(self) -> None:
        self.num_failures = 0
        self.num_skipped = 0
        self.told: dict[int, FailedEpisode] = {}

    def take(self, worker: int, failure: EpisodeFailure) -> None:
        """Takes in an error that a worker has told of."""
        self.num_failures += 1
        failed = FailedEpisode.of(worker, failure)
        self._tell(failed)
        fate = "given up" if failure.is_final else "runs again"
        _sparing_log.warn(
            "environment failed",
            {"worker": worker, "attempt": failure.num_attempts, "episodes": fate, "error": failed.short_text},
        )

    def skip(self, episodes: Iterable[FailedEpisode]) -> None:
        """Takes in episodes that the call goes on without; the same once for each of several that run as one."""
        for failed in episodes:
            failed.is_skipped = True
            self.num_skipped += 1
            self._tell(failed)

    def add_prefetched(self, prefetched: EnvFailures) -> None:
        """Takes in what came of episodes that were sampled between calls."""
        self.num_failures += prefetched.num_failures
        for failed in prefetched.told.values():
            self._tell(failed)

    def _tell(self, failed: FailedEpisode) -> None:
        if failed.index in self.told or len(self.told) < _MOST_TOLD:
            self.told[failed.index] = failed


class _SparingLog:
    """A few lines a second, and how many there would have been."""

    def __init__(self) -> None:
        self._num_left, self._num_silent, self._since = float(_MOST_LINES), 0, 0.0

    def warn(self, event: str, extra: dict[str, object]) -> None:
        now = time.monotonic()
        self._num_left = min(self._num_left + (now - self._since) / _LOG_SECONDS, _MOST_LINES)
        self._since = now
        if self._num_left < 1:
            self._num_silent += 1
            return
        self._num_left -= 1
        silent = {"not_logged_before": self._num_silent} if self._num_silent else {}
        self._num_silent = 0
        _log.warning(event, extra={**extra, **silent})


_sparing_log = _SparingLog()
