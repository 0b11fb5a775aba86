"""Workers that are lost on demand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from rollserve_server.errors import WorkerLostError
from rollserve_server.pool import InProcessBackend, RemoteBuffer, ThreadWorker
from rollserve_server.testing.faults import Faults, KillWorker

if TYPE_CHECKING:
    from rollserve_server.sampling import WorkOrder
    from rollserve_server.settings import WorkerSettings

__all__ = ["FaultyBackend"]

_R = TypeVar("_R")


class FaultyBackend(InProcessBackend):
    """A maker of workers that are threads, and that `KillWorker` ends."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def create_worker(self, worker_index: int, settings: WorkerSettings) -> ThreadWorker:
        """Return a new worker, which starts in its thread."""
        return _MortalWorker(worker_index, settings, self._faults)

    def of_sampler(self, name: str, *, adopt: bool) -> FaultyBackend:
        """Return the backend itself, which has no state."""
        return self


class _MortalWorker(ThreadWorker):
    def __init__(self, worker_index: int, settings: WorkerSettings, faults: Faults) -> None:
        super().__init__(worker_index, settings)
        self._faults = faults

    def work(self, order: WorkOrder[_R]) -> tuple[asyncio.Future[_R], RemoteBuffer]:
        answer = super().work(order)
        if self._faults.take(KillWorker, lambda fault: fault.worker_index in (None, self.index)):
            self.kill(WorkerLostError(f"worker {self.index} is lost: a test has asked for it", self.index))
        return answer
