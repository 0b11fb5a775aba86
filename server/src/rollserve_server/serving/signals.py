"""Signals: the first one ends the server in order, the next one at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Any, TypeVar

__all__ = ["Stopping"]

_T = TypeVar("_T")


class Stopping:
    """Waits for SIGTERM and SIGINT beside other work of the server.

    Attributes:
        has_begun: whether a signal has been received.
    """

    def __init__(self) -> None:
        self._signalled = asyncio.Event()
        self.has_begun = False
        self.listen()

    def listen(self) -> None:
        """Handle the signals from now on, also if something else, such as Ray, has set handlers since."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled.set)

    async def comes_before(self, future: asyncio.Future[Any]) -> bool:
        """Wait for the future or the next signal; return whether the signal was first."""
        signalled = asyncio.create_task(self._signalled.wait())
        await asyncio.wait({future, signalled}, return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        if future.done():
            return False
        self._signalled.clear()
        self.has_begun = True
        return True

    async def unless_stopped(self, task: asyncio.Task[_T]) -> _T | None:
        """Return the task's result; or cancel the task and return None if a signal comes first."""
        if not await self.comes_before(task):
            return task.result()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return None
