"""Workers whose Ray has ended in this process, before their own process is known to be gone."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray.exceptions
from support import raises

from rollserve import Reason
from rollserve_server.errors import WorkerLostError
from rollserve_server.pool.backends.ray import losses
from rollserve_server.pool.backends.ray.losses import ClusterWatch, KernelKills
from rollserve_server.pool.backends.ray.worker import RayWorker
from rollserve_server.pool.workers.liveness import wait_for_loss
from rollserve_server.sampling import Worker
from rollserve_server.settings import HealthSettings


class _Ended:
    """An actor of a Ray that has ended: all its methods raise Ray's error."""

    def __getattr__(self, name: str) -> Any:
        return self

    def options(self, **_: Any) -> Any:
        return self

    def remote(self, *_: Any, **__: Any) -> Any:
        raise ray.exceptions.RaySystemError("Ray has not been started yet")


async def test_worker_is_lost_when_ray_has_ended() -> None:
    worker = RayWorker(3, _Ended(), KernelKills())
    with raises(WorkerLostError, reason=Reason.WORKER_LOST, match="worker 3"):
        await worker.call(Worker.identity)
    order: Any = object()
    with raises(WorkerLostError, reason=Reason.WORKER_LOST, match="worker 3"):
        worker.work(order)
    worker.stop(1)
    error = await wait_for_loss(3, worker, HealthSettings(step_seconds=0.01))  # else the pool's watch raises
    assert error.worker_index == 3


@contextlib.contextmanager
def listeners(folder: Path) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Listen as a cluster's head and as a raylet."""
    with socket.create_server(("127.0.0.1", 0)) as head, socket.socket(socket.AF_UNIX) as raylet:
        raylet.bind(str(folder / "raylet"))
        raylet.listen()
        yield head, raylet


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS])
def test_cluster_is_not_lost_while_the_server_has_no_room_to_look(
    error: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("_HEAD_SECONDS", "_RAYLET_SECONDS"):
        monkeypatch.setattr(losses, name, 0.3)
    monkeypatch.setattr(losses, "_PERIOD_SECONDS", 0.05)
    tried, reported = threading.Semaphore(0), threading.Event()

    def without_room(*_: Any, **__: Any) -> Any:
        tried.release()
        raise OSError(error, "by design")

    with listeners(tmp_path) as (head, raylet):
        address = f"127.0.0.1:{head.getsockname()[1]}"
        with monkeypatch.context() as patch:
            patch.setattr(losses.socket, "socket", without_room)
            watch = ClusterWatch(address, raylet.getsockname(), lambda _: reported.set())
            for _ in range(40):
                assert tried.acquire(timeout=10)
        assert not reported.is_set()
    assert reported.wait(10)
    watch.close()
