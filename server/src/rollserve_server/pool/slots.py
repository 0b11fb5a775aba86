"""The workers' places in the pool: starting, asking all of them, replacing those that are lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from rollserve_server.errors import DomainError, WorkerLostError
from rollserve_server.sampling import Worker, WorkerConfig, WorkerIdentity

if TYPE_CHECKING:
    from rollserve_server.pool.backend import Backend, WorkerHandle

__all__ = ["Slot", "Slots"]

_log = logging.getLogger(__name__)
_R = TypeVar("_R")

_CLOSE_SECONDS = 2.0
_LONGEST_PAUSE_SECONDS = 30.0


@dataclass
class Slot:
    """A worker's place.

    Attributes:
        handle: the worker.
        identity: where it runs.
        healthy: whether it is there.
        num_simulated_steps: what it, and those before it in this place, have simulated.
    """

    handle: WorkerHandle
    identity: WorkerIdentity
    healthy: bool = True
    num_simulated_steps: int = 0


class Slots(Sequence[Slot]):
    """All workers of a pool."""

    def __init__(self, backend: Backend, config: WorkerConfig, start_seconds: float) -> None:
        self._backend = backend
        self._config = config
        self._start_seconds = start_seconds
        self._slots: list[Slot] = []
        self._replacements: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, index: int) -> Slot:  # type: ignore[override]  # slices are not needed
        return self._slots[index]

    @property
    def handles(self) -> list[WorkerHandle]:
        """The workers.

        Raises:
            WorkerLostError: one of them is lost, and its replacement is not ready.
        """
        for index, slot in enumerate(self._slots):
            if not slot.healthy:
                raise WorkerLostError(f"worker {index} was lost and is being replaced", index)
        return [slot.handle for slot in self._slots]

    async def start(self, num_workers: int) -> None:
        """Starts the workers.

        Raises:
            WorkerLostError: one did not start in time.
        """
        self._slots = list(await asyncio.gather(*map(self._start_one, range(num_workers))))

    async def ask_all(self, ask: Callable[[int, WorkerHandle], Awaitable[_R]]) -> list[_R]:
        """Asks all workers at once, and waits for all of them.

        Args:
            ask: what to ask of a worker, given its index.

        Raises:
            DomainError: the first of those that a worker answered with.
        """
        tasks = [ask(index, handle) for index, handle in enumerate(self.handles)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if not isinstance(result, BaseException)]

    def replace(self, index: int, prepare: Callable[[int, WorkerHandle], Awaitable[object]]) -> None:
        """Puts a new worker into a place, in the background and as often as it takes.

        Args:
            index: the place.
            prepare: what gives the new worker its agent and environment.
        """
        slot = self._slots[index]
        if not slot.healthy:
            return
        slot.healthy = False
        slot.handle.kill()
        _log.warning("worker lost", extra={"worker": index})
        task = asyncio.create_task(self._replace(index, prepare))
        self._replacements.add(task)
        task.add_done_callback(self._replacements.discard)

    async def close(self) -> None:
        """Ends all workers."""
        for task in list(self._replacements):
            task.cancel()
        closing = [slot.handle.call(Worker.close) for slot in self._slots if slot.healthy]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await asyncio.gather(*closing, return_exceptions=True)
        for slot in self._slots:
            slot.handle.kill()

    async def _start_one(self, index: int) -> Slot:
        handle = self._backend.create_worker(index, self._config)
        try:
            async with asyncio.timeout(self._start_seconds):
                return Slot(handle, await handle.call(Worker.identity))
        except TimeoutError:
            handle.kill()
            message = f"worker {index} did not start within {self._start_seconds:g} s: is there room for it?"
            raise WorkerLostError(message, index) from None

    async def _replace(self, index: int, prepare: Callable[[int, WorkerHandle], Awaitable[object]]) -> None:
        pause = 1.0
        while True:
            try:
                fresh = await self._start_one(index)
                await prepare(index, fresh.handle)
            except DomainError as error:
                _log.warning("worker not replaced", extra={"worker": index, "error": error.message})
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            else:
                fresh.num_simulated_steps = self._slots[index].num_simulated_steps
                self._slots[index] = fresh
                _log.info("worker replaced", extra={"worker": index})
                return
