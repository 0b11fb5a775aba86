"""The pool's workers: all slots, what is asked of all of them, their replacement, and changes of their number."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from rollserve_server.errors import (
    DomainError,
    InvalidValueError,
    OverLimitError,
    SamplerLostError,
    TooFewWorkersError,
    WorkerLostError,
)
from rollserve_server.futures import failure_of, in_background
from rollserve_server.pool.accounts import WorkerTotals
from rollserve_server.pool.workers.liveness import wait_for_loss
from rollserve_server.pool.workers.load import Load
from rollserve_server.pool.workers.restarts import Restarts
from rollserve_server.pool.workers.slots import WorkerSlot, Workforce
from rollserve_server.sampling import Worker, WorkerIdentity
from rollserve_wire.reasons import Reason
from rollserve_wire.receipts import HASH_SEED, HASH_SEED_NAME

if TYPE_CHECKING:
    from rollserve_server.pool.backends.backend import Backend, WorkerHandle
    from rollserve_server.settings import PoolSettings

__all__ = ["BORDER_SECONDS", "Workers", "giving_what_others_hold"]

_log = logging.getLogger(__name__)

_R = TypeVar("_R")

_GIVEN_UP_SECONDS = 1.0
"""How long to wait for a slot that is given up for up to an hour."""
_LOOK_SECONDS = 1.0
"""How often whoever waits for a slot looks whether it is given up, or may have a worker again."""
_CLOSE_SECONDS = 2.0
BORDER_SECONDS = 10.0
"""How long the renewal of a worker waits for a moment in which no call runs."""
_RENEWAL_PAUSE_SECONDS = 5.0
"""How long the renewal of workers waits after one has failed."""


class Workers(Sequence[WorkerSlot]):
    """Slots of a pool. A lost worker is replaced in the background, again and again within its budget.

    Attributes:
        workforce: the slots that calls get which begin now.
        leaving: slots that are not part of it any more, and stay until no call uses them.
        departed: totals of slots that are gone.
        load: how long the slots have had orders.
        is_closed: whether no worker is watched, replaced or removed any more.
    """

    def __init__(self, backend: Backend, settings: PoolSettings, prepare: Callable[..., Awaitable[object]]) -> None:
        """Start without workers.

        Args:
            backend: creates workers.
            settings: what each worker is made with, limits for their work, and how often they are replaced.
            prepare: gives a new worker its agents and environments; see `Versions.prepare`.
        """
        self._backend, self._settings, self._prepare = backend, settings, prepare
        self._health, self._max_workers = settings.health, settings.max_workers
        self._watches: set[asyncio.Task[None]] = set()
        self._replacing: dict[WorkerSlot, asyncio.Task[None]] = {}
        self.is_closed = False
        self._slots: list[WorkerSlot] = []
        self.workforce = Workforce(())
        self._old_workforces: list[Workforce] = []
        self.leaving: list[WorkerSlot] = []
        self._starting: Sequence[WorkerSlot] = ()
        self._ending: dict[WorkerSlot, asyncio.Task[None]] = {}
        # Workers of another version, in their slots.
        self._outdated: deque[tuple[WorkerSlot, WorkerHandle]] = deque()
        self._renewing: asyncio.Task[None] | None = None
        # Set whenever a call has ended; whoever waits clears it.
        self._unused = asyncio.Event()
        self.departed = WorkerTotals()
        self.load = Load()

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, index: int) -> WorkerSlot:  # type: ignore[override]  # slices are not needed
        return self._slots[index]

    @property
    def with_leaving(self) -> Sequence[WorkerSlot]:
        """The slots, in the order of their indices, with leaving ones."""
        return [*self._slots, *self.leaving]

    @property
    def num_healthy(self) -> int:
        """Number of slots that have a worker."""
        return sum(slot.healthy for slot in self._slots)

    def check_enough(self) -> None:
        """Raise TooFewWorkersError if fewer workers are healthy than calls and updates need to begin."""
        expected = self._health.min_healthy_workers
        if self.num_healthy < expected:
            failure = next((slot.last_failure for slot in self._slots if not slot.healthy), "")
            text = f"{self.num_healthy} of {len(self)} workers are healthy, expected at least {expected}"
            raise TooFewWorkersError(f"{text}; {failure}")

    def check_number(self, num_workers: int) -> None:
        """Raise OverLimitError or InvalidValueError if there may not be so many workers, or not so few."""
        if self._max_workers is not None and num_workers > self._max_workers:
            expected = f"at most {self._max_workers}, as --max-workers says"
            raise OverLimitError.of("worker_count", expected=expected, got=num_workers, reason=Reason.TOO_MANY_WORKERS)
        if num_workers < self._health.min_healthy_workers:
            expected = f"at least {self._health.min_healthy_workers}, which must be healthy for calls to begin"
            raise InvalidValueError.of("worker_count", expected=expected, got=num_workers)

    async def start(self, num_workers: int) -> None:
        """Start the workers. Workers whose processes end at once are replaced later, if any other has started.

        If an earlier server left some, the other slots count as lost, and get workers while those work. Workers of it
        that cannot be used end.

        Raises:
            WorkerLostError: a worker did not start in time, or none has started.
            SamplerLostError: another server may have the sampler by now.
        """
        await self._backend.end_other_workers()
        left = [self._backend.find_worker(index) for index in range(num_workers)]
        self._slots = [self._new_slot(index, handle) for index, handle in enumerate(left)]
        self._outdated.extend(
            (slot, handle) for slot, handle in zip(self._slots, left, strict=True) if handle and handle.is_outdated
        )
        self.workforce = Workforce(self._slots)
        missing = [slot for slot, handle in zip(self._slots, left, strict=True) if handle is None and any(left)]
        awaited = [slot for slot in self._slots if slot not in missing]
        starting = (self._identify(slot.index, slot.handle) for slot in awaited)
        outcomes = await asyncio.gather(*starting, return_exceptions=True)
        _check_started(outcomes, has_earlier=any(left))
        for slot, outcome in zip(awaited, outcomes, strict=True):
            slot.healthy = True
            if isinstance(outcome, WorkerIdentity):
                slot.identity = outcome
            elif isinstance(outcome, WorkerLostError):
                self.lose(slot.index, slot.handle, outcome)
        for slot in missing:
            slot.last_failure = f"worker {slot.index} was gone when the server began"
            _log.warning("worker lost", extra={"worker": slot.index, "error": slot.last_failure})
            self._replace_soon(slot, is_created=True)

    def resume_totals(self, workers: Sequence[WorkerTotals], departed: WorkerTotals) -> None:
        """Continue the totals of an earlier server, which had as many workers."""
        self.departed = self.departed.plus(departed)
        for slot, totals in zip(self._slots, workers, strict=True):
            slot.num_simulated_steps += totals.num_simulated_steps
            slot.restarts.count += totals.num_restarts
            slot.last_failure = slot.last_failure or totals.last_failure

    async def ready(self, slot: WorkerSlot) -> WorkerHandle:
        """Return the worker in a slot once there is one.

        Raises:
            WorkerLostError: the worker was lost and not replaced in the time that one may take to start, or the slot is
                given up.
        """
        since = time.monotonic()
        while not slot.healthy:
            max_seconds = _GIVEN_UP_SECONDS if slot.given_up else self._health.start_seconds
            left = since + max_seconds - time.monotonic()
            if self.is_closed:
                raise WorkerLostError(f"worker {slot.index} is lost: the run has ended", slot.index)
            await self._wait_for_any([slot], min(max(left, 0.0), _LOOK_SECONDS))
            if not slot.healthy and left <= 0:
                what = "is given up for now" if slot.given_up else f"could not be replaced within {max_seconds:g} s"
                raise WorkerLostError(f"worker {slot.index} was lost and {what}: {slot.last_failure}", slot.index)
        return slot.handle

    async def available(self, slot: WorkerSlot) -> WorkerHandle:
        """Return the worker in a slot once it has one that no broadcast has reserved; raises as `ready`."""
        while True:
            handle = await self.ready(slot)
            if not slot.reserved.locked():
                return handle
            async with slot.reserved:
                pass

    async def first_ready(self) -> None:
        """Wait until any slot has a worker.

        Raises:
            WorkerLostError: none has one within the time that a worker may take to start, or all slots are given up.
        """
        since = time.monotonic()
        while not self.num_healthy:
            left = since + self._health.start_seconds - time.monotonic()
            if left <= 0 or self.is_closed or all(slot.given_up for slot in self._slots):
                raise WorkerLostError(f"all workers are lost: {self._slots[0].last_failure}", 0)
            await self._wait_for_any(self._slots, min(left, _LOOK_SECONDS))

    async def share(self, value: _R) -> _R:
        """Return what stands for a large value in calls of several workers, so that it is copied once for all."""
        return value if len(self) == 1 else await asyncio.to_thread(self._backend.share, value)

    def forgive(self) -> None:
        """Let each slot have another worker if all are given up: an update may end what workers were lost to."""
        if all(slot.given_up for slot in self._slots):
            for slot in self._slots:
                slot.restarts.excuse(1)
                slot.given_up = False

    def lose(self, index: int, handle: WorkerHandle, error: WorkerLostError | None = None) -> None:
        """Record that a worker is gone, unless that is known, and replace it.

        Args:
            index: index of its slot.
            handle: the worker.
            error: why it is gone, if that is known; what it has not answered fails with this error.
        """
        candidates = (*self._slots[index : index + 1], *self._starting, *self.leaving)
        slot = next((slot for slot in candidates if slot.handle is handle), None)
        if slot is None or not slot.healthy or slot in self._ending:
            return
        slot.healthy = False
        slot.lost_in_broadcast = slot.num_broadcasts > 0
        slot.last_failure = error.text if error else f"worker {index} is lost"
        if slot.is_excused:
            slot.is_excused = False
            slot.restarts.excuse(1)
        handle.kill(error)
        _log.warning("worker lost", extra={"worker": index, "error": slot.last_failure})
        self._replace_soon(slot)

    def renew(self) -> None:
        """Begin to replace workers while calls run.

        Replaced are workers that a server of another version has made, one by one, and from then on those of machines
        that are about to leave. Each gives its place to a new one between two calls, or after 10 s in the middle of a
        call, which then runs its work again.
        """
        self._renewing = asyncio.create_task(self._renew_all())

    async def _renew_all(self) -> None:
        was_outdated = bool(self._outdated)
        while True:
            while self._outdated:
                slot, handle = self._outdated[0]
                if not (slot in self._slots and slot.handle is handle) or await self._is_renewed(slot, may_wait=False):
                    self._outdated.popleft()
            if was_outdated:
                was_outdated = False
                _log.info("all workers are of this version")
            nodes = await asyncio.to_thread(self._backend.leaving_nodes)
            if nodes is None:
                return
            for slot in [each for each in self._slots if each.healthy and each.identity.node in nodes]:
                await self._is_renewed(slot, may_wait=True)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _is_renewed(self, slot: WorkerSlot, *, may_wait: bool) -> bool:
        """Renew the worker of a slot; return whether that has succeeded. After a failure, wait for a while."""
        try:
            await self._renew(slot, may_wait=may_wait)
        except (DomainError, RuntimeError) as error:
            _log.warning("worker not renewed", extra={"worker": slot.index, "error": str(error)})
            await asyncio.sleep(_RENEWAL_PAUSE_SECONDS)
            return False
        return True

    async def _renew(self, slot: WorkerSlot, *, may_wait: bool) -> None:
        """Replace the worker of a slot by a new one, which starts beside it if there is room.

        Args:
            slot: the slot.
            may_wait: whether the worker stays as it is while there is no room for another; else it ends first.

        Raises:
            WorkerLostError: the new worker does not start, or cannot be given what the others hold. The old one stays.
        """
        if not await asyncio.to_thread(self._backend.has_room):
            if may_wait:
                return
            await self._border()
            slot.is_excused = True
            self.lose(slot.index, slot.handle, WorkerLostError(f"worker {slot.index} is renewed", slot.index))
            await self.ready(slot)
            return
        old, new = slot.handle, self._new_slot(slot.index)
        try:
            await self.started(new)
            await self._border()
            await self.give_what_others_hold(new)
        except BaseException:
            new.handle.kill()
            raise
        if not (slot.healthy and slot.handle is old and slot in self._slots):  # it was lost or removed meanwhile
            new.handle.kill()
            return
        slot.handle, slot.identity = new.handle, new.identity
        if self._is_used:
            old.kill(WorkerLostError(f"worker {slot.index} was renewed", slot.index))
        else:
            in_background(_close(old))
        _log.info("worker renewed", extra={"worker": slot.index})

    async def _border(self) -> None:
        """Wait for a moment in which no call runs, for up to 10 s."""
        until = time.monotonic() + BORDER_SECONDS
        while self._is_used and time.monotonic() < until:
            self._unused.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(until - time.monotonic()):
                    await self._unused.wait()

    @property
    def _is_used(self) -> bool:
        """Whether a call uses workers."""
        return any(workforce.num_calls for workforce in (self.workforce, *self._old_workforces))

    @contextlib.asynccontextmanager
    async def starting(self, indices: range) -> AsyncGenerator[Sequence[WorkerSlot], None]:
        """Start workers behind the last one. Those that have not joined the others when the block ends are ended."""
        slots: list[WorkerSlot] = []
        self._starting = slots
        try:
            for index in indices:
                slots.append(self._new_slot(index))
                await asyncio.sleep(0)  # creating many takes a while, in which others are served
            yield slots
        finally:
            self._starting = ()
            left = [slot for slot in slots if not self.workforce.has(slot)]
            replacing = [self._replacing.pop(slot) for slot in left if slot in self._replacing]
            for task in replacing:
                task.cancel()
            await asyncio.gather(*replacing, return_exceptions=True)
            await asyncio.gather(*(_close(slot.handle) for slot in left if slot.healthy))
            for slot in left:
                slot.handle.kill()

    async def started(self, slot: WorkerSlot) -> None:
        """Wait until the worker of a starting slot has started; raise WorkerLostError if it does not in time."""
        slot.identity = await self._identify(slot.index, slot.handle)

    async def give_what_others_hold(self, slot: WorkerSlot, *, only_envs: bool = False) -> None:
        """Give a worker that has started what the others hold, or their environments alone.

        Raises:
            WorkerLostError: the worker is lost, or refuses it.
            SamplerLostError: the sampler belongs to another server.
        """
        with giving_what_others_hold(slot.index):
            await self._prepare(slot.index, slot.handle, only_envs=only_envs)
        slot.healthy = not only_envs

    def resize(self, num_workers: int, added: Sequence[WorkerSlot]) -> None:
        """Give calls that begin now the first slots and the added ones. The others leave once no call uses them."""
        self._old_workforces.append(self.workforce)
        self.leaving += self._slots[num_workers:]
        self._slots = [*self._slots[:num_workers], *added]
        self.workforce = Workforce(self._slots)
        self._release_leaving()

    @contextlib.contextmanager
    def using_workforce(self) -> Iterator[Workforce]:
        """Yield the slots that calls get which begin now, and keep their workers for the duration of the block."""
        workforce = self.workforce
        workforce.num_calls += 1
        try:
            yield workforce
        finally:
            workforce.num_calls -= 1
            self._unused.set()
            self._release_leaving()

    def _release_leaving(self) -> None:
        """End the workers of leaving slots that no call uses any more."""
        if not self._old_workforces:
            return
        self._old_workforces = [workforce for workforce in self._old_workforces if workforce.num_calls]
        for slot in self.leaving:
            if slot not in self._ending and not any(workforce.has(slot) for workforce in self._old_workforces):
                self._ending[slot] = asyncio.create_task(self._remove(slot))

    def hand_over(self) -> None:
        """Leave the workers to another server, except the workers of leaving slots."""
        self.abandon()
        for slot in self.leaving:
            slot.handle.kill()

    async def close(self) -> None:
        """End all workers, also if the caller does not wait for it."""
        self.abandon()
        try:
            await asyncio.gather(*(_close(slot.handle) for slot in self.with_leaving if slot.healthy))
        finally:
            for slot in self.with_leaving:
                slot.handle.kill()
            self.leaving.clear()

    def abandon(self) -> None:
        """Watch, replace and remove no worker any more."""
        self.is_closed = True
        for task in (*self._watches, *self._replacing.values(), *self._ending.values()):
            task.cancel()
        if self._renewing is not None:
            self._renewing.cancel()

    async def _remove(self, slot: WorkerSlot) -> None:
        """End the worker of a slot that no call uses any more, or its replacement."""
        if (replacing := self._replacing.pop(slot, None)) is not None:
            replacing.cancel()
        if slot.healthy:
            await _close(slot.handle)
        self.leaving.remove(slot)
        del self._ending[slot]
        self.departed = self.departed.plus(slot.totals)
        _log.info("worker removed", extra={"worker": slot.index})

    def _new_slot(self, index: int, handle: WorkerHandle | None = None) -> WorkerSlot:
        """Return a slot with this worker, or with a new one that may not have started yet."""
        handle = handle or self._backend.create_worker(index, self._settings.worker)
        return WorkerSlot(index, handle, Restarts(self._health.worker_restarts_per_hour))

    async def _identify(self, index: int, handle: WorkerHandle) -> WorkerIdentity:
        """Wait until a worker has started, and watch it from then on. It is killed if it does not start.

        Raises:
            WorkerLostError: the worker does not start, or not in time.
        """
        max_seconds = self._health.start_seconds
        try:
            async with asyncio.timeout(max_seconds):
                identity = await handle.call(Worker.identity)
        except TimeoutError as error:
            handle.kill()
            message = f"worker {index} did not start within {max_seconds:g} s: is there room for it?"
            raise WorkerLostError(message, index) from error
        except BaseException:
            handle.kill()
            raise
        seed = dict(identity.packages).get(HASH_SEED_NAME)
        if seed != HASH_SEED:
            event = "a worker has another hash seed: environments that iterate over sets may have other episodes in it"
            _log.warning(event, extra={"worker": index, "expected": HASH_SEED, "hash_seed": seed or "unknown"})
        watch = asyncio.create_task(self._watch(index, handle))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        return identity

    async def _watch(self, index: int, handle: WorkerHandle) -> None:
        """Record the worker's loss, whether it is in its slot by then or still being prepared."""
        error = await wait_for_loss(index, handle, self._health)
        self.lose(index, handle, error)
        handle.kill(error)

    async def _start(self, slot: WorkerSlot) -> None:
        """Wait for the slot's next worker to start, and give it what the others hold. It is killed if that fails.

        It gets only what calls use now while an update waits, or if more has ended the last one: what ends workers must
        not keep out the update that replaces it.

        Raises:
            WorkerLostError: the worker did not start in time, or cannot be given what the others hold.
            SamplerLostError: the sampler belongs to another server.
        """
        try:
            identity = await self._identify(slot.index, slot.handle)
            may_lack = not slot.has_refused
            slot.has_refused, slot.was_ended, must_lack = False, True, slot.was_ended
            try:
                with giving_what_others_hold(slot.index):
                    await self._prepare(slot.index, slot.handle, may_lack=may_lack, must_lack=must_lack)
            except WorkerLostError as error:
                slot.has_refused = isinstance(error.__cause__, DomainError)
                slot.was_ended = not slot.has_refused
                raise
            slot.was_ended = False
        except BaseException:
            slot.handle.kill()
            raise
        slot.identity, slot.healthy, slot.lost_in_broadcast = identity, True, False

    def _replace_soon(self, slot: WorkerSlot, *, is_created: bool = False) -> None:
        """Replace the worker of a slot, whose first replacement may have been created already."""
        self._replacing[slot] = asyncio.create_task(self._replace(slot, is_created=is_created))

    async def _replace(self, slot: WorkerSlot, *, is_created: bool) -> None:
        """Replace the worker of a slot, again and again within its budget."""
        while not self.is_closed:
            if not is_created:
                await self._wait_for_budget(slot)
            slot.restarts.begin(time.monotonic())
            try:
                if not is_created:
                    slot.handle = self._backend.create_worker(slot.index, self._settings.worker)
                is_created = False
                await self._start(slot)
            except BaseException as error:  # whatever it is, the next worker may do better
                slot.last_failure = str(failure_of(error))
                _log.warning("worker not replaced", extra={"worker": slot.index, "error": slot.last_failure})
            else:
                del self._replacing[slot]
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

    async def _wait_for_any(self, slots: Sequence[WorkerSlot], seconds: float) -> None:
        """Wait until one of the slots has a worker again, or the time is over."""
        tasks = {self._replacing[slot] for slot in slots}
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)


def _check_started(outcomes: Sequence[WorkerIdentity | BaseException], *, has_earlier: bool) -> None:
    """Raise the first failure, unless it is a worker that ended at once while another one has started."""
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    for failure in failures:
        may_come_later = has_earlier or not isinstance(failure.__cause__, TimeoutError)  # else the cluster has no room
        is_lost = isinstance(failure, WorkerLostError) and may_come_later
        if len(failures) == len(outcomes) or not is_lost:
            raise failure


@contextlib.contextmanager
def giving_what_others_hold(index: int) -> Iterator[None]:
    """Turn a worker's refusal in the block into its loss: others hold what it refuses."""
    try:
        yield
    except (WorkerLostError, SamplerLostError):
        raise
    except DomainError as error:
        text = f"worker {index} cannot be given what the others hold: {error.message}"
        raise WorkerLostError(text, index) from error


async def _close(handle: WorkerHandle) -> None:
    """Close a worker's environments, for up to 2 s, and end it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await asyncio.gather(handle.call(Worker.close), return_exceptions=True)
    handle.kill()
