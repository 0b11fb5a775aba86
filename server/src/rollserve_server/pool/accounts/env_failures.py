"""Errors that environments raise: in the account, in the counters and in the log."""

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

_MAX_REPORTED = 64  # episodes in an account
_MAX_TEXT = 256  # characters of an error in an account
_MAX_LINES, _LINE_SECONDS = 4, 0.25
"""Burst of log lines, and the seconds after which one more is allowed."""


@dataclass(eq=False)
class FailedEpisode:
    """An episode whose environment raised an error, or the first of several that run as one.

    Attributes:
        index: index of the episode; in a population, number of the work unit.
        worker: index of the worker that ran it.
        num_attempts: number of attempts that failed.
        text: the last error, in full.
        is_skipped: whether the call goes on without the episode.
    """

    index: int
    worker: int
    num_attempts: int
    text: str
    is_skipped: bool = False

    @classmethod
    def of(cls, worker: int, failure: EpisodeFailure) -> FailedEpisode:
        """Return the episode of a failure that a worker reported."""
        return cls(failure.indices[0], worker, failure.num_attempts, failure.text)

    @property
    def short_text(self) -> str:
        """The beginning of the error."""
        return shorten(self.text, _MAX_TEXT)

    @property
    def final_text(self) -> str:
        """The error, and the number of attempts."""
        return self.text if self.num_attempts == 1 else f"{self.text} (the last of {self.num_attempts} attempts)"


class EnvFailures:
    """Errors that environments raised in one call.

    Attributes:
        num_failures: number of errors.
        num_skipped: number of episodes that the call goes on without.
        reported: by index, the first episodes that failed.
    """

    def __init__(self) -> None:
        self.num_failures = 0
        self.num_skipped = 0
        self.reported: dict[int, FailedEpisode] = {}

    def add(self, worker: int, failure: EpisodeFailure) -> None:
        """Add an error that a worker reported, and log it."""
        self.num_failures += 1
        failed = FailedEpisode.of(worker, failure)
        self._report(failed)
        fate = "given up" if failure.is_final else "runs again"
        _throttled_log.warn(
            "environment failed",
            {"worker": worker, "attempt": failure.num_attempts, "episodes": fate, "error": failed.short_text},
        )

    def skip(self, episodes: Iterable[FailedEpisode]) -> None:
        """Add episodes that the call goes on without; one that stands for several comes once for each of them."""
        for failed in episodes:
            failed.is_skipped = True
            self.num_skipped += 1
            self._report(failed)

    def add_prefetched(self, prefetched: EnvFailures) -> None:
        """Add the errors of episodes that were sampled between calls; what the call found out about them counts."""
        self.num_failures += prefetched.num_failures
        reported, self.reported = {**prefetched.reported, **self.reported}, {}
        for failed in reported.values():
            self._report(failed)

    def _report(self, failed: FailedEpisode) -> None:
        if failed.index in self.reported or len(self.reported) < _MAX_REPORTED:
            self.reported[failed.index] = failed


class _ThrottledLog:
    """A log that takes a few lines a second, and counts the others."""

    def __init__(self) -> None:
        self._num_left, self._num_silent, self._since = float(_MAX_LINES), 0, 0.0

    def warn(self, event: str, extra: dict[str, object]) -> None:
        now = time.monotonic()
        self._num_left = min(self._num_left + (now - self._since) / _LINE_SECONDS, _MAX_LINES)
        self._since = now
        if self._num_left < 1:
            self._num_silent += 1
            return
        self._num_left -= 1
        silent = {"not_logged_before": self._num_silent} if self._num_silent else {}
        self._num_silent = 0
        _log.warning(event, extra={**extra, **silent})


_throttled_log = _ThrottledLog()
