"""Has workers forget the versions that nobody needs any more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from rollserve_server.sampling import Worker

if TYPE_CHECKING:
    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.pool.workers.workers import Workers

__all__ = ["Eviction"]


class Eviction:
    """Tells workers, in the background, which versions to keep."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._tasks: set[asyncio.Task[object]] = set()
        # Of each worker, the versions that it was told to keep since it was last given any.
        self._told: WeakKeyDictionary[WorkerHandle, tuple[set[int], set[int]]] = WeakKeyDictionary()

    def reset(self) -> None:
        """Takes in that workers are given versions which they have not been told of."""
        self._told.clear()

    def evict_except(self, envs: set[int], policies: set[int]) -> None:
        """Has all workers forget all versions but these."""
        for slot in self._workers.everyone:
            # Nearly always nothing has changed since the call before: asking in vain would hold up a short one.
            if slot.healthy and self._told.get(slot.handle) != (envs, policies):
                self._told[slot.handle] = envs, policies
                task = asyncio.ensure_future(slot.handle.call(Worker.retain, envs, policies))
                self._tasks.add(task)
                task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a worker that is lost is found out when it is needed
