"""The workforce of a call: the slots that it began with, whatever the pool's size becomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rollserve_server.pool.workers.slot import WorkerSlot

if TYPE_CHECKING:
    from rollserve_server.pool.accounts.account import Account

__all__ = ["Workforce"]


class Workforce(Sequence[WorkerSlot]):
    """The slots between two changes of their number, in the order of their indices.

    A lost worker is replaced in its slot as long as a call uses the workforce, also in a slot that is leaving.

    Attributes:
        is_current: whether calls that begin now get this workforce.
        num_calls: number of calls that use the workforce, so that its workers have to stay.
    """

    def __init__(self, slots: Sequence[WorkerSlot]) -> None:
        self.is_current = True
        self.num_calls = 0
        self._slots = tuple(slots)

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, index: int) -> WorkerSlot:  # type: ignore[override]  # slices are not needed
        return self._slots[index]

    def has(self, slot: WorkerSlot) -> bool:
        """Whether a slot belongs to the workforce."""
        return slot.index < len(self) and self._slots[slot.index] is slot

    def can_do_without(self, index: int) -> bool:
        """Whether other workers, healthy or still to come, can do the work of one that did not become ready."""
        given_up = self._slots[index].given_up
        return any(slot.healthy or (given_up and not slot.given_up) for slot in self._slots)

    def count_simulated(self, account: Account) -> None:
        """Add a call's simulated steps to the totals of its workers."""
        for slot, share in zip(self._slots, account.workers, strict=True):
            slot.num_simulated_steps += share.num_simulated_steps
