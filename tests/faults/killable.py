"""Workers in threads of the test, which can be killed like processes."""

from __future__ import annotations

from pools import until

from rollserve_server.errors import WorkerLostError
from rollserve_server.pool import InProcessBackend, Pool, WorkerHandle
from rollserve_server.settings import WorkerSettings

__all__ = ["NOTICE_SECONDS", "KillableBackend", "kill_worker"]

NOTICE_SECONDS = {"step_seconds": 2.0}
"""Settings of a pool that notices the loss of an idle worker within 0.5 s."""


class KillableBackend(InProcessBackend):
    """Workers in threads.

    Attributes:
        handles: the latest worker of each slot, by index.
    """

    def __init__(self) -> None:
        self.handles: dict[int, WorkerHandle] = {}

    def create_worker(self, worker_index: int, settings: WorkerSettings) -> WorkerHandle:
        self.handles[worker_index] = super().create_worker(worker_index, settings)
        return self.handles[worker_index]

    def kill(self, worker_index: int) -> None:
        """Lose a worker and everything that it holds."""
        self.handles[worker_index].kill(
            WorkerLostError(f"worker {worker_index} is lost: killed by a test", worker_index)
        )


async def kill_worker(pool: Pool, backend: KillableBackend, worker_index: int) -> None:
    """Kill a worker of the pool, and wait until it is replaced or given up."""
    before = pool.status().workers[worker_index].num_restarts
    backend.kill(worker_index)

    def is_settled() -> bool:
        worker = pool.status().workers[worker_index]
        return worker.given_up or (worker.healthy and worker.num_restarts > before)

    await until(is_settled)
