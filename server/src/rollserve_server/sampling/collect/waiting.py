"""Queues that match episodes with free rows."""

from __future__ import annotations

import heapq

__all__ = ["WaitingForAnyRow", "WaitingForOwnRow"]


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


class WaitingForOwnRow:
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
