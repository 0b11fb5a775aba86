"""Cancellation of calls for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from rollserve_wire.errors import closed_error

__all__ = ["closed_unless_task_cancelled"]


@contextlib.contextmanager
def closed_unless_task_cancelled(owner: str) -> Iterator[None]:
    """Turn asyncio's CancelledError into the error of a closed owner, unless it is this task that was cancelled.

    gRPC raises asyncio's CancelledError, too, where a call was cancelled.
    """
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling() > 0:
            raise
        raise closed_error(owner) from None
