"""The interface between the pool and whatever runs its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection

    import numpy as np
    from numpy.typing import NDArray

    from rollserve_server.activity import Heartbeat
    from rollserve_server.envs import RelayPlace
    from rollserve_server.errors import WorkerLostError
    from rollserve_server.pool.journal.journal import Journal
    from rollserve_server.pool.state.saved_sampler import SavedSampler
    from rollserve_server.sampling import Worker, WorkOrder
    from rollserve_server.settings import WorkerSettings

__all__ = ["Backend", "RemoteBuffer", "ServerBackend", "WorkerHandle"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


class RemoteBuffer(Protocol):
    """A buffer of messages, wherever it is."""

    async def get(self) -> NDArray[np.uint8]:
        """Fetch the buffer, which is read-only.

        Raises:
            WorkerLostError: the buffer was lost with its worker.
        """
        ...


class WorkerHandle(Protocol):
    """A handle of one worker. The worker runs calls and orders one after the other, in the order they were made.

    `stop`, `heartbeat` and `aside` do not wait for them.

    Attributes:
        is_outdated: whether a server of another version has made the worker.
    """

    is_outdated: bool

    async def call(self, method: Callable[Concatenate[Worker, _P], _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Call a method of the worker; return its result.

        Raises:
            DomainError: the method raised it.
            OverLimitError: there is no room for the arguments or for the result.
            WorkerLostError: the worker's process is gone.
        """
        ...

    async def call_urgently(
        self, method: Callable[Concatenate[Worker, _P], _R], *args: _P.args, **kwargs: _P.kwargs
    ) -> _R:
        """Call a method of the worker, whose orders before it make no more than a step; return and raise as `call`."""
        ...

    async def aside(self, method: Callable[Concatenate[Worker, _P], _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Call a method that may run beside calls and orders, at once; return its result.

        Raises:
            DomainError: the method raised it.
            WorkerLostError: the worker's process is gone.
        """
        ...

    def work(self, order: WorkOrder[_R]) -> tuple[asyncio.Future[_R], RemoteBuffer]:
        """Send an order to `Worker.work`; return its report and its buffer, which are awaited separately.

        The report raises the same errors as `call`.
        """
        ...

    def stop(self, work_id: int) -> None:
        """Call `Worker.stop` at once, without waiting for the result."""
        ...

    async def heartbeat(self) -> Heartbeat:
        """Call `Worker.heartbeat` at once; return its result.

        Raises:
            WorkerLostError: the worker's process is gone.
        """
        ...

    def kill(self, error: WorkerLostError | None = None) -> None:
        """End the worker at once. Its unanswered calls and orders fail, with this error if there is one."""
        ...


class Backend(Protocol):
    """A maker of workers."""

    def create_worker(self, worker_index: int, settings: WorkerSettings) -> WorkerHandle:
        """Return a new worker, which may start in the background."""
        ...

    async def open_journal(self, check: Callable[[SavedSampler], object]) -> Journal:
        """Return the journal of the sampler, open for this server. To be called before workers are created.

        Args:
            check: raises an InvalidValueError if this server cannot go on with the state that another server left.

        Raises:
            SamplerLostError: another server has the sampler, or the journal does not start.
            InvalidValueError: this server cannot read the journal that an earlier one left, or not go on with it.
        """
        ...

    def find_worker(self, worker_index: int) -> WorkerHandle | None:
        """Return a worker that an earlier server left, and that is idle now; None if there is none."""
        ...

    async def end_other_workers(self) -> None:
        """End what workers earlier servers left that `find_worker` does not return.

        Raises:
            SamplerLostError: another server may have the sampler by now.
        """
        ...

    def share(self, value: _R) -> _R:
        """Return a stand-in for a value that several workers get, so that it is copied once for all of them.

        Only arguments of `WorkerHandle.call` may be stand-ins. Blocks until the value is copied.

        Raises:
            OverLimitError: there is no room for the value.
        """
        ...

    def has_room(self) -> bool:
        """Return whether there is probably room for one more worker."""
        ...

    def leaving_nodes(self) -> Collection[str] | None:
        """Return the ids of machines that are about to leave, as `WorkerIdentity` has them; None if none ever does."""
        ...

    def default_num_workers(self) -> int:
        """Return the number of workers that have a core each."""
        ...

    def watch(self, on_lost: Callable[[str], None]) -> None:
        """Start to watch whether the backend can still run workers.

        Args:
            on_lost: called once, from any thread, with the reason why it cannot. Only a new backend helps then; calls
                of this one may wait for ever.
        """
        ...

    def close(self) -> None:
        """End what the backend itself has started. Its workers have to be ended before."""
        ...


class ServerBackend(Backend, Protocol):
    """The backend of a server, which may have further samplers.

    Attributes:
        standing_by: set while `open_journal` waits for the end of the server that has the sampler.
        relay: where workers reach the hosts of the server's gateway; None for no place. Workers that are made or taken
            over have it.
    """

    standing_by: asyncio.Event
    relay: RelayPlace | None

    def own_address(self) -> str:
        """Return the address that workers reach this process by."""
        ...

    def of_sampler(self, name: str, *, adopt: bool) -> Backend:
        """Return the backend of another sampler on the same cluster, with a journal and workers of its own.

        Args:
            name: name of the sampler.
            adopt: whether to take over a sampler of this name that an earlier server left; else it ends.
        """
        ...

    def directory(self) -> str:
        """Return what the server that had the sampler before has written with `write_directory`; empty for nothing."""
        ...

    async def write_directory(self, directory: str) -> None:
        """Keep a directory of other samplers for as long as this one, if it outlives its server.

        Raises:
            SamplerLostError: another server may have the sampler by now.
        """
        ...
