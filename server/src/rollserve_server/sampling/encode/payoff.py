"""Which columns of a stream gain by something, so that it is not tried in vain with each message."""

from __future__ import annotations

from collections.abc import Hashable

__all__ = ["Payoffs"]

_NUM_SKIPPED = 32
"""How often something that did not help is left out before it is tried again."""


class Payoffs:
    """What was tried with which columns, and whether it helped."""

    def __init__(self) -> None:
        self._num_to_skip: dict[Hashable, int] = {}
        self._helped: set[Hashable] = set()

    def is_due(self, key: Hashable) -> bool:
        """Whether to try. To be asked once for each message."""
        left = self._num_to_skip.get(key, 0)
        if left:
            self._num_to_skip[key] = left - 1
        return not left

    def has_helped(self, key: Hashable) -> bool:
        """Whether it helped the last time."""
        return key in self._helped

    def tell(self, key: Hashable, *, helped: bool) -> None:
        """Takes in what came of it."""
        if helped:
            self._helped.add(key)
        else:
            self._helped.discard(key)
            self._num_to_skip[key] = _NUM_SKIPPED
