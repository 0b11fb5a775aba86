"""The workers' places in the pool: starting, watching and asking all of them, replacing those that are lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from rollserve_server.errors import DomainError, SamplerLostError, TooFewWorkersError, WorkerLostError
from rollserve_server.pool.interface.status import WorkerTotals
from rollserve_server.pool.workers.broadcast import Broadcast
from rollserve_server.pool.workers.liveness import wait_for_loss
from rollserve_server.pool.workers.restarts import Restarts
from rollserve_server.pool.workers.slot import WorkerSlot
from rollserve_server.pool.workers.workforce import Workforce
from rollserve_server.sampling import Worker, WorkerConfig, WorkerIdentity

if TYPE_CHECKING:
    from rollserve_server.pool.backends.backend import Backend, WorkerHandle
    from rollserve_server.pool.config import HealthConfig

__all__ = ["Workers"]

_log = logging.getLogger(__name__)
_R = TypeVar("_R")

_CLOSE_SECONDS = 2.0
_GIVEN_UP_SECONDS = 1.0
"""How long to wait for a worker that is not to be replaced for up to an hour."""


class Workers(Sequence[WorkerSlot]):
    """All workers of a pool. One that is lost is replaced in the background, again and again within its budget.

    Attributes:
        team: those that calls get which begin now.
        leaving: those that are not of it any more, and stay until no call uses them.
        departed: what is counted of those that are gone.
    """

    def __init__(
        self,
        backend: Backend,
        config: WorkerConfig,
        health: HealthConfig,
        prepare: Callable[[int, WorkerHandle], Awaitable[object]],
    ) -> None:
        """Begins without workers.

        Args:
            backend: makes them.
            config: what they are made with.
            health: how they are looked after.
            prepare: what gives a new worker, in the place of a lost one, its agents and environments.
        """
        self._backend = backend
        self._config = config
        self._health = health
        self._start_seconds = health.start_seconds
        self._prepare = prepare
        self._slots: list[WorkerSlot] = []
        self._replacements: dict[WorkerSlot, asyncio.Task[None]] = {}
        self._watches: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self.workforce = Workforce(self, ())
        self._old_workforces: list[Workforce] = []
        self.leaving: list[WorkerSlot] = []
        self._starting: Sequence[WorkerSlot] = ()
        self._ending: dict[WorkerSlot, asyncio.Task[None]] = {}
        self.departed = WorkerTotals()

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, index: int) -> WorkerSlot:  # type: ignore[override]  # slices are not needed
        return self._slots[index]

    @property
    def everyone(self) -> Sequence[WorkerSlot]:
        """All workers, also those that are to leave."""
        return [*self._slots, *self.leaving]

    @property
    def num_healthy(self) -> int:
        """How many workers are there."""
        return sum(slot.healthy for slot in self._slots)

    def check_enough(self) -> None:
        """Raises TooFewWorkersError if fewer workers are there than calls are to begin with."""
        least = self._health.min_healthy_workers
        if self.num_healthy < least:
            came = f"{self.num_healthy} of {len(self)} workers are healthy"
            failures = [slot.last_failure for slot in self._slots if not slot.healthy]
            raise TooFewWorkersError(f"{came}, at least {least} were expected; {next(iter(failures), '')}")

    async def ready(self, slot: WorkerSlot) -> WorkerHandle:
        """The worker in a place, once there is one.

        Raises:
            WorkerLostError: it was lost, and there is none in its place within the time that one may take to start; or
                there is to be none for now.
        """
        since = time.monotonic()
        while not slot.healthy:
            most_seconds = _GIVEN_UP_SECONDS if slot.given_up else self._start_seconds
            left = since + most_seconds - time.monotonic()
            await asyncio.wait({self._replacements[slot]}, timeout=min(max(left, 0.0), _GIVEN_UP_SECONDS))
            if not slot.healthy and (left <= 0 or self._is_closed):
                what = "is given up for now" if slot.given_up else f"could not be replaced within {most_seconds:g} s"
                raise WorkerLostError(f"worker {slot.index} was lost and {what}: {slot.last_failure}", slot.index)
        return slot.handle

    async def share(self, value: _R) -> _R:
        """See `Backend.share`. For a single worker nothing is gained by it."""
        return value if len(self) == 1 else await asyncio.to_thread(self._backend.share, value)

    async def start(self, num_workers: int) -> None:
        """Starts the workers. Those whose processes end at once are replaced later, if any other has started.

        If an earlier server has left some, the others are lost ones, which are replaced while those work.

        Raises:
            WorkerLostError: one did not start in time, or none has started.
        """
        left = [self._backend.find_worker(index) for index in range(num_workers)]
        self._slots = [self._new_slot(index, handle) for index, handle in enumerate(left)]
        self.workforce = Workforce(self, self._slots)
        missing = [slot for slot, handle in zip(self._slots, left, strict=True) if handle is None and any(left)]
        awaited = [slot for slot in self._slots if slot not in missing]
        starting = (self._identify(slot.index, slot.handle) for slot in awaited)
        outcomes = await asyncio.gather(*starting, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for failure in failures:
            there_is_room = any(left) or not isinstance(failure.__cause__, TimeoutError)
            is_lost = isinstance(failure, WorkerLostError) and there_is_room
            if len(failures) == len(awaited) or not is_lost:
                raise failure
        for slot, outcome in zip(awaited, outcomes, strict=True):
            slot.healthy = True
            if isinstance(outcome, WorkerIdentity):
                slot.identity = outcome
            elif isinstance(outcome, WorkerLostError):
                self.lose(slot.index, slot.handle, outcome)
        for slot in missing:
            slot.last_failure = f"worker {slot.index} was not there any more when the server began"
            _log.warning("worker lost", extra={"worker": slot.index, "error": slot.last_failure})
            self._replacements[slot] = asyncio.create_task(self._replace(slot, is_made=True))

    def go_on(self, workers: Sequence[WorkerTotals], departed: WorkerTotals) -> None:
        """Goes on counting where an earlier server was, with as many workers."""
        self.departed = self.departed.plus(departed)
        for slot, totals in zip(self._slots, workers, strict=True):
            slot.num_simulated_steps += totals.num_simulated_steps
            slot.restarts.count += totals.num_restarts
            slot.last_failure = slot.last_failure or totals.last_failure

    @contextlib.asynccontextmanager
    async def starting(self, indices: range) -> AsyncGenerator[Sequence[WorkerSlot], None]:
        """Starts workers behind those that are there, with all that these hold. They end if the block fails.

        Raises:
            WorkerLostError: one did not start in time, or cannot be given what the others hold.
        """
        workers: list[WorkerSlot] = []
        tasks: list[asyncio.Task[None]] = []
        self._starting = workers
        try:
            for index in indices:
                workers.append(self._new_slot(index))
                tasks.append(asyncio.create_task(self._start_one(workers[-1])))
                await asyncio.sleep(0)  # making many takes its time, in which others are served
            await asyncio.gather(*tasks)
            yield workers
        except BaseException:
            self._starting = ()
            tasks += [self._replacements.pop(slot) for slot in workers if slot in self._replacements]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(_end(slot.handle) for slot in workers if slot.healthy))
            for slot in workers:
                slot.handle.kill()
            raise
        self._starting = ()

    def resize(self, num_workers: int, added: Sequence[WorkerSlot]) -> None:
        """Has calls that begin now use so many workers: the first of those that are there, and those that are added.

        The others leave once no call uses them.
        """
        self.workforce.is_current = False
        self._old_workforces.append(self.workforce)
        self.leaving += self._slots[num_workers:]
        self._slots = [*self._slots[:num_workers], *added]
        self.workforce = Workforce(self, self._slots)
        self.let_go()

    def let_go(self) -> None:
        """Ends those that are to leave and that no call uses any more."""
        if not self._old_workforces:
            return
        self._old_workforces = [workforce for workforce in self._old_workforces if workforce.is_in_use]
        for slot in self.leaving:
            if slot not in self._ending and not any(workforce.has(slot) for workforce in self._old_workforces):
                self._ending[slot] = asyncio.create_task(self._remove(slot))

    async def broadcast(
        self, ask: Callable[[int, WorkerHandle], Awaitable[_R]], *, wait_for_lost: bool, isolate_failures: bool = False
    ) -> dict[int, _R]:
        """Asks all workers at once, and waits for all of them. Who is lost meanwhile is asked in its new shape.

        Args:
            ask: what to ask of a worker, given its index.
            wait_for_lost: whether to wait for those that are not there. Else they are left out, and to be prepared with what the
                others have been asked when they come back; at least one answers.
            isolate_failures: whether errors of some workers, of what all others can do, are those workers' own: they are lost.

        Returns:
            The answers of those workers that are in their places now, by index.

        Raises:
            DomainError: the first of those that a worker answered with.
            WorkerLostError: a worker was lost several times, all hung, or those that were to answer could not be
                replaced in time.
        """
        return await Broadcast(self, ask, wait_for_lost=wait_for_lost, isolate_failures=isolate_failures).answers()

    async def first_ready(self) -> None:
        """Waits until any worker is there.

        Raises:
            WorkerLostError: there is none within the time that one may take to start, or there is to be none for now.
        """
        since = time.monotonic()
        while not self.num_healthy:
            left = since + self._start_seconds - time.monotonic()
            if left <= 0 or self._is_closed or all(slot.given_up for slot in self._slots):
                raise WorkerLostError(f"all workers are lost: {self._slots[0].last_failure}", 0)
            waiting = [self._replacements[slot] for slot in self._slots]
            await asyncio.wait(waiting, timeout=min(left, _GIVEN_UP_SECONDS), return_when=asyncio.FIRST_COMPLETED)

    def lose(self, index: int, handle: WorkerHandle, error: WorkerLostError | None = None) -> None:
        """Takes in that a worker is gone: another is put into its place, unless that has happened already.

        Args:
            index: its place.
            handle: the worker.
            error: why, if that is known; what it has not answered fails with it.
        """
        places = (*self._slots[index : index + 1], *self._starting, *self.leaving)
        slot = next((slot for slot in places if slot.handle is handle), None)
        if slot is None or not slot.healthy or slot in self._ending:
            return
        slot.healthy = False
        slot.lost_in_broadcast = slot.num_broadcasts > 0
        slot.last_failure = error.text if error else f"worker {index} is lost"
        handle.kill(error)
        _log.warning("worker lost", extra={"worker": index, "error": slot.last_failure})
        self._replacements[slot] = asyncio.create_task(self._replace(slot))

    def leave(self) -> None:
        """Leaves the workers to another server, but for those that were to go."""
        self._stop_looking()
        for slot in self.leaving:
            slot.handle.kill()

    async def close(self) -> None:
        """Ends all workers."""
        self._stop_looking()
        await asyncio.gather(*(_end(slot.handle) for slot in self.everyone if slot.healthy))
        for slot in self.everyone:
            slot.handle.kill()
        self.leaving.clear()

    def _stop_looking(self) -> None:
        """Replaces nobody from now on."""
        self._is_closed = True
        for task in (*self._replacements.values(), *self._ending.values(), *self._watches):
            task.cancel()

    def _new_slot(self, index: int, handle: WorkerHandle | None = None) -> WorkerSlot:
        """A place with this worker, or one that has not started yet."""
        handle = handle or self._backend.create_worker(index, self._config)
        return WorkerSlot(index, handle, Restarts(self._health.worker_restarts_per_hour))

    async def _start_one(self, slot: WorkerSlot) -> None:
        """Waits for a worker to start, and gives it all that the others hold. It ends if that fails.

        Raises:
            WorkerLostError: it did not start in time, or cannot be given what the others hold.
            SamplerLostError: it belongs to another server.
        """
        try:
            identity = await self._identify(slot.index, slot.handle)
            await self._prepare(slot.index, slot.handle)
        except BaseException as error:
            slot.handle.kill()
            if not isinstance(error, DomainError) or isinstance(error, (WorkerLostError, SamplerLostError)):
                raise
            text = f"worker {slot.index} cannot be given what the others hold: {error.message}"
            raise WorkerLostError(text, slot.index) from error
        slot.identity, slot.healthy, slot.lost_in_broadcast = identity, True, False

    async def _identify(self, index: int, handle: WorkerHandle) -> WorkerIdentity:
        """Where a worker runs that has just been made, once it has started; it is watched from then on.

        Raises:
            WorkerLostError: it does not start, or not in time.
        """
        try:
            async with asyncio.timeout(self._start_seconds):
                identity = await handle.call(Worker.identity)
        except TimeoutError as error:
            handle.kill()
            message = f"worker {index} did not start within {self._start_seconds:g} s: is there room for it?"
            raise WorkerLostError(message, index) from error
        except BaseException:
            handle.kill()
            raise
        watch = asyncio.create_task(self._watch(index, handle))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        return identity

    async def _watch(self, index: int, handle: WorkerHandle) -> None:
        """Gives a worker up when it hangs or is gone, whether it is in its place or still being prepared."""
        error = await wait_for_loss(index, handle, self._health.limits)
        self.lose(index, handle, error)
        handle.kill(error)

    async def _remove(self, slot: WorkerSlot) -> None:
        """Ends a worker that nobody uses any more, or what is being made in its place."""
        replacement = self._replacements.pop(slot, None)
        if replacement is not None:
            replacement.cancel()
        if slot.healthy:
            await _end(slot.handle)
        self.leaving.remove(slot)
        del self._ending[slot]
        self.departed = self.departed.plus(slot.totals)
        _log.info("worker removed", extra={"worker": slot.index})

    async def _replace(self, slot: WorkerSlot, *, is_made: bool = False) -> None:
        """Puts a worker into a lost one's place, as often as it takes; the first may have been made already."""
        while not self._is_closed:
            if not is_made:
                await self._wait_for_turn(slot)
            slot.restarts.begin(time.monotonic())
            try:
                if not is_made:
                    slot.handle = self._backend.create_worker(slot.index, self._config)
                is_made = False
                await self._start_one(slot)
            except Exception as error:  # whatever it is, the next one may do better
                slot.last_failure = str(error)
                _log.warning("worker not replaced", extra={"worker": slot.index, "error": slot.last_failure})
            else:
                del self._replacements[slot]
                fields = {"worker": slot.index, "restarts": slot.restarts.count}
                _log.info("worker replaced", extra=fields)
                return

    async def _wait_for_turn(self, slot: WorkerSlot) -> None:
        """Waits until a place may be filled again."""
        restarts = slot.restarts
        forbidden_seconds = restarts.forbidden_seconds(time.monotonic())
        if forbidden_seconds:
            slot.given_up = True
            fields = {"worker": slot.index, "error": slot.last_failure, "seconds": round(forbidden_seconds)}
            _log.error("worker given up for now", extra=fields)
            await asyncio.sleep(forbidden_seconds)
            slot.given_up = False
        await asyncio.sleep(restarts.pause_seconds(time.monotonic()))


async def _end(handle: WorkerHandle) -> None:
    """Closes a worker's environments, and ends it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await asyncio.gather(handle.call(Worker.close), return_exceptions=True)
    handle.kill()
