"""Episodes that were begun a second time, on another worker. Pure, as the plan that they are of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollserve_server.pool.plan.ledger import Ledger

__all__ = ["Duplicates"]


class Duplicates:
    """Those of a ledger. Of each episode there is one at a time, and the one of the two that ends first counts.

    Attributes:
        redundant: workers, and an episode that each of them has in vain.
    """

    def __init__(self, ledger: Ledger, num_open: list[int]) -> None:
        """Takes what it keeps up to date: the ledger, and how many episodes each worker has that have not ended."""
        self._ledger = ledger
        self._num_open = num_open
        self.redundant: list[tuple[int, int]] = []

    def begin(
        self,
        worker: int,
        awaited: Iterable[int],
        is_late: Callable[[int], bool],
        room: int,
        unit_of: Callable[[int], range],
    ) -> list[range]:
        """Episodes to begin a second time on a worker; see `Plan.begin_duplicates`.

        Args:
            worker: which one.
            awaited: episodes that run, in their order.
            is_late: says of one of those whether it is late.
            room: how many there may be.
            unit_of: says which episodes run together with one.
        """
        ledger = self._ledger
        ranges: list[range] = []
        for index in awaited:
            if room <= 0 or not is_late(index):
                break
            owner = ledger.workers[index]
            if owner == worker or index in ledger.duplicates:
                continue
            stop = index + 1
            while stop < unit_of(index).stop and ledger.workers.get(stop) == owner and stop not in ledger.duplicates:
                stop += 1
            ledger.duplicates.update(dict.fromkeys(range(index, stop), worker))
            self._num_open[worker] += stop - index
            room -= stop - index
            ranges.append(range(index, stop))
        return ranges

    def give_up(self, index: int, worker: int) -> None:
        """Takes in that a worker gave up an episode that was begun twice: it is the other's alone now."""
        ledger = self._ledger
        duplicate = ledger.duplicates.pop(index)
        if worker != duplicate:
            ledger.workers[index] = duplicate

    def settle(self, index: int, worker: int | None) -> bool:
        """Takes in where an episode has ended that was begun twice; returns whether it is the first of the two."""
        ledger = self._ledger
        owner, duplicate = ledger.workers[index], ledger.duplicates.pop(index)
        if worker != duplicate or index in ledger.sizes:
            self._num_open[duplicate] -= 1
            self.redundant.append((duplicate, index))
            return worker != duplicate
        self._num_open[owner] -= 1
        self.redundant.append((owner, index))
        ledger.workers[index] = duplicate
        return True
