"""What may raise errors and is tried again: episodes of environments, and environments."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from rollserve_server.errors import DomainError, EnvFailedError, shorten
from rollserve_server.sampling.protocol.episodes import EpisodeFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rollserve_server.errors import EpisodeFailedError

__all__ = ["Attempts", "made_again", "tried"]

_T = TypeVar("_T")

_MOST_TEXT, _MOST_PASSING_TEXT = 1000, 256
"""Characters of an error's text, of one that is final and of another: environments may say anything."""


class Attempts:
    """Counts them, and says which episodes may run again. Those that went well are forgotten.

    Attributes:
        num_failures: how many attempts have failed.
    """

    def __init__(self, num_retries: int) -> None:
        """Takes how often an episode may run again."""
        self.num_failures = 0
        self._num_retries = num_retries
        self._num_failed: Counter[int] = Counter()
        self._failures: list[EpisodeFailure] = []
        self._num_lost_steps = 0

    def fail(self, key: int, indices: Iterable[int], error: EpisodeFailedError, num_lost_steps: int = 0) -> bool:
        """Takes in that an attempt has failed; returns whether there may be another.

        Args:
            key: a name for what is run as one.
            indices: the episodes of it that have not ended.
            error: what happened, and where.
            num_lost_steps: how many of their steps are thrown away.
        """
        self.num_failures += 1
        self._num_failed[key] += 1
        num_attempts = self._num_failed[key]
        is_final = num_attempts > self._num_retries
        if is_final:
            del self._num_failed[key]
        most = _MOST_TEXT if is_final else _MOST_PASSING_TEXT
        self._failures.append(EpisodeFailure(tuple(indices), num_attempts, is_final, shorten(error.message, most)))
        self._num_lost_steps += num_lost_steps
        return not is_final

    def succeed(self, key: int) -> None:
        """Takes in that it has gone well."""
        self._num_failed.pop(key, None)

    def take(self) -> tuple[tuple[EpisodeFailure, ...], int]:
        """What has failed, and how many steps were thrown away, since this was last asked."""
        taken = tuple(self._failures), self._num_lost_steps
        self._failures, self._num_lost_steps = [], 0
        return taken


def tried(make: Callable[[], _T], num_retries: int) -> _T:
    """What `make` returns.

    Args:
        make: makes environments.
        num_retries: how often to try again if it raises an error.

    Raises:
        DomainError: that of the last attempt.
    """
    for _ in range(num_retries):
        with contextlib.suppress(DomainError):
            return make()
    return make()


def made_again(make: Callable[[], _T], num_retries: int) -> _T:
    """Like `tried`, for environments of a kind that could be made before.

    Raises:
        EnvFailedError: every attempt has failed.
    """
    try:
        return tried(make, num_retries)
    except DomainError as error:
        raise EnvFailedError(f"it could be made before, and not again: {error.text}") from error
