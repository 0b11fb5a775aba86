"""The workforce of a call: the slots that it began with, whatever the pool's size becomes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from rollserve_server.pool.workers.slot import WorkerSlot

if TYPE_CHECKING:
    from rollserve_server.errors import WorkerLostError
    from rollserve_server.pool.accounts.account import Account
    from rollserve_server.pool.backends.backend import WorkerHandle

__all__ = ["Workforce"]


class _Owner(Protocol):
    """The part of the pool's workers that a workforce needs."""

    async def ready(self, slot: WorkerSlot) -> WorkerHandle: ...

    def lose(self, index: int, handle: WorkerHandle, error: WorkerLostError | None = None) -> None: ...

    def release_leaving(self) -> None: ...


class Workforce(Sequence[WorkerSlot]):
    """The slots between two changes of their number, in the order of their indices.

    A lost worker is replaced in its slot as long as a call uses the workforce, also in a slot that is leaving.

    Attributes:
        is_current: whether calls that begin now get this workforce.
    """

    def __init__(self, workers: _Owner, slots: Sequence[WorkerSlot]) -> None:
        self.is_current = True
        self._workers = workers
        self._slots = tuple(slots)
        self._num_calls = 0

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, index: int) -> WorkerSlot:  # type: ignore[override]  # slices are not needed
        return self._slots[index]

    def has(self, slot: WorkerSlot) -> bool:
        """Whether a slot belongs to the workforce."""
        return slot.index < len(self) and self._slots[slot.index] is slot

    @property
    def is_in_use(self) -> bool:
        """Whether a call uses the workforce, so that its workers have to stay."""
        return self._num_calls > 0

    @contextlib.contextmanager
    def using(self) -> Iterator[Workforce]:
        """Keep the workers for the duration of the block."""
        self._num_calls += 1
        try:
            yield self
        finally:
            self._num_calls -= 1
            self._workers.release_leaving()

    async def ready(self, index: int) -> WorkerHandle:
        """Return the worker in a slot once there is one; errors as of `Workers.ready`."""
        return await self._workers.ready(self._slots[index])

    def can_do_without(self, index: int) -> bool:
        """Whether other workers, healthy or still to come, can do the work of one that did not become ready."""
        given_up = self._slots[index].given_up
        return any(slot.healthy or (given_up and not slot.given_up) for slot in self._slots)

    def lose(self, index: int, handle: WorkerHandle, error: WorkerLostError | None = None) -> None:
        """Record that a worker is gone, and have it replaced; see `Workers.lose`."""
        self._workers.lose(index, handle, error)

    def count_simulated(self, account: Account) -> None:
        """Add a call's simulated steps to the totals of its workers."""
        for slot, share in zip(self._slots, account.workers, strict=True):
            slot.num_simulated_steps += share.num_simulated_steps
