"""The scaler: has the number of a pool's workers follow the load."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from rollserve_server.errors import DomainError
from rollserve_server.pool.plan.scaling import ScalePlan
from rollserve_server.pool.results import ScalingStatus

if TYPE_CHECKING:
    from rollserve_server.pool.parts import PoolParts
    from rollserve_server.pool.resizing import Resizing

__all__ = ["Granting", "Scaler"]

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 10.0
"""Pause after a change that failed."""

Granting = Callable[[int], AbstractContextManager[int]]
"""Reserves workers of all samplers for a number in one pool, for the duration of a block; yields the number that there
may be, which is less if others have too many."""


class Scaler:
    """Grows and shrinks a pool as its plan says, unless something holds the number of its workers."""

    def __init__(self, parts: PoolParts, resizing: Resizing, granting: Granting) -> None:
        """Start to follow the load, if the settings of the pool permit several numbers of workers.

        Args:
            parts: parts of the pool.
            resizing: changes the number of its workers.
            granting: reserves workers of all samplers.
        """
        self._parts, self._resizing, self._granting = parts, resizing, granting
        settings = parts.settings
        least = max(settings.min_workers or 0, settings.health.min_healthy_workers)
        most = settings.max_workers or least
        self._plan = ScalePlan(least, most, settings.scale_down_seconds)
        self._is_on = settings.min_workers is not None and least < most
        self._num_grown = self._num_shrunk = 0
        self._retry_at = 0.0
        self._num_pauses = 0
        self._told = ""
        self._changing: asyncio.Task[None] | None = None
        self._num_changing_to = 0
        self._looking = asyncio.create_task(self._look_again()) if self._is_on else None

    @property
    def status(self) -> ScalingStatus | None:
        """The state of the scaler; None if the number of workers is not to follow the load."""
        plan = self._plan
        if not self._is_on:
            return None
        counts = self._num_grown, self._num_shrunk
        return ScalingStatus(plan.min_workers, plan.max_workers, plan.num_wanted, self._resizing.held_by(), *counts)

    def close(self) -> None:
        """Change nothing any more."""
        for task in (self._looking, self._changing):
            if task is not None:
                task.cancel()

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncGenerator[None, None]:
        """Change nothing for the duration of the block, and give up a change that is under way."""
        self._num_pauses += 1
        try:
            if self._changing is not None:
                self._changing.cancel()
                await asyncio.wait({self._changing})
            yield
        finally:
            self._num_pauses -= 1

    async def _look_again(self) -> None:
        while True:
            await asyncio.sleep(self._plan.look_seconds)
            self._look()

    def _look(self) -> None:
        """Begin a change if one is due, or end the growth that is under way if it is not wanted any more."""
        now, num_workers = time.monotonic(), len(self._parts.workers)
        number = self._plan.look(now, num_workers, self._parts.workers.load.busy_seconds)
        if self._changing is not None and not self._changing.done():
            if number <= num_workers:
                self._changing.cancel()
            return
        if number == num_workers:
            self._told = ""
        if number == num_workers or now < self._retry_at or self._num_pauses:
            return
        if held_by := self._resizing.held_by():
            self._tell(logging.INFO, "number of workers held", {"wanted": number, "held_by": held_by})
            return
        self._changing = asyncio.create_task(self._change(number))

    async def _change(self, number: int) -> None:
        """Grow or shrink to a number, as far as that works."""
        previous = len(self._parts.workers)
        try:
            if number < previous:
                await self._resizing.shrink(number)
                self._num_shrunk += 1
            else:
                with self._granting(number) as granted:
                    if granted < number:
                        self._tell(logging.INFO, "other samplers have workers", {"wanted": number, "left": granted})
                    await self._resizing.grow(max(granted, previous))
        except DomainError as error:
            self._retry_at = time.monotonic() + _RETRY_SECONDS
            self._tell(logging.WARNING, "number of workers not changed", {"wanted": number, "error": error.message})
        finally:
            self._num_grown += len(self._parts.workers) > previous

    def _tell(self, level: int, event: str, fields: dict[str, object]) -> None:
        """Log why the number is not the wanted one, unless that was the last event."""
        text = f"{event} {fields}"
        if text != self._told:
            self._told = text
            _log.log(level, event, extra=fields)
