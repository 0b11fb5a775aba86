"""Asks all workers the same, also while some are lost, missing or of another opinion, or all of them die of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from rollserve import Reason
from rollserve_server.errors import DomainError, SamplerLostError, WorkerLostError

if TYPE_CHECKING:
    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.pool.workers.workers import Workers

__all__ = ["Broadcast"]

_R = TypeVar("_R")

_MOST_ATTEMPTS = 4


class Broadcast(Generic[_R]):
    """A question to all workers. Who is lost meanwhile is asked in its new shape."""

    def __init__(
        self,
        workers: Workers,
        ask: Callable[[int, WorkerHandle], Awaitable[_R]],
        *,
        wait_for_lost: bool,
        isolate_failures: bool,
    ) -> None:
        """Prepares to ask; see `Workers.broadcast`."""
        self._workers = workers
        self._ask = ask
        self._wait_for_lost = wait_for_lost
        self._isolate_failures = isolate_failures
        self._answers: dict[int, tuple[WorkerHandle, _R]] = {}
        self._num_losses: Counter[int] = Counter()
        self._loss: WorkerLostError | None = None
        self._num_fatal_rounds = 0

    async def answers(self) -> dict[int, _R]:
        """Asks until there is an answer of all workers that are in their places then; see `Workers.broadcast`."""
        while True:
            missing = self._missing()
            if missing:
                # What has cost a worker is tried with one, before it may cost all of them once more.
                await self._ask_these(missing[:1] if self._num_fatal_rounds else missing)
            elif self._answers:
                return {index: answer for index, (_, answer) in sorted(self._answers.items())}
            else:
                await self._workers.first_ready()

    def _missing(self) -> list[int]:
        """The workers that are to answer, and have not in the shape that they have now."""
        present = {
            index: slot.handle for index, slot in enumerate(self._workers) if self._wait_for_lost or slot.healthy
        }
        self._answers = {index: came for index, came in self._answers.items() if present.get(index) is came[0]}
        return [index for index in present if index not in self._answers]

    async def _ask_these(self, indices: Sequence[int]) -> None:
        self._loss = None
        results = await asyncio.gather(*map(self._ask_one, indices), return_exceptions=True)
        self._check_losses()
        for index, error in zip(indices, results, strict=True):
            if error is None:
                continue
            may_be_isolated = self._isolate_failures and self._answers and not isinstance(error, SamplerLostError)
            if not (may_be_isolated and isinstance(error, DomainError)):
                raise error
            failure = WorkerLostError(f"worker {index} failed: {error.message}", index)
            self._workers.lose(index, self._workers[index].handle, failure)

    def _check_losses(self) -> None:
        """Raises the error of this round's loss, if there was one and others should not be asked any more."""
        error = self._loss
        if error is None:
            self._num_fatal_rounds = 0
            return
        self._num_fatal_rounds += 1
        # What hangs there would do so again.
        if error.reason == Reason.WORKER_HUNG and (self._wait_for_lost or not self._answers):
            raise error
        if max(self._num_fatal_rounds, self._num_losses[error.worker_index]) >= _MOST_ATTEMPTS:
            raise error.again(f"one worker after the other is lost over it: {error.text}")

    async def _ask_one(self, index: int) -> None:
        slot = self._workers[index]
        worker = await self._workers.ready(slot)
        slot.num_broadcasts += 1
        try:
            self._answers[index] = worker, await self._ask(index, worker)
        except WorkerLostError as error:
            self._workers.lose(index, worker, error)
            self._num_losses[index] += 1
            if self._loss is None or error.reason == Reason.WORKER_HUNG:
                self._loss = error
        finally:
            slot.num_broadcasts -= 1
