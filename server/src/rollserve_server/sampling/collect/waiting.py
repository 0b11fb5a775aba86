"""Episodes that wait for a row, and rows that wait for an episode."""

from __future__ import annotations

import heapq
from typing import Protocol

__all__ = ["Waiting", "WaitingForAnyRow", "WaitingForTheirRows"]


class Waiting(Protocol):
    """Brings together episodes and rows. All rows are free at first."""

    def __len__(self) -> int:
        """How many episodes wait."""
        ...

    def add(self, index: int) -> None:
        """Has an episode wait."""
        ...

    def free(self, row: int) -> None:
        """Takes in that a row is free again."""
        ...

    def remove(self, index: int) -> bool:
        """Has an episode wait no more; returns whether it did."""
        ...

    def take(self, before: int | None) -> tuple[int, int] | None:
        """A free row and the index of the lowest episode for it, both of which wait no more; None if there are none.

        Args:
            before: only an episode of a lower index; None for any.
        """
        ...


class WaitingForAnyRow:
    """Any row may run any episode: they all have the same environment. See Waiting."""

    def __init__(self, num_rows: int) -> None:
        self._free = list(reversed(range(num_rows)))
        self._indices: list[int] = []

    def __len__(self) -> int:
        return len(self._indices)

    def add(self, index: int) -> None:
        """See Waiting."""
        heapq.heappush(self._indices, index)

    def free(self, row: int) -> None:
        """See Waiting."""
        self._free.append(row)

    def remove(self, index: int) -> bool:
        """See Waiting."""
        return _remove(self._indices, index)

    def take(self, before: int | None) -> tuple[int, int] | None:
        """See Waiting."""
        if self._free and self._indices and (before is None or self._indices[0] < before):
            return self._free.pop(), heapq.heappop(self._indices)
        return None


class WaitingForTheirRows:
    """The episode of index i runs in row i modulo their number: the rows' environments differ. See Waiting."""

    def __init__(self, num_rows: int) -> None:
        self._free = set(range(num_rows))
        self._indices: list[list[int]] = [[] for _ in range(num_rows)]
        self._num_waiting = 0
        # Of each free row the lowest index, beside what was so once: see `_is_next`.
        self._next: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return self._num_waiting

    def add(self, index: int) -> None:
        """See Waiting."""
        row = index % len(self._indices)
        heapq.heappush(self._indices[row], index)
        self._num_waiting += 1
        if row in self._free:
            heapq.heappush(self._next, (index, row))

    def free(self, row: int) -> None:
        """See Waiting."""
        self._free.add(row)
        if self._indices[row]:
            heapq.heappush(self._next, (self._indices[row][0], row))

    def remove(self, index: int) -> bool:
        """See Waiting."""
        row = index % len(self._indices)
        waited = _remove(self._indices[row], index)
        self._num_waiting -= waited
        if waited and row in self._free and self._indices[row]:
            heapq.heappush(self._next, (self._indices[row][0], row))
        return waited

    def take(self, before: int | None) -> tuple[int, int] | None:
        """See Waiting."""
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
        """Whether the row is free, and the episode the lowest that waits for it."""
        return row in self._free and self._indices[row][:1] == [index]


def _remove(heap: list[int], index: int) -> bool:
    """Takes an index out of a heap; returns whether it was there."""
    if index not in heap:
        return False
    heap.remove(index)
    heapq.heapify(heap)
    return True
