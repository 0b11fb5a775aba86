"""Futures and tasks that nobody waits for, in `pool` and `gateway`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["failure_of", "ignore_result", "in_background"]

_R = TypeVar("_R")

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
