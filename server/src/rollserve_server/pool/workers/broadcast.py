"""A broadcast: asks all workers the same, also while some are lost, missing or disagree, or all of them die of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Generic, TypeVar

from rollserve_server.errors import DomainError, SamplerLostError, WorkerLostError
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.pool.workers.slots import WorkerSlot
    from rollserve_server.pool.workers.workers import Workers

__all__ = ["Broadcast"]

_R = TypeVar("_R")

_MAX_ATTEMPTS = 4


class Broadcast(Generic[_R]):
    """A question to all workers. A worker that is lost meanwhile is asked again once it is replaced."""

    def __init__(
        self,
        workers: Workers,
        ask: Callable[[int, WorkerHandle], Awaitable[_R]],
        *,
        wait_for_lost: bool,
        isolate_failures: bool = False,
    ) -> None:
        """Prepare to ask all workers at once.

        Args:
            workers: the workers.
            ask: asks one worker, given its index.
            wait_for_lost: whether to wait for lost workers. Otherwise they are left out, and get what the others got
                when they come back; at least one worker answers.
            isolate_failures: whether an error of some workers, where others succeed, costs these workers only: they are
                replaced.
        """
        self._workers = workers
        self._ask = ask
        self._wait_for_lost = wait_for_lost
        self._isolate_failures = isolate_failures
        self._answers: dict[int, tuple[WorkerHandle, _R]] = {}
        self._num_losses: Counter[int] = Counter()
        self._loss: WorkerLostError | None = None
        self._num_fatal_rounds = 0
        self._reserved: set[WorkerSlot] = set()

    async def answers(self) -> dict[int, _R]:
        """Ask until all workers that are in their slots then have answered.

        Returns:
            By index, the answers of the workers that are in their slots now.

        Raises:
            DomainError: the first error that a worker answered with.
            WorkerLostError: a worker was lost several times, all hung, or workers that were to answer could not be
                replaced in time.
        """
        try:
            while True:
                missing = self._missing()
                if missing:
                    # What has cost a worker is tried with one, before it may cost all of them again.
                    await self._ask_each(missing[:1] if self._num_fatal_rounds else missing)
                elif self._answers:
                    return {index: answer for index, (_, answer) in sorted(self._answers.items())}
                else:
                    await self._workers.first_ready()
        finally:
            for slot in [*self._reserved]:
                self._release(slot)

    def _missing(self) -> list[int]:
        """Return the indices of workers that have not answered; drop answers of workers that were replaced since."""
        present = {slot.index: slot.handle for slot in self._workers if self._wait_for_lost or slot.healthy}
        self._answers = {index: given for index, given in self._answers.items() if present.get(index) is given[0]}
        return [index for index in present if index not in self._answers]

    async def _ask_each(self, indices: Sequence[int]) -> None:
        self._loss = None
        results = await asyncio.gather(*map(self._ask_one, indices), return_exceptions=True)
        self._check_losses()
        for index, error in zip(indices, results, strict=True):
            if error is None:
                continue
            can_isolate = self._isolate_failures and self._answers and not isinstance(error, SamplerLostError)
            if not (can_isolate and isinstance(error, DomainError)):
                raise error
            failure = WorkerLostError(f"worker {index} failed: {error.message}", index)
            self._workers.lose(index, self._workers[index].handle, failure)

    def _check_losses(self) -> None:
        """Raise the error of this round's loss, if there was one and asking again would cost more workers."""
        error = self._loss
        if error is None:
            self._num_fatal_rounds = 0
            return
        self._num_fatal_rounds += 1
        # What made one worker hang would make the others hang, too.
        if error.reason == Reason.WORKER_HUNG and (self._wait_for_lost or not self._answers):
            raise self._convicted(error)
        if max(self._num_fatal_rounds, self._num_losses[error.worker_index]) >= _MAX_ATTEMPTS:
            raise self._convicted(error.again(f"one worker after the other is lost with it: {error.text}"))

    def _convicted(self, error: WorkerLostError) -> WorkerLostError:
        """Return the error of a question that takes workers down; their restarts are excused."""
        for index, num_losses in self._num_losses.items():
            self._workers[index].restarts.excuse(num_losses)
        return error

    async def _ask_one(self, index: int) -> None:
        slot = self._workers[index]
        worker = await self._workers.ready(slot)
        slot.num_broadcasts += 1
        try:
            self._answers[index] = worker, await self._ask(index, worker)
            self._release(slot)
        except WorkerLostError as error:
            await self._reserve(slot)
            self._workers.lose(index, worker, error)
            self._num_losses[index] += 1
            if self._loss is None or error.reason == Reason.WORKER_HUNG:
                self._loss = error
        finally:
            slot.num_broadcasts -= 1

    async def _reserve(self, slot: WorkerSlot) -> None:
        """Keep calls from the next worker in a slot: the last one may have been lost to what a call had it do."""
        if slot not in self._reserved:
            await slot.reserved.acquire()
            self._reserved.add(slot)

    def _release(self, slot: WorkerSlot) -> None:
        if slot in self._reserved:
            self._reserved.remove(slot)
            slot.reserved.release()
