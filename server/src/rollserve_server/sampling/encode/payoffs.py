"""A record of attempts to make columns smaller, so that useless attempts are rare."""

from __future__ import annotations

from collections.abc import Hashable

__all__ = ["Payoffs"]

_NUM_SKIPPED = 32
"""Number of messages in which an encoding that did not help is skipped before the next attempt."""


class Payoffs:
    """Outcomes of attempts to make columns smaller."""

    def __init__(self) -> None:
        self._num_to_skip: dict[Hashable, int] = {}
        self._helped: set[Hashable] = set()

    def is_due(self, key: Hashable) -> bool:
        """Whether to make an attempt. Counts the messages, so it has to be asked once for each."""
        left = self._num_to_skip.get(key, 0)
        if left:
            self._num_to_skip[key] = left - 1
        return not left

    def has_helped(self, key: Hashable) -> bool:
        """Whether the last attempt made the column smaller."""
        return key in self._helped

    def record(self, key: Hashable, *, helped: bool) -> None:
        """Record the outcome of an attempt."""
        if helped:
            self._helped.add(key)
        else:
            self._helped.discard(key)
            self._num_to_skip[key] = _NUM_SKIPPED
