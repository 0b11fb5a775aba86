"""Futures and tasks that nobody waits for, in `pool` and `gateway`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["ignore_result", "in_background"]

_R = TypeVar("_R")

_tasks: set[asyncio.Task[Any]] = set()
"""Running tasks: asyncio itself references them only weakly."""


def ignore_result(future: asyncio.Future[Any]) -> None:
    """Retrieve the error of a done future that nobody waits for; asyncio would log it otherwise."""
    if not future.cancelled():
        future.exception()


def in_background(work: Coroutine[Any, Any, _R]) -> asyncio.Task[_R]:
    """Begin to run a coroutine; return its task. Nobody has to wait for it, and asyncio does not log its error."""
    task = asyncio.create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    task.add_done_callback(ignore_result)
    return task
