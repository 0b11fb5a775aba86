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
    from rollserve_server.pool.account import Account
    from rollserve_server.pool.backend import Backend, WorkerHandle

__all__ = ["Slot", "Slots"]

_log = logging.getLogger(__name__)
_R = TypeVar("_R")

_CLOSE_SECONDS = 2.0
_LONGEST_PAUSE_SECONDS = 30.0
_MOST_ATTEMPTS = 4


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
    """All workers of a pool. One that is lost is replaced, in the background and as often as it takes."""

    def __init__(
        self,
        backend: Backend,
        config: WorkerConfig,
        start_seconds: float,
        prepare: Callable[[int, WorkerHandle], Awaitable[object]],
    ) -> None:
        """Begins without workers.

        Args:
            backend: makes them.
            config: what they are made with.
            start_seconds: how long one may take to start.
            prepare: what gives a new worker, in the place of a lost one, its agents and environments.
        """
        self._backend = backend
        self._config = config
        self._start_seconds = start_seconds
        self._prepare = prepare
        self._slots: list[Slot] = []
        self._replacements: dict[int, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, index: int) -> Slot:  # type: ignore[override]  # slices are not needed
        return self._slots[index]

    async def ready(self, index: int) -> WorkerHandle:
        """The worker in a place, once there is one.

        Raises:
            WorkerLostError: it was lost, and there is none in its place within the time that one may take to start.
        """
        replacement = self._replacements.get(index)
        if replacement is not None:
            await asyncio.wait({replacement}, timeout=self._start_seconds)
            if not self._slots[index].healthy:
                message = f"worker {index} was lost and could not be replaced within {self._start_seconds:g} s"
                raise WorkerLostError(message, index)
        return self._slots[index].handle

    def count_simulated(self, account: Account) -> None:
        """Counts what each worker simulated for what this is the account of."""
        for slot, share in zip(self._slots, account.workers, strict=True):
            slot.num_simulated_steps += share.num_simulated_steps

    async def share(self, value: _R) -> _R:
        """See `Backend.share`. For a single worker nothing is gained by it."""
        return value if len(self) == 1 else await asyncio.to_thread(self._backend.share, value)

    async def start(self, num_workers: int) -> None:
        """Starts the workers.

        Raises:
            WorkerLostError: one did not start in time.
        """
        self._slots = list(await asyncio.gather(*map(self._start_one, range(num_workers))))

    async def ask_all(self, ask: Callable[[int, WorkerHandle], Awaitable[_R]]) -> list[_R]:
        """Asks all workers at once, and waits for all of them. Who is lost meanwhile is asked in its new shape.

        Args:
            ask: what to ask of a worker, given its index.

        Returns:
            The answers of those workers that are in their places now.

        Raises:
            DomainError: the first of those that a worker answered with.
            WorkerLostError: a worker was lost several times, or could not be replaced in time.
        """
        answers: dict[int, tuple[WorkerHandle, _R]] = {}
        for _ in range(_MOST_ATTEMPTS):
            outdated = [
                index
                for index, slot in enumerate(self._slots)
                if index not in answers or answers[index][0] is not slot.handle
            ]
            if not outdated:
                break
            tasks = [self._ask(index, ask) for index in outdated]
            results = await asyncio.gather(*tasks, return_exceptions=True)
            for index, result in zip(outdated, results, strict=True):
                if isinstance(result, BaseException):
                    raise result
                if result is not None:
                    answers[index] = result
        else:
            raise WorkerLostError(f"worker {outdated[0]} is lost again and again", outdated[0])
        return [answers[index][1] for index in range(len(self._slots))]

    def lose(self, index: int, handle: WorkerHandle) -> None:
        """Takes in that a worker is gone: another is put into its place, unless that has happened already."""
        slot = self._slots[index]
        if slot.handle is not handle or not slot.healthy:
            return
        slot.healthy = False
        slot.handle.kill()
        _log.warning("worker lost", extra={"worker": index})
        self._replacements[index] = asyncio.create_task(self._replace(index))

    async def close(self) -> None:
        """Ends all workers."""
        for task in self._replacements.values():
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

    async def _ask(
        self, index: int, ask: Callable[[int, WorkerHandle], Awaitable[_R]]
    ) -> tuple[WorkerHandle, _R] | None:
        """A worker with its answer, or None if it is lost."""
        handle = await self.ready(index)
        try:
            return handle, await ask(index, handle)
        except WorkerLostError:
            self.lose(index, handle)
            return None

    async def _replace(self, index: int) -> None:
        pause = 1.0
        while True:
            try:
                fresh = await self._start_one(index)
                await self._prepare(index, fresh.handle)
            except DomainError as error:
                _log.warning("worker not replaced", extra={"worker": index, "error": error.message})
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            else:
                fresh.num_simulated_steps = self._slots[index].num_simulated_steps
                self._slots[index] = fresh
                del self._replacements[index]
                _log.info("worker replaced", extra={"worker": index})
                return
