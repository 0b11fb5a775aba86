"""What the pool needs of whatever runs its workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio

    import numpy as np
    from numpy.typing import NDArray

    from rollserve_server.activity import Heartbeat
    from rollserve_server.errors import WorkerLostError
    from rollserve_server.pool.journal.journal import Journal
    from rollserve_server.sampling import Worker, WorkOrder
    from rollserve_server.settings import WorkerSettings

__all__ = ["Backend", "RemoteBuffer", "WorkerHandle"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


class RemoteBuffer(Protocol):
    """A buffer of messages, wherever it is."""

    async def get(self) -> NDArray[np.uint8]:
        """The buffer, not to be written to.

        Raises:
            WorkerLostError: it went with its worker.
        """
        ...


class WorkerHandle(Protocol):
    """A worker elsewhere. What it is asked is done in that order, one at a time, but for `stop` and `heartbeat`."""

    async def call(self, method: Callable[Concatenate[Worker, _P], _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Calls a method of the worker.

        Raises:
            DomainError: as the method does.
            OverLimitError: there is no room for the arguments or for what the method returns.
            WorkerLostError: the worker's process is gone.
        """
        ...

    def work(self, order: WorkOrder[_R]) -> tuple[asyncio.Future[_R], RemoteBuffer]:
        """Asks for `Worker.work`. The report can be awaited without its payload. Errors as of `call`."""
        ...

    def stop(self, work_id: int) -> None:
        """Calls `Worker.stop` at once, beside what is being done, without waiting for it."""
        ...

    async def heartbeat(self) -> Heartbeat:
        """Calls `Worker.heartbeat` at once, beside what is being done.

        Raises:
            WorkerLostError: the worker's process is gone.
        """
        ...

    def kill(self, error: WorkerLostError | None = None) -> None:
        """Ends the worker without asking it. All that it has not answered fails, with the error if there is one."""
        ...


class Backend(Protocol):
    """Makes workers."""

    def create_worker(self, worker_index: int, settings: WorkerSettings) -> WorkerHandle:
        """A new worker, perhaps not started yet."""
        ...

    async def open_journal(self) -> Journal:
        """What is to outlive this server of the pool that its workers are for, before any of them are made.

        Raises:
            SamplerLostError: another server has the sampler.
        """
        ...

    def find_worker(self, worker_index: int) -> WorkerHandle | None:
        """A worker that an earlier server has left, which does nothing now; None if there is none."""
        ...

    def share(self, value: _R) -> _R:
        """What stands for a value that several workers are to get, so that it is copied once for all of them.

        It is of use as an argument of `WorkerHandle.call` only. Waits for the copy.

        Raises:
            OverLimitError: there is no room for it.
        """
        ...

    def default_num_workers(self) -> int:
        """As many workers as there are cores for."""
        ...

    def watch(self, on_lost: Callable[[str], None]) -> None:
        """Begins to look whether workers can still be had.

        Args:
            on_lost: called once, from any thread, with the reason, when they cannot: only a new backend helps then,
                and calls of this one may wait for ever.
        """
        ...

    def close(self) -> None:
        """Ends what the backend itself has started. Its workers are to be ended before."""
        ...
