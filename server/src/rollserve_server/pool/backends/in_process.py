"""The in-process backend: workers as threads of the server, for tests and where no other process may be started."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import itertools
import logging
import os
import queue
import threading
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from rollserve_server.errors import FaultError, WorkerLostError, portable
from rollserve_server.pool.journal.journal import NoJournal
from rollserve_server.sampling import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from rollserve_server.activity import Heartbeat
    from rollserve_server.envs import RelayPlace
    from rollserve_server.pool.backends.backend import RemoteBuffer
    from rollserve_server.pool.state.saved_sampler import SavedSampler
    from rollserve_server.sampling import WorkOrder
    from rollserve_server.settings import WorkerSettings

__all__ = ["InProcessBackend", "ThreadWorker"]

_log = logging.getLogger(__name__)

_P = ParamSpec("_P")
_R = TypeVar("_R")


class InProcessBackend:
    """A maker of workers that are threads. A thread cannot be killed: one that hangs ends when it wakes up."""

    standing_by = asyncio.Event()
    """Never set: no sampler is another server's."""
    relay: RelayPlace | None = None

    def create_worker(self, worker_index: int, settings: WorkerSettings) -> ThreadWorker:
        """Return a new worker, which starts in its thread."""
        return ThreadWorker(worker_index, settings, self.relay)

    def own_address(self) -> str:
        """Return an address of this machine that only its own processes reach."""
        return "127.0.0.1"

    async def open_journal(self, check: Callable[[SavedSampler], object]) -> NoJournal:
        """Return a journal that keeps nothing."""
        return NoJournal()

    def of_sampler(self, name: str, *, adopt: bool) -> InProcessBackend:
        """Return the backend itself, which has no state."""
        return self

    def directory(self) -> str:
        """Return nothing: no sampler outlives its server."""
        return ""

    async def write_directory(self, directory: str) -> None:
        """Keep nothing."""

    def find_worker(self, worker_index: int) -> None:
        """Return None: no worker outlives its server."""

    async def end_other_workers(self) -> None:
        """End none: no worker outlives its server."""

    def share(self, value: _R) -> _R:
        """Return the value itself, which workers share."""
        return value

    def has_room(self) -> bool:
        """Return True: threads can always be started."""
        return True

    def leaving_nodes(self) -> None:
        """Return None: this machine does not leave."""

    def default_num_workers(self) -> int:
        """Return the number of cores that this process may use."""
        return len(os.sched_getaffinity(0))

    def watch(self, on_lost: Callable[[str], None]) -> None:
        """Watch nothing: threads can always be started."""

    def close(self) -> None:
        """End nothing."""


