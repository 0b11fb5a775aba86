"""The workers of a call: those that were there when it began, whatever becomes of the pool's size meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollserve_server.errors import WorkerLostError
    from rollserve_server.pool.accounts.account import Account
    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.pool.workers.slot import WorkerSlot
    from rollserve_server.pool.workers.workers import Workers

__all__ = ["Workforce"]


class Workforce(Sequence["WorkerSlot"]):
    """The places of all workers, in the order of their indices, between two changes of their number.

    Who is in a place may change: a worker that is lost is replaced, also in a place that is given up, as long as a call
    uses it.

    Attributes:
        is_current: whether calls that begin now get this one.
    """

    def __init__(self, workers: Workers, places: Sequence[WorkerSlot]) -> None:
        """Takes the pool's places, and those of this team."""
        self.is_current = True
        self._workers = workers
        self._places = tuple(places)
        self._num_users = 0

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> WorkerSlot:  # type: ignore[override]  # slices are not needed
        return self._places[index]

    @property
    def is_in_use(self) -> bool:
        """Whether its workers have to stay, because a call uses them."""
        return self._num_users > 0

    def has(self, slot: WorkerSlot) -> bool:
        """Whether a place is one of these."""
        return slot.index < len(self) and self._places[slot.index] is slot

    @contextlib.contextmanager
    def using(self) -> Iterator[Workforce]:
        """Keeps its workers for as long as the block."""
        self._num_users += 1
        try:
            yield self
        finally:
            self._num_users -= 1
            self._workers.let_go()

    async def ready(self, index: int) -> WorkerHandle:
        """See `Workers.ready`."""
        return await self._workers.ready(self._places[index])

    def can_do_without(self, index: int) -> bool:
        """Whether others can do the work of a worker that did not get ready: those that are there, or still to come."""
        given_up = self._places[index].given_up
        return any(slot.healthy or (given_up and not slot.given_up) for slot in self._places)

    def lose(self, index: int, handle: WorkerHandle, error: WorkerLostError | None = None) -> None:
        """See `Workers.lose`."""
        self._workers.lose(index, handle, error)

    def count_simulated(self, account: Account) -> None:
        """Counts what each worker simulated for what this is the account of."""
        for slot, share in zip(self._places, account.workers, strict=True):
            slot.num_simulated_steps += share.num_simulated_steps
