"""Futures and tasks that nobody waits for, and threads for work that requests make long, in `pool` and `gateway`."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

__all__ = [
    "REQUEST_THREADS",
    "failure_of",
    "ignore_result",
    "in_background",
    "in_own_thread",
    "in_request_thread",
    "in_task",
    "when_abandoned",
    "while_running",
]

REQUEST_THREADS = 4
"""Number of threads for work that takes as long as requests are large."""

_P = ParamSpec("_P")
_R = TypeVar("_R")

_for_requests = ThreadPoolExecutor(REQUEST_THREADS, "request")

_tasks: set[asyncio.Task[Any]] = set()
"""Running tasks: asyncio itself references them only weakly."""


def ignore_result(future: asyncio.Future[Any]) -> None:
    """Retrieve the error of a done future that nobody waits for; asyncio would log it otherwise."""
    if not future.cancelled():
        future.exception()


def failure_of(error: BaseException) -> Exception:
    """Return the error that ends the present task, for those who wait for its work.

    Raises:
        BaseException: the error, if it is the cancellation of the task itself, or ends the process.
    """
    if isinstance(error, Exception):
        return error
    task = asyncio.current_task()
    if not isinstance(error, asyncio.CancelledError) or task is None or task.cancelling():
        raise error
    return RuntimeError("what the task waited for was cancelled")


def in_background(work: Coroutine[Any, Any, _R]) -> asyncio.Task[_R]:
    """Begin to run a coroutine; return its task. Nobody has to wait for it, and asyncio does not log its error."""
    task = asyncio.create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    task.add_done_callback(ignore_result)
    return task


@contextlib.asynccontextmanager
async def in_task(work: Coroutine[Any, Any, _R]) -> AsyncGenerator[asyncio.Task[_R], None]:
    """Run a coroutine in a task, which is cancelled at the end of the block unless it is done."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def while_running(task: asyncio.Task[Any], seconds: float) -> AsyncGenerator[None, None]:
    """Yield each time that a task has run for so many seconds more, until it is done."""
    while not (await asyncio.wait({task}, timeout=seconds))[0]:
        yield


async def in_request_thread(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Return the result of a function that takes as long as a request is large: reading, comparing, writing values.

    The threads of `asyncio.to_thread`, in which states are written and connections are watched, are others.
    """
    call = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_for_requests, call)


async def in_own_thread(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Return the result of a function that waits for child processes, run in a thread of its own.

    If nobody waits for the result any more, what the function has named to `when_abandoned` is called.
    """
    abandoned, future, context = Future[None](), Future[_R](), contextvars.copy_context()
    context.run(_abandoned.set, abandoned)
    call = functools.partial(context.run, function, *args, **kwargs)
    threading.Thread(target=_run, args=(call, future), name="request-alone", daemon=True).start()
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        abandoned.set_result(None)
        raise


def when_abandoned(end: Callable[[], object]) -> None:
    """Have a function called, in another thread, once nobody waits for the work of `in_own_thread`; at once if so."""
    abandoned = _abandoned.get()
    if abandoned is not None:
        abandoned.add_done_callback(lambda _: end())


_abandoned: contextvars.ContextVar[Future[None] | None] = contextvars.ContextVar("abandoned", default=None)


def _run(call: Callable[[], _R], future: Future[_R]) -> None:
    """Run a function and set its result, unless nobody waits for it."""
    if future.set_running_or_notify_cancel():
        try:
            result = call()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
