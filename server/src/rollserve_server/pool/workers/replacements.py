"""Replacing lost workers: in the background, again and again, within a budget for each slot."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from rollserve_server.futures import failure_of

if TYPE_CHECKING:
    from rollserve_server.pool.workers.launcher import Launcher
    from rollserve_server.pool.workers.slot import WorkerSlot

__all__ = ["Replacements"]

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0


class Replacements:
    """The slots whose workers are being replaced.

    Attributes:
        is_closed: whether no worker is replaced any more.
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._tasks: dict[WorkerSlot, asyncio.Task[None]] = {}
        self.is_closed = False

    def begin(self, slot: WorkerSlot, *, is_created: bool = False) -> None:
        """Replace the worker of a slot, whose first replacement may have been created already."""
        self._tasks[slot] = asyncio.create_task(self._replace(slot, is_created=is_created))

    async def wait(self, *slots: WorkerSlot, seconds: float) -> None:
        """Wait until one of the slots has a worker again, or the time is over."""
        tasks = {self._tasks[slot] for slot in slots}
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    def cancel(self, slot: WorkerSlot) -> asyncio.Task[None] | None:
        """Stop replacing the worker of a slot; return the cancelled task, if there was one."""
        task = self._tasks.pop(slot, None)
        if task is not None:
            task.cancel()
        return task

    def close(self) -> None:
        """Replace no worker from now on."""
        self.is_closed = True
        for task in self._tasks.values():
            task.cancel()

    async def _replace(self, slot: WorkerSlot, *, is_created: bool) -> None:
        while not self.is_closed:
            if not is_created:
                await self._wait_for_budget(slot)
            slot.restarts.begin(time.monotonic())
            try:
                if is_created:
                    is_created = False
                    await self._launcher.start(slot)
                else:
                    await self._launcher.restart(slot)
            except BaseException as error:  # whatever it is, the next worker may do better
                slot.last_failure = str(failure_of(error))
                _log.warning("worker not replaced", extra={"worker": slot.index, "error": slot.last_failure})
            else:
                del self._tasks[slot]
                _log.info("worker replaced", extra={"worker": slot.index, "restarts": slot.restarts.count})
                return

    async def _wait_for_budget(self, slot: WorkerSlot) -> None:
        """Wait until a slot may get a worker again; meanwhile it may be given up."""
        restarts = slot.restarts
        forbidden_seconds = restarts.forbidden_seconds(time.monotonic())
        if forbidden_seconds:
            slot.given_up = True
            fields = {"worker": slot.index, "error": slot.last_failure, "seconds": round(forbidden_seconds)}
            _log.error("worker given up for now", extra=fields)
            # Restarts may be excused meanwhile.
            while forbidden_seconds := restarts.forbidden_seconds(time.monotonic()):  # noqa: ASYNC110  # time counts
                await asyncio.sleep(min(forbidden_seconds, _LOOK_SECONDS))
            slot.given_up = False
        await asyncio.sleep(restarts.pause_seconds(time.monotonic()))
