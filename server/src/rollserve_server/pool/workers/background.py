"""Work in the background: runs to its end although nobody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from rollserve_server.futures import ignore_result

__all__ = ["in_background"]

_R = TypeVar("_R")

_tasks: set[asyncio.Task[Any]] = set()
"""Running tasks: asyncio itself references them only weakly."""


def in_background(work: Coroutine[Any, Any, _R]) -> asyncio.Task[_R]:
    """Begin to run a coroutine; return its task. Nobody has to wait for it, and asyncio does not log its error."""
    task = asyncio.create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    task.add_done_callback(ignore_result)
    return task
