"""Workers as threads of this process: for tests, and for a machine where nothing else may be started."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from rollserve_server.errors import WorkerLostError, portable
from rollserve_server.pool.journal.journal import NoJournal
from rollserve_server.sampling import Worker

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rollserve_server.activity import Heartbeat
    from rollserve_server.sampling import WorkOrder
    from rollserve_server.settings import WorkerSettings

__all__ = ["InProcessBackend"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


class InProcessBackend:
    """See Backend. Threads cannot be killed: one that hangs is left alone, and ends when it wakes up."""

    def create_worker(self, worker_index: int, settings: WorkerSettings) -> _ThreadWorker:
        """See Backend."""
        return _ThreadWorker(worker_index, settings)

    async def open_journal(self) -> NoJournal:
        """See Backend."""
        return NoJournal()

    def find_worker(self, worker_index: int) -> None:
        """See Backend."""

    def share(self, value: _R) -> _R:
        """See Backend."""
        return value

    def default_num_workers(self) -> int:
        """See Backend."""
        return len(os.sched_getaffinity(0))

    def watch(self, on_lost: Callable[[str], None]) -> None:
        """See Backend."""

    def close(self) -> None:
        """See Backend."""


class _ThreadWorker:
    def __init__(self, worker_index: int, settings: WorkerSettings) -> None:
        self._index = worker_index
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._unanswered: set[Future[Any]] = set()
        self._lost: WorkerLostError | None = None
        # An executor's thread that hangs would hold up the end of the process.
        name = f"worker-{worker_index}"
        threading.Thread(target=_do_jobs, args=(self._jobs,), name=name, daemon=True).start()
        self._worker = self._ask(lambda: Worker(worker_index, settings))

    async def call(self, method: Callable[Concatenate[Worker, _P], _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return await asyncio.wrap_future(self._submit(method, *args, **kwargs))

    def work(self, order: WorkOrder[_R]) -> tuple[asyncio.Future[_R], _FutureBuffer]:
        future = self._submit(Worker.work, order)
        return asyncio.ensure_future(_report(future)), _FutureBuffer(future)

    def stop(self, work_id: int) -> None:
        self._worker.add_done_callback(lambda worker: None if worker.exception() else worker.result().stop(work_id))

    async def heartbeat(self) -> Heartbeat:
        if self._lost is not None:
            raise copy.copy(self._lost)
        return (await asyncio.wrap_future(self._worker)).heartbeat()

    def kill(self, error: WorkerLostError | None = None) -> None:
        if self._lost is None:
            self._lost = error or WorkerLostError(f"worker {self._index} is lost", self._index)
            self._jobs.put(None)
        for answer in list(self._unanswered):
            with contextlib.suppress(InvalidStateError):  # it comes just now
                answer.set_exception(copy.copy(self._lost))

    def _submit(self, method: Callable[Concatenate[Worker, _P], _R], *args: _P.args, **kwargs: _P.kwargs) -> Future[_R]:
        def answer() -> _R:
            worker = self._worker.result()
            with worker.activity.at_work():
                return method(worker, *args, **kwargs)

        return self._ask(answer)

    def _ask(self, ask: Callable[[], _R]) -> Future[_R]:
        """What comes of a job that is done after those before it."""
        answer: Future[_R] = Future()
        if self._lost is not None:
            answer.set_exception(copy.copy(self._lost))
            return answer
        self._unanswered.add(answer)
        answer.add_done_callback(self._unanswered.discard)
        self._jobs.put(lambda: _answer(answer, ask))
        return answer


class _FutureBuffer:
    def __init__(self, future: Future[tuple[Any, NDArray[np.uint8]]]) -> None:
        self._future = future

    async def get(self) -> NDArray[np.uint8]:
        _, buffer = await asyncio.wrap_future(self._future)
        return buffer


async def _report(future: Future[tuple[_R, NDArray[np.uint8]]]) -> _R:
    report, _ = await asyncio.wrap_future(future)
    return report


def _do_jobs(jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    """Does jobs one after the other, until there is None."""
    while (job := jobs.get()) is not None:
        job()
        del job  # it holds what has come of it


def _answer(answer: Future[_R], ask: Callable[[], _R]) -> None:
    """Does a job, unless nobody wants to know any more."""
    with contextlib.suppress(InvalidStateError):  # the worker was given up meanwhile
        if answer.done() or not answer.set_running_or_notify_cancel():
            return
        try:
            result = ask()
        except BaseException as error:
            answer.set_exception(portable(error))
        else:
            answer.set_result(result)
