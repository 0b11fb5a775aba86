"""Orders in flight: sent to a worker, and not answered yet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from rollserve_server.futures import ignore_result

if TYPE_CHECKING:
    from rollserve_server.pool.backends.backend import RemoteBuffer, WorkerHandle
    from rollserve_server.sampling import WorkOrder

__all__ = ["InFlight", "num_steps_coming", "submit"]

_O = TypeVar("_O")
_R = TypeVar("_R")


class InFlight(NamedTuple, Generic[_O, _R]):
    """An order, the report to come, and the buffer that the report's messages will be in."""

    order: _O
    report: asyncio.Future[_R]
    buffer: RemoteBuffer


def submit(worker: WorkerHandle, order: WorkOrder[_R]) -> InFlight[Any, _R]:
    """Send an order to a worker. Nobody has to wait for the report: calls and pools may end before it comes."""
    report, buffer = worker.work(order)
    report.add_done_callback(ignore_result)
    return InFlight(order, report, buffer)


async def num_steps_coming(closing: Iterable[asyncio.Future[None]], reports: Iterable[asyncio.Future[Any]]) -> int:
    """Wait until workers have closed their work; return the steps that they simulated for it up to then."""
    await asyncio.gather(*closing, return_exceptions=True)
    outcomes = await asyncio.gather(*reports, return_exceptions=True)
    return sum(outcome.num_simulated_steps for outcome in outcomes if not isinstance(outcome, BaseException))
