"""Turns of calls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from rollserve_server.pool.deliveries import Progress

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

__all__ = ["Turns"]


class Turns:
    """So many calls have a turn at a time; more wait in the order of their arrival."""

    def __init__(self, num_turns: int, progress_seconds: float) -> None:
        """Takes also how often those that wait are to tell of it."""
        self._turns = asyncio.Semaphore(num_turns)
        self._progress_seconds = progress_seconds

    @contextlib.asynccontextmanager
    async def waiting(self, stack: AsyncExitStack) -> AsyncGenerator[AsyncGenerator[Progress, None], None]:
        """Gives signs of life until it is a call's turn, which ends with the stack."""
        async with contextlib.aclosing(self._wait(stack)) as signs:
            yield signs

    async def _wait(self, stack: AsyncExitStack) -> AsyncGenerator[Progress, None]:
        if not self._turns.locked():
            await self._turns.acquire()  # at once
            stack.callback(self._turns.release)
            return
        turn = asyncio.create_task(self._turns.acquire())
        stack.callback(self._give_up, turn)
        while not (await asyncio.wait({turn}, timeout=self._progress_seconds))[0]:
            yield Progress(0)

    def _give_up(self, turn: asyncio.Task[bool]) -> None:
        """Lets the next call have its turn, if this one has had its own."""
        if not turn.cancel() and not turn.cancelled():
            self._turns.release()
