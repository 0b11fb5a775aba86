"""Orders in flight: sent to a worker, and not answered yet; and steps that no call can deliver any more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from rollserve_server.futures import ignore_result

if TYPE_CHECKING:
    from rollserve_server.pool.accounts.account import Account
    from rollserve_server.pool.backends.backend import RemoteBuffer, WorkerHandle
    from rollserve_server.sampling import WorkOrder

__all__ = ["DroppedSteps", "InFlight", "submit"]

_O = TypeVar("_O")
_R = TypeVar("_R")


class InFlight(NamedTuple, Generic[_O, _R]):
    """An order, the report to come, the buffer that the report's messages will be in, and when it was sent."""

    order: _O
    report: asyncio.Future[_R]
    buffer: RemoteBuffer
    sent: float


def submit(worker: WorkerHandle, order: WorkOrder[_R]) -> InFlight[Any, _R]:
    """Send an order to a worker. Nobody has to wait for the report: calls and pools may end before it comes."""
    report, buffer = worker.work(order)
    report.add_done_callback(ignore_result)
    return InFlight(order, report, buffer, time.monotonic())


class DroppedSteps:
    """Steps that no call can deliver any more, until an account reports them.

    Attributes:
        num_superseded: number of steps for sequences that ended before any call delivered them.
        num_cancelled: number of steps of calls that ended early.
    """

    def __init__(self) -> None:
        self.num_superseded = 0
        self.num_cancelled = 0

    def report(self, account: Account) -> None:
        """Add what was dropped since the last report to an account."""
        account.num_superseded_steps += self.num_superseded
        account.num_cancelled_steps += self.num_cancelled
        account.num_carried_steps += self.num_superseded + self.num_cancelled
        self.num_superseded = self.num_cancelled = 0

    async def count_coming(
        self, closing: Iterable[asyncio.Future[None]], reports: Iterable[asyncio.Future[Any]], *, cancelled: bool
    ) -> None:
        """Wait until workers have closed their work; count the steps that they simulated for it up to then.

        Args:
            closing: the answers of the workers that close it.
            reports: reports that workers still owe.
            cancelled: whether the steps are of a call that ended early.
        """
        await asyncio.gather(*closing, return_exceptions=True)
        outcomes = await asyncio.gather(*reports, return_exceptions=True)
        num_steps = sum(outcome.num_simulated_steps for outcome in outcomes if not isinstance(outcome, BaseException))
        if cancelled:
            self.num_cancelled += num_steps
        else:
            self.num_superseded += num_steps
