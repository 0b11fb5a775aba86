"""Open work: what workers hold of a sequence or population, orders in flight, and steps that no call can deliver."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from rollserve_server.futures import ignore_result, in_background
from rollserve_server.sampling import Order, Report, Worker

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rollserve_server.pool.accounts import Account
    from rollserve_server.pool.backends.backend import RemoteBuffer, WorkerHandle
    from rollserve_server.pool.plan.ledger import Ledger, Placement
    from rollserve_server.pool.workers.slots import Workforce
    from rollserve_server.sampling import Claim, SequenceSpec, WorkOrder


__all__ = ["DroppedSteps", "InFlight", "OpenSequence", "OpenWork", "WorkLocation", "submit"]

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


class WorkLocation(NamedTuple):
    """A worker that has work, and the name of the work there."""

    handle: WorkerHandle
    work_id: int

    def stop(self) -> None:
        """Have the worker stop what it does for the work, at once."""
        self.handle.stop(self.work_id)

    def close(self) -> asyncio.Task[None]:
        """Have the worker close the work; return the task that waits for it."""
        return in_background(self.handle.call(Worker.close_work, self.work_id))


class OpenWork(Generic[_O, _R]):
    """The work of a workforce on one sequence or population.

    Attributes:
        work_id: name of the work.
        workforce: workers that may do it.
        handles: for each slot, the worker that has the work, or None.
        in_flight: for each slot, orders that are not answered.
        held_steps: for each slot, steps that were simulated and are not delivered.
    """

    def __init__(self, work_id: int, workforce: Workforce) -> None:
        self.work_id = work_id
        self.workforce = workforce
        num_workers = len(workforce.slots)
        self.handles: list[WorkerHandle | None] = [None] * num_workers
        self.in_flight: Sequence[deque[InFlight[_O, _R]]] = [deque() for _ in range(num_workers)]
        self.held_steps = [0] * num_workers

    @property
    def num_held_steps(self) -> int:
        """Number of steps that were simulated and are not delivered."""
        return sum(self.held_steps)

    def close(self) -> list[asyncio.Task[None]]:
        """Have the workers stop and close the work; return the tasks that wait for them."""
        closing = []
        for handle, in_flight in zip(self.handles, self.in_flight, strict=True):
            if handle is not None:
                location = WorkLocation(handle, self.work_id)
                if in_flight:
                    location.stop()
                closing.append(location.close())
        return closing


class OpenSequence(OpenWork[Order, Report]):
    """A sequence whose episodes workers have begun.

    Attributes:
        spec: what its episodes are a function of, and the name of the workers' work on it.
        placement: which worker an episode belongs to.
        ledger: episodes that were begun and are not claimed.
        releases: by slot, claims that the worker keeps although they are delivered, because it wrote them early.
        cancellations: by slot, cancelled episodes that the worker may still have.
        claim_names: names for claims.
        begun_at: for each running episode, when its order was sent.
    """

    def __init__(self, spec: SequenceSpec, placement: Placement, ledger: Ledger, workforce: Workforce) -> None:
        super().__init__(spec.work_id, workforce)
        self.spec = spec
        self.placement = placement
        self.ledger = ledger
        self.releases: dict[int, list[Claim]] = {}
        self.cancellations: dict[int, Cancellations] = {}
        self.claim_names = itertools.count()
        self.begun_at: dict[int, float] = {}

    def extend(self, workforce: Workforce) -> bool:
        """Let workers be used that were added to those of the sequence; return false if not all of those are left."""
        if not workforce.begins_with(self.workforce):
            return False
        num_added = len(workforce) - len(self.workforce)
        self.workforce = workforce
        self.handles += [None] * num_added
        self.in_flight = [*self.in_flight, *(deque() for _ in range(num_added))]
        self.held_steps += [0] * num_added
        return True

    def cancel(self, worker: int, indices: range) -> None:
        """Have a worker drop episodes that another one has finished or delivered."""
        self.cancellations.setdefault(worker, Cancellations()).add(indices)

    def forget(self, worker: int) -> None:
        """Expect nothing more of a worker that is gone."""
        self.in_flight[worker].clear()
        self.releases.pop(worker, None)
        self.cancellations.pop(worker, None)
        self.handles[worker] = None


class Cancellations:
    """Cancelled episodes of one worker, until the worker has acknowledged the cancellation."""

    def __init__(self) -> None:
        self._unsent: list[range] = []
        self._counts: Counter[int] = Counter()

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
