"""Starting workers: a process, its identity, everything that the other workers hold; and a watch for its loss."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from rollserve import Reason
from rollserve.errors import mismatch
from rollserve.receipts import HASH_SEED, HASH_SEED_NAME
from rollserve_server.activity import Phase
from rollserve_server.errors import DomainError, SamplerLostError, WorkerLostError, describe
from rollserve_server.pool.workers.slots import Restarts, WorkerSlot
from rollserve_server.sampling import Worker, WorkerIdentity

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from rollserve_server.activity import Heartbeat
    from rollserve_server.pool.backends.backend import Backend, WorkerHandle
    from rollserve_server.settings import HealthSettings, PoolSettings


__all__ = ["Launcher", "close_worker", "giving_what_others_hold", "wait_for_loss"]


_log = logging.getLogger(__name__)
_CLOSE_SECONDS = 2.0
_LOOKS = 4
"""Looks within the shorter limit: a worker that hangs is found after at most 1.25 times its limit."""
_MAX_PAUSE_SECONDS = 15.0


class Launcher:
    """Starts workers, and watches each from then on."""

    def __init__(
        self,
        backend: Backend,
        settings: PoolSettings,
        prepare: Callable[..., Awaitable[object]],
        on_loss: Callable[[int, WorkerHandle, WorkerLostError], None],
    ) -> None:
        """Start no worker yet.

        Args:
            backend: creates workers.
            settings: what each worker is made with, and limits for their work.
            prepare: gives a new worker its agents and environments; see `Versions.prepare`.
            on_loss: called when a started worker hangs or is gone.
        """
        self._backend = backend
        self._settings = settings
        self._prepare = prepare
        self._on_loss = on_loss
        self._watches: set[asyncio.Task[None]] = set()

    def new_slot(self, index: int, handle: WorkerHandle | None = None) -> WorkerSlot:
        """Return a slot with this worker, or with a new one that may not have started yet."""
        handle = handle or self._backend.create_worker(index, self._settings.worker)
        return WorkerSlot(index, handle, Restarts(self._settings.health.worker_restarts_per_hour))

    async def identify(self, index: int, handle: WorkerHandle) -> WorkerIdentity:
        """Wait until a worker has started, and watch it from then on. It is killed if it does not start.

        Raises:
            WorkerLostError: the worker does not start, or not in time.
        """
        max_seconds = self._settings.health.start_seconds
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

    async def start(self, slot: WorkerSlot, *, is_added: bool = False) -> None:
        """Wait for the slot's worker to start, and give it what the others hold. It is killed if that fails.

        A worker that replaces another gets only what calls use now while an update waits, or if more has ended the last
        one: what ends workers must not keep out the update that replaces it.

        Args:
            slot: the slot.
            is_added: whether the slot is new, too.

        Raises:
            WorkerLostError: the worker did not start in time, or cannot be given what the others hold.
            SamplerLostError: the sampler belongs to another server.
        """
        try:
            identity = await self.identify(slot.index, slot.handle)
            may_lack = not is_added and not slot.has_refused
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

    async def restart(self, slot: WorkerSlot) -> None:
        """Put a new worker into a slot; errors as of `start`."""
        slot.handle = self._backend.create_worker(slot.index, self._settings.worker)
        await self.start(slot)

    def stop_watching(self) -> None:
        """Watch no worker any more."""
        for watch in self._watches:
            watch.cancel()

    async def _watch(self, index: int, handle: WorkerHandle) -> None:
        """Report the worker's loss, whether it is in its slot by then or still being prepared."""
        error = await wait_for_loss(index, handle, self._settings.health)
        self._on_loss(index, handle, error)
        handle.kill(error)


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


async def close_worker(handle: WorkerHandle) -> None:
    """Close a worker's environments, for up to 2 s, and end it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await asyncio.gather(handle.call(Worker.close), return_exceptions=True)
    handle.kill()


async def wait_for_loss(index: int, worker: WorkerHandle, health: HealthSettings) -> WorkerLostError:
    """Wait until a worker hangs, takes too much memory, or is gone; return the error that says what it was doing.

    A worker that makes progress, however slowly, is left alone: its heartbeats differ. Time is counted in looks, so
    that a worker is not blamed for a time in which this process itself stood still.

    Args:
        index: index of the worker.
        worker: the worker, which has started.
        health: limits for a piece of work. A worker that does not answer at all, because its process is stopped or
            native code lets no other thread run, hangs after the longest of them.
    """
    max_seconds = max(health.step_seconds, health.reset_seconds)
    pause = min(health.step_seconds / _LOOKS, health.reset_seconds / _LOOKS, _MAX_PAUSE_SECONDS)
    last, still_seconds = None, 0.0
    while True:
        await asyncio.sleep(pause)
        try:
            heartbeat, silent_seconds = await _look(worker, pause, max_seconds)
        except WorkerLostError as error:
            return error
        except Exception as error:  # whatever it is: nobody else would find a worker that cannot be watched
            return WorkerLostError(f"worker {index} is lost: it cannot be watched: {describe(error)}", index)
        if heartbeat is None:
            return _hung(index, f"it gave no sign of life for {max_seconds:g} s")
        if heartbeat.takes_too_much_memory:
            return _too_large(index, heartbeat)
        still_seconds = still_seconds + pause + silent_seconds if heartbeat == last else 0.0
        last, limit = heartbeat, _limit(health, heartbeat.phase)
        if limit is not None and still_seconds >= limit:
            return _hung(index, f"{heartbeat.text} took more than {limit:g} s", heartbeat.episode)


def _limit(health: HealthSettings, phase: Phase) -> float | None:
    """Return how long a piece of work of this kind may take; None for any time."""
    if phase is Phase.IDLE:
        return None
    return health.step_seconds if phase in (Phase.STEP, Phase.ACTION) else health.reset_seconds


async def _look(worker: WorkerHandle, pause: float, max_seconds: float) -> tuple[Heartbeat | None, float]:
    """Return the worker's heartbeat, or None if it does not answer in time; and how long the answer took."""
    asked = asyncio.ensure_future(worker.heartbeat())
    seconds = 0.0
    try:
        while not (await asyncio.wait({asked}, timeout=pause))[0]:
            seconds += pause
            if seconds >= max_seconds:
                return None, seconds
        return asked.result(), seconds
    finally:
        asked.cancel()


def _too_large(index: int, heartbeat: Heartbeat) -> WorkerLostError:
    expected = f"at most {heartbeat.max_memory_bytes} bytes of its own (--worker-max-memory-bytes)"
    got = f"{heartbeat.memory_bytes} in {heartbeat.text}"
    text = f"worker {index} took too much memory: {mismatch(expected, got)}"
    return WorkerLostError(text, index, reason=Reason.WORKER_OUT_OF_MEMORY)


def _hung(index: int, text: str, episode: int | None = None) -> WorkerLostError:
    return WorkerLostError(f"worker {index} hung: {text}", index, reason=Reason.WORKER_HUNG, episode_index=episode)
