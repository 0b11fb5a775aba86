"""Duplicates: second runs of stragglers, on another worker than the first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollserve_server.pool.plan.ledger import Ledger

__all__ = ["Duplicates"]


class Duplicates:
    """Duplicates of a ledger's episodes: at most one of each at a time. The run that ends first counts.

    Attributes:
        redundant: workers, each with an episode that it has although the other run counts. The caller removes them.
    """

    def __init__(self, ledger: Ledger, num_open: list[int]) -> None:
        """Continue with the duplicates that the ledger has.

        Args:
            ledger: the ledger; kept up to date here.
            num_open: for each worker, the number of runs that have not ended; kept up to date here.
        """
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
        """Return episodes that a worker begins a second time; see `Plan.begin_duplicates`.

        Args:
            worker: index of the worker.
            awaited: running episodes, in the order in which the call waits for them.
            is_late: returns whether a running episode is late.
            room: maximum number of episodes, apart from the rest of a work unit.
            unit_of: returns the work unit of an episode.
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
        """Record that a worker gave up an episode with a duplicate: only the other worker has the episode now."""
        ledger = self._ledger
        duplicate = ledger.duplicates.pop(index)
        if worker != duplicate:
            ledger.workers[index] = duplicate

    def settle(self, index: int, worker: int | None) -> bool:
        """Record where an episode with a duplicate has ended; return whether that run is the first to end."""
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