class ThreadWorker:
    """A handle of a worker that is a thread."""

    is_outdated = False

    def __init__(self, worker_index: int, settings: WorkerSettings, relay: RelayPlace | None = None) -> None:
        self.index = worker_index
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._unanswered: set[Future[Any]] = set()
        self._lost: WorkerLostError | None = None
        self._urgent_numbers = itertools.count(1)
        # Not a thread of an executor: one that hangs would keep the process from ending.
        name = f"worker-{worker_index}"
        threading.Thread(target=_run_queue, args=(self._queue,), name=name, daemon=True).start()
        self._worker = self._enqueue(lambda: Worker(worker_index, settings, relay=relay))

    async def call(self, method: Callable[Concatenate[Worker, _P], _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Call a method of the worker; see `WorkerHandle.call`."""
        return await asyncio.wrap_future(self._submit(method, *args, **kwargs))

    async def call_urgently(
        self, method: Callable[Concatenate[Worker, _P], _R], *args: _P.args, **kwargs: _P.kwargs
    ) -> _R:
        """Call a method of the worker, whose orders make no more than a step; see `WorkerHandle.call_urgently`."""
        number = next(self._urgent_numbers)
        result = self._submit(Worker.answer_urgently, number, method.__name__, *args, **kwargs)
        self._at_once(lambda worker: worker.announce(number))
        return await asyncio.wrap_future(result)

    async def aside(self, method: Callable[Concatenate[Worker, _P], _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Call a method of the worker beside what it does; see `WorkerHandle.aside`."""
        worker = await asyncio.wrap_future(self._worker)
        future, function = self._new_future(), functools.partial(method, worker, *args, **kwargs)
        threading.Thread(target=self._run, args=(function, future), name=f"aside-{self.index}", daemon=True).start()
        return await asyncio.wrap_future(future)

    def work(self, order: WorkOrder[_R]) -> tuple[asyncio.Future[_R], RemoteBuffer]:
        """Send an order to `Worker.work`; see `WorkerHandle.work`."""
        future = self._submit(Worker.work, order)
        return asyncio.ensure_future(_report(future)), _FutureBuffer(future)

    def stop(self, work_id: int) -> None:
        """Call `Worker.stop` at once."""
        self._at_once(lambda worker: worker.stop(work_id))

    async def heartbeat(self) -> Heartbeat:
        """Call `Worker.heartbeat` at once; raise WorkerLostError for a worker that was killed."""
        if self._lost is not None:
            raise copy.copy(self._lost)
        return (await asyncio.wrap_future(self._worker)).heartbeat()

    def kill(self, error: WorkerLostError | None = None) -> None:
        """Lose the worker with all that it holds. Its unanswered calls and orders fail; an idle thread ends."""
        if self._lost is None:
            self._lost = error or WorkerLostError(f"worker {self.index} is lost", self.index)
            self._queue.put(None)
        for future in list(self._unanswered):
            with contextlib.suppress(InvalidStateError):  # the thread has just set the result
                future.set_exception(copy.copy(self._lost))

    def _at_once(self, act: Callable[[Worker], None]) -> None:
        """Call a function with the worker once that is made, also while the worker works."""
        self._worker.add_done_callback(lambda worker: None if worker.exception() else act(worker.result()))

    def _submit(self, method: Callable[Concatenate[Worker, _P], _R], *args: _P.args, **kwargs: _P.kwargs) -> Future[_R]:
        def run() -> _R:
            worker = self._worker.result()
            with worker.at_work():
                return method(worker, *args, **kwargs)

        return self._enqueue(run)

    def _enqueue(self, function: Callable[[], _R]) -> Future[_R]:
        """Return the future result of a function, which the thread runs after those before it."""
        future = self._new_future()
        self._queue.put(lambda: self._run(function, future))
        return future

    def _run(self, function: Callable[[], _R], future: Future[_R]) -> None:
        """Run a function and set its result, unless the future is done already."""
        with contextlib.suppress(InvalidStateError):  # the worker was killed meanwhile
            if future.done() or not future.set_running_or_notify_cancel():
                return
            try:
                result = function()
            except BaseException as error:
                failure = portable(error)
                if isinstance(failure, FaultError) and not failure.is_of_child:
                    _log.error("worker failed", extra={"worker": self.index, "traceback": str(failure)})
                    self.kill(failure.loss_of(self.index))
                else:
                    future.set_exception(failure)
            else:
                future.set_result(result)

    def _new_future(self) -> Future[Any]:
        """Return a future that fails when the worker is killed; it has failed if the worker is lost."""
        future: Future[Any] = Future()
        self._unanswered.add(future)
        future.add_done_callback(self._unanswered.discard)
        if self._lost is not None:  # looked at last, because the worker's thread may kill it meanwhile
            with contextlib.suppress(InvalidStateError):
                future.set_exception(copy.copy(self._lost))
        return future


class _FutureBuffer:
    def __init__(self, future: Future[tuple[Any, NDArray[np.uint8]]]) -> None:
        self._future = future

    async def get(self) -> NDArray[np.uint8]:
        _, buffer = await asyncio.wrap_future(self._future)
        return buffer


async def _report(future: Future[tuple[_R, NDArray[np.uint8]]]) -> _R:
    report, _ = await asyncio.wrap_future(future)
    return report


def _run_queue(functions: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    """Run functions one after the other, until there is None."""
    while (function := functions.get()) is not None:
        function()
        del function  # it holds its result, which may be large
