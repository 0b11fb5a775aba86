"""Slots: positions in the pool with the workers in them, and which a call uses."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollserve_server.pool.accounts import WorkerTotals
from rollserve_server.sampling import WorkerIdentity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_server.pool.accounts import Account
    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.pool.workers.restarts import Restarts


__all__ = ["WorkerSlot", "Workforce"]

_NOWHERE = WorkerIdentity(0, "")


@dataclass(eq=False)
class WorkerSlot:
    """A slot.

    Attributes:
        index: index of the slot, from 0.
        handle: the worker, or the last one that was in the slot.
        restarts: attempts to replace the worker.
        identity: where the worker runs, or the last one ran.
        healthy: whether the slot has a worker.
        given_up: whether the slot has no worker and gets none for now, because too many were lost.
        last_failure: why the last worker was lost or could not be started; empty if that never happened.
        num_broadcasts: number of broadcasts that the worker has not answered.
        reserved: held by a broadcast that calls wait for.
        lost_in_broadcast: whether the previous worker died during a broadcast, which may have killed it. Cleared once a
            replacement is up.
        has_refused: whether the last new worker refused what the others hold.
        was_ended: whether the last new worker ended while it was given what the others hold.
        is_excused: whether the loss of the worker is excused, because it ran work that has cost other workers.
        num_simulated_steps: steps that all workers of the slot have simulated.
        num_orders: number of orders of all calls that the worker has not answered.
    """

    index: int
    handle: WorkerHandle
    restarts: Restarts
    identity: WorkerIdentity = _NOWHERE
    healthy: bool = False
    given_up: bool = False
    last_failure: str = ""
    num_broadcasts: int = 0
    reserved: asyncio.Lock = field(default_factory=asyncio.Lock)
    lost_in_broadcast: bool = False
    has_refused: bool = False
    was_ended: bool = False
    is_excused: bool = False
    num_simulated_steps: int = 0
    num_orders: int = 0

    @property
    def totals(self) -> WorkerTotals:
        """Totals of the workers that the slot has had."""
        return WorkerTotals(self.num_simulated_steps, self.restarts.count, self.last_failure)


class Workforce:
    """The slots between two changes of their number, in the order of their indices.

    A lost worker is replaced in its slot as long as a call uses the workforce, also in a slot that is leaving.

    Attributes:
        slots: the slots.
        num_calls: number of calls that use the workforce, so that its workers have to stay.
    """

    def __init__(self, slots: Sequence[WorkerSlot]) -> None:
        self.num_calls = 0
        self.slots = tuple(slots)

    def __len__(self) -> int:
        return len(self.slots)

    def has(self, slot: WorkerSlot) -> bool:
        """Whether a slot belongs to the workforce."""
        return slot.index < len(self.slots) and self.slots[slot.index] is slot

    def begins_with(self, other: Workforce) -> bool:
        """Whether the workforce has all slots of another one, and maybe more behind them."""
        return self.slots[: len(other)] == other.slots

    def can_do_without(self, index: int) -> bool:
        """Whether other workers, healthy or still to come, can do the work of one that did not become ready."""
        given_up = self.slots[index].given_up
        return any(slot.healthy or (given_up and not slot.given_up) for slot in self.slots)

    def count_simulated(self, account: Account) -> None:
        """Add a call's simulated steps to the totals of its workers."""
        for slot, share in zip(self.slots, account.workers, strict=True):
            slot.num_simulated_steps += share.num_simulated_steps
