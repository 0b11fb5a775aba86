"""Starting workers: a process, its identity, and everything that the other workers hold."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

from rollserve_server.errors import DomainError, SamplerLostError, WorkerLostError
from rollserve_server.pool.workers.liveness import wait_for_loss
from rollserve_server.pool.workers.restarts import Restarts
from rollserve_server.pool.workers.slot import WorkerSlot
from rollserve_server.sampling import Worker, WorkerIdentity
from rollserve_wire.receipts import HASH_SEED, HASH_SEED_NAME

if TYPE_CHECKING:
    from rollserve_server.pool.backends.backend import Backend, WorkerHandle
    from rollserve_server.settings import PoolSettings

__all__ = ["Launcher", "close_worker", "giving_what_others_hold"]

_log = logging.getLogger(__name__)

_CLOSE_SECONDS = 2.0


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
