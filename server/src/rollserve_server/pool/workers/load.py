"""The load of workers: for how long they have had orders."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from rollserve_server.pool.workers.slots import WorkerSlot

__all__ = ["Load"]


class Load:
    """The time in which slots have had orders that are not answered, of all calls together."""

    def __init__(self) -> None:
        """Start without orders."""
        self._num_busy, self._busy_seconds = 0, 0.0
        self._counted_at = time.monotonic()

    @property
    def busy_seconds(self) -> float:
        """Time in which slots have had orders, added up over all slots."""
        now = time.monotonic()
        self._busy_seconds += self._num_busy * (now - self._counted_at)
        self._counted_at = now
        return self._busy_seconds

    def add(self, slot: WorkerSlot, report: asyncio.Future[Any]) -> None:
        """Count a slot as busy until an order is answered, or lost with its worker."""
        if not slot.num_orders:
            self._change_busy(1)
        slot.num_orders += 1
        report.add_done_callback(functools.partial(self._remove, slot))

    def _remove(self, slot: WorkerSlot, _: asyncio.Future[Any]) -> None:
        slot.num_orders -= 1
        if not slot.num_orders:
            self._change_busy(-1)

    def _change_busy(self, change: int) -> None:
        _ = self.busy_seconds  # so far, with the number before
        self._num_busy += change
