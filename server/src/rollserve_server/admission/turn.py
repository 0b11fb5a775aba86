"""Turns: a call pauses while calls of other clients run in its place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

__all__ = ["Turn"]


class Turn:
    """The turns of one call, which runs from its admission on, except while it is paused.

    Attributes:
        num_steps: number of steps that the call has made in its present turn.
        paused_seconds: how long the call has been paused, up to its present turn.
        num_pauses: number of pauses so far.
        weight: how much longer the workers work for the call at a time than for one of the client with most calls.
    """

    def __init__(self, look: Callable[[], None] = lambda: None, max_steps: int = 1) -> None:
        """Start a turn.

        Args:
            look: looks for a call that should run instead of another one.
            max_steps: number of steps after which the turn may end.
        """
        self.look = look
        self.num_steps = 0
        self.paused_seconds = 0.0
        self.num_pauses = 0
        self.weight = 1.0
        self._paused_at = 0.0
        self._max_steps = max_steps
        self._may_run = asyncio.Event()
        self._may_run.set()

    @property
    def is_paused(self) -> bool:
        """Whether the call has to wait for its next turn."""
        return not self._may_run.is_set()

    @property
    def is_over(self) -> bool:
        """Whether the call has made all steps of its turn, so that another client's call may run instead."""
        return self.num_steps >= self._max_steps

    def count(self, num_steps: int) -> None:
        """Record steps."""
        self.num_steps += num_steps
        if self.is_over:
            self.look()

    def pause(self) -> None:
        """End the turn."""
        self.num_pauses += 1
        self._paused_at = time.monotonic()
        self._may_run.clear()

    def resume(self) -> None:
        """Start the next turn."""
        self.num_steps = 0
        self.paused_seconds += time.monotonic() - self._paused_at
        self._may_run.set()

    async def begun(self) -> None:
        """Wait until the call may run."""
        await self._may_run.wait()
