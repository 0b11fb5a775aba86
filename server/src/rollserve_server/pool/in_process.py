"""Workers as threads of this process: for tests, and for a machine where nothing else may be started."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from rollserve_server.sampling import Worker

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rollserve_server.sampling import WorkerConfig, WorkOrder

__all__ = ["InProcessBackend"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


class InProcessBackend:
    """See Backend."""

    def create_worker(self, worker_index: int, config: WorkerConfig) -> _ThreadWorker:
        """See Backend."""
        return _ThreadWorker(worker_index, config)

    def share(self, value: _R) -> _R:
        """See Backend."""
        return value

    def default_num_workers(self) -> int:
        """See Backend."""
        return len(os.sched_getaffinity(0))

    def close(self) -> None:
        """See Backend."""


class _ThreadWorker:
    def __init__(self, worker_index: int, config: WorkerConfig) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"worker-{worker_index}")
        self._worker = self._executor.submit(Worker, worker_index, config)

    async def call(self, method: Callable[Concatenate[Worker, _P], _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return await asyncio.wrap_future(self._submit(method, *args, **kwargs))

    def work(self, order: WorkOrder[_R]) -> tuple[asyncio.Future[_R], _FuturePayload]:
        future = self._submit(Worker.work, order)
        return asyncio.ensure_future(_report(future)), _FuturePayload(future)

    def stop(self, stream_id: int) -> None:
        self._worker.add_done_callback(lambda worker: worker.result().stop(stream_id))

    def kill(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _submit(self, method: Callable[Concatenate[Worker, _P], _R], *args: _P.args, **kwargs: _P.kwargs) -> Future[_R]:
        return self._executor.submit(lambda: method(self._worker.result(), *args, **kwargs))


class _FuturePayload:
    def __init__(self, future: Future[tuple[Any, NDArray[np.uint8]]]) -> None:
        self._future = future

    async def get(self) -> NDArray[np.uint8]:
        _, buffer = await asyncio.wrap_future(self._future)
        return buffer


async def _report(future: Future[tuple[_R, NDArray[np.uint8]]]) -> _R:
    report, _ = await asyncio.wrap_future(future)
    return report
