"""A Ray backend whose pools reuse the processes of earlier pools: to start one takes over a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from rollserve_server.activity import Heartbeat
from rollserve_server.errors import WorkerLostError
from rollserve_server.pool import RemoteBuffer
from rollserve_server.pool.backends.ray.backend import RayBackend
from rollserve_server.pool.backends.ray.worker import RayWorker
from rollserve_server.sampling import Worker, WorkOrder
from rollserve_server.settings import WorkerSettings

_P = ParamSpec("_P")
_R = TypeVar("_R")


class RecyclingBackend(RayBackend):
    """A Ray backend that keeps workers that a pool has closed, for pools with the same or other settings.

    Attributes:
        recycles: whether it does; if not, processes of workers end as on a server.
    """

    recycles = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._idle: list[RayWorker] = []

    def create_worker(self, worker_index: int, settings: WorkerSettings) -> Any:
        """Return a worker in a process that is idle, or in a new one."""
        if not self._idle:
            return _RecycledWorker(super().create_worker(worker_index, settings), self._idle)
        worker = self._idle.pop()
        worker.index = worker_index
        worker.connect()  # in the event loop of this test
        return _RecycledWorker(worker, self._idle, settings)


class _RecycledWorker:
    """A handle whose process becomes idle instead of being killed, if the pool has closed the worker first."""

    def __init__(self, worker: RayWorker, idle: list[RayWorker], settings: WorkerSettings | None = None) -> None:
        self._worker = worker
        self._idle = idle
        # Of a process that had another worker: makes a new one there.
        self._made = asyncio.ensure_future(self._make(settings)) if settings else None
        self._is_closed = False
        self._is_gone = False

    async def _make(self, settings: WorkerSettings) -> None:
        await self._worker.call(Worker.__init__, self._worker.index, settings)

    async def call(self, method: Callable[Concatenate[Worker, _P], _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        if self._made is not None:
            await asyncio.shield(self._made)
        result = await self._worker.call(method, *args, **kwargs)
        self._is_closed = method is Worker.close
        return result

    async def call_urgently(
        self, method: Callable[Concatenate[Worker, _P], _R], *args: _P.args, **kwargs: _P.kwargs
    ) -> _R:
        if self._made is not None:
            await asyncio.shield(self._made)
        return await self._worker.call_urgently(method, *args, **kwargs)

    async def aside(self, method: Callable[Concatenate[Worker, _P], _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        if self._made is not None:
            await asyncio.shield(self._made)
        return await self._worker.aside(method, *args, **kwargs)

    def work(self, order: WorkOrder[_R]) -> tuple[asyncio.Future[_R], RemoteBuffer]:
        return self._worker.work(order)

    def stop(self, work_id: int) -> None:
        self._worker.stop(work_id)

    async def heartbeat(self) -> Heartbeat:
        return await self._worker.heartbeat()

    def kill(self, error: WorkerLostError | None = None) -> None:
        if self._is_gone:
            return
        self._is_gone = True
        if self._is_closed and error is None and RecyclingBackend.recycles:
            self._worker.disconnect()
            self._idle.append(self._worker)
        else:
            self._worker.kill(error)
