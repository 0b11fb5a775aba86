"""Workers whose Ray has ended in this process, before their own process is known to be gone."""

from __future__ import annotations

from typing import Any

import ray.exceptions
from support import raises

from rollserve import Reason
from rollserve_server.errors import WorkerLostError
from rollserve_server.pool.backends.ray.worker import RayWorker
from rollserve_server.sampling import Worker


class _Ended:
    """An actor of a Ray that has ended: all its methods raise Ray's error."""

    def __getattr__(self, name: str) -> Any:
        return self

    def options(self, **_: Any) -> Any:
        return self

    def remote(self, *_: Any, **__: Any) -> Any:
        raise ray.exceptions.RaySystemError("Ray has not been started yet")


async def test_worker_is_lost_when_ray_has_ended() -> None:
    worker = RayWorker(3, _Ended(), kills=None)  # type: ignore[arg-type]  # not looked at
    with raises(WorkerLostError, reason=Reason.WORKER_LOST, match="worker 3"):
        await worker.call(Worker.identity)
    order: Any = object()
    with raises(WorkerLostError, reason=Reason.WORKER_LOST, match="worker 3"):
        worker.work(order)
    worker.stop(1)
    with raises(WorkerLostError, reason=Reason.WORKER_LOST, match="worker 3"):
        await worker.heartbeat()
