"""Attempts at episodes whose environments may raise errors, and their errors."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from rollserve_server.errors import EpisodeFailedError, shorten
from rollserve_server.sampling.protocol.orders import EpisodeFailure

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Attempts", "with_episode"]

_Failed = TypeVar("_Failed", bound=EpisodeFailedError)

_MAX_FINAL_CHARACTERS = 1000
"""Length to which the text of a final error is shortened: environments may raise errors with texts of any length."""

_MAX_PASSING_CHARACTERS = 256
"""Length to which the text of an error is shortened whose episode runs again."""


class Attempts:
    """Failed attempts at work units, which run again until they have failed too often.

    Attributes:
        num_failures: number of attempts that have failed.
    """

    def __init__(self, num_retries: int) -> None:
        """Start without failures; a unit may run again `num_retries` times."""
        self.num_failures = 0
        self._num_retries = num_retries
        self._num_failed: Counter[int] = Counter()
        self._failures: list[EpisodeFailure] = []
        self._num_lost_steps = 0

    def fail(self, key: int, indices: Iterable[int], error: EpisodeFailedError, num_lost_steps: int = 0) -> bool:
        """Record a failed attempt; return whether another attempt is allowed.

        Args:
            key: number of the unit.
            indices: indices of the unit's episodes that have not ended.
            error: the error, with the episode in its text.
            num_lost_steps: number of the episodes' steps that are thrown away.
        """
        self.num_failures += 1
        self._num_failed[key] += 1
        num_attempts = self._num_failed[key]
        is_final = num_attempts > self._num_retries
        if is_final:
            del self._num_failed[key]
        max_characters = _MAX_FINAL_CHARACTERS if is_final else _MAX_PASSING_CHARACTERS
        text = shorten(error.message, max_characters)
        self._failures.append(EpisodeFailure(tuple(indices), num_attempts, is_final, text))
        self._num_lost_steps += num_lost_steps
        return not is_final

    def succeed(self, key: int) -> None:
        """Forget the failed attempts at a unit, which has succeeded."""
        self._num_failed.pop(key, None)

    def take(self) -> tuple[tuple[EpisodeFailure, ...], int]:
        """Return the failures, and the number of steps thrown away for them, since the last call."""
        taken = tuple(self._failures), self._num_lost_steps
        self._failures, self._num_lost_steps = [], 0
        return taken


def with_episode(error: _Failed, index: int, env_seed: int, num_steps: int) -> _Failed:
    """Return the error with the episode that it was raised in, after `num_steps` steps."""
    where = f"episode {index} (environment seed {env_seed}), after {num_steps} steps"
    return type(error)(f"{where}: {error.message}", error.row, index)
