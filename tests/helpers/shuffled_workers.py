"""Workers in this thread whose order of events a seed decides, and environments for them."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

import rollserve
from rollserve_server.activity import Heartbeat
from rollserve_server.errors import WorkerLostError
from rollserve_server.pool import InProcessBackend, WorkerHandle
from rollserve_server.sampling import Order, Worker, WorkOrder
from rollserve_server.settings import WorkerSettings

_P = ParamSpec("_P")
_R = TypeVar("_R")
NATIVE = rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=2, num_episodes_per_row=2)
ROWS = rollserve.EnvSpec("CartPole-v1", {"max_episode_steps": 15}, vectorization="rows", num_rows=2)


class ShuffledBackend(InProcessBackend):
    """Workers in this thread whose order a seed decides: thousands of orders of events in seconds."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def create_worker(self, worker_index: int, config: WorkerSettings) -> WorkerHandle:
        return _ShuffledWorker(Worker(worker_index, config), self._random)


class _ShuffledWorker:
    def __init__(self, worker: Worker, source: random.Random) -> None:
        self._worker = worker
        self._random = source
        self._last: asyncio.Future[Any] | None = None

    async def call(self, method: Callable[Concatenate[Worker, _P], _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return method(self._worker, *args, **kwargs)

    async def call_urgently(
        self, method: Callable[Concatenate[Worker, _P], _R], *args: _P.args, **kwargs: _P.kwargs
    ) -> _R:
        return await self.call(method, *args, **kwargs)

    async def aside(self, method: Callable[Concatenate[Worker, _P], _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return await asyncio.to_thread(method, self._worker, *args, **kwargs)

    def work(self, order: WorkOrder[_R]) -> tuple[asyncio.Future[_R], _Buffer]:
        answer = self._last = asyncio.ensure_future(self._work_later(order, self._last))
        return asyncio.ensure_future(_report(answer)), _Buffer(answer)

    def stop(self, work_id: int) -> None:
        self._worker.stop(work_id)

    async def heartbeat(self) -> Heartbeat:
        return self._worker.heartbeat()

    def kill(self, error: WorkerLostError | None = None) -> None:
        pass

    async def _work_later(self, order: WorkOrder[_R], last: asyncio.Future[Any] | None) -> tuple[_R, NDArray[np.uint8]]:
        if last is not None:
            await asyncio.wait({last})
        for _ in range(self._random.choice([0, 0, 1, 5, 20, 100])):
            await asyncio.sleep(0)
        if isinstance(order, Order) and order.seconds > 0:
            order = dataclasses.replace(order, seconds=self._random.choice([1e-9, 1e-9, 1e-3, 1.0]))
        return self._worker.work(order)


class _Buffer:
    def __init__(self, answer: asyncio.Future[tuple[Any, NDArray[np.uint8]]]) -> None:
        self._answer = answer

    async def get(self) -> NDArray[np.uint8]:
        _, buffer = await self._answer
        return buffer


async def _report(answer: asyncio.Future[tuple[_R, NDArray[np.uint8]]]) -> _R:
    report, _ = await answer
    return report
