"""Cancelled episodes: a worker has them, but another one has finished or delivered them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

__all__ = ["Cancellations"]


class Cancellations:
    """Cancelled episodes of one worker, until the worker has acknowledged the cancellation."""

    def __init__(self) -> None:
        self._unsent: list[range] = []
        self._counts: Counter[int] = Counter()

    def __bool__(self) -> bool:
        """Whether there are cancellations that the worker does not know yet."""
        return bool(self._unsent)

    def __contains__(self, index: int) -> bool:
        """Whether what the worker reports of an episode is about a cancelled one."""
        return index in self._counts

    def add(self, indices: range) -> None:
        """Record cancelled episodes."""
        self._unsent.append(indices)
        self._counts.update(indices)

    def take(self) -> tuple[range, ...]:
        """Return the cancellations that the worker does not know yet, for the order that tells it."""
        unsent = tuple(self._unsent)
        self._unsent.clear()
        return unsent

    def acknowledge(self, sent: Iterable[range]) -> None:
        """Forget cancellations that came with an answered order: the same episodes may have begun again since."""
        for indices in sent:
            self._counts.subtract(indices)
            for index in indices:
                if not self._counts[index]:
                    del self._counts[index]

    def clear(self) -> None:
        """Forget all: the worker is gone."""
        self._unsent.clear()
        self._counts.clear()
