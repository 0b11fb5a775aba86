"""Open work: workers that hold one sequence or population, and what they owe."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from rollserve_server.futures import in_background
from rollserve_server.sampling import Worker

if TYPE_CHECKING:
    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.pool.sequences.in_flight import InFlight
    from rollserve_server.pool.workers.workforce import Workforce

__all__ = ["OpenWork", "WorkLocation"]

_O = TypeVar("_O")
_R = TypeVar("_R")


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
        self.handles: list[WorkerHandle | None] = [None for _ in workforce]
        self.in_flight: Sequence[deque[InFlight[_O, _R]]] = [deque() for _ in workforce]
        self.held_steps = [0 for _ in workforce]

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
