"""Slots: positions in the pool with the workers in them, how often these are replaced, and which a call uses."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollserve_server.pool.accounts import WorkerTotals
from rollserve_server.sampling import WorkerIdentity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_server.pool.accounts import Account
    from rollserve_server.pool.backends.backend import WorkerHandle


__all__ = ["Restarts", "WorkerSlot", "Workforce"]

_NOWHERE = WorkerIdentity(0, "")
_HOUR_SECONDS = 3600.0
_RECENT_SECONDS = 300.0
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.25, 30.0
_MAX_RECENT = 10
"""Restarts after which the pause is the longest."""


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

    @property
    def totals(self) -> WorkerTotals:
        """Totals of the workers that the slot has had."""
        return WorkerTotals(self.num_simulated_steps, self.restarts.count, self.last_failure)


class Restarts:
    """The restarts of one slot, whether they succeeded or not.

    The first is immediate. After restarts within the last five minutes there is a pause, doubled with each of them.
    After the allowed number within the last hour, there is none until the oldest is an hour ago. Restarts that are
    excused do not count towards that number, so that nobody's calls use up the restarts that others need.

    Attributes:
        count: number of restarts so far.
    """

    def __init__(self, per_hour: int) -> None:
        """Start with none, of at least 1 allowed within an hour."""
        self.count = 0
        self._recent: deque[float] = deque(maxlen=_MAX_RECENT)
        self._charged: deque[float] = deque(maxlen=per_hour)
        self._num_excused = 0

    def begin(self, now: float) -> None:
        """Record a restart."""
        self.count += 1
        self._recent.append(now)
        if self._num_excused:
            self._num_excused -= 1
        else:
            self._charged.append(now)

    def excuse(self, num_restarts: int) -> None:
        """Excuse the latest restarts, and the next ones if there were not as many."""
        for _ in range(num_restarts):
            if self._charged:
                self._charged.pop()
            else:
                self._num_excused += 1

    def pause_seconds(self, now: float) -> float:
        """Return how long to wait before the next restart, because others were recent."""
        num_recent = sum(now - time < _RECENT_SECONDS for time in self._recent)
        pause: float = _FIRST_PAUSE_SECONDS * 2 ** (num_recent - 1) if num_recent else 0.0
        return min(pause, _MAX_PAUSE_SECONDS)

    def forbidden_seconds(self, now: float) -> float:
        """Return how long there may be no restart, because there were too many; 0 if there may be one."""
        if len(self._charged) < (self._charged.maxlen or 1):
            return 0.0
        return max(self._charged[0] + _HOUR_SECONDS - now, 0.0)


class Workforce:
    """The slots between two changes of their number, in the order of their indices.

    A lost worker is replaced in its slot as long as a call uses the workforce, also in a slot that is leaving.

    Attributes:
        slots: the slots.
        is_current: whether calls that begin now get this workforce.
        num_calls: number of calls that use the workforce, so that its workers have to stay.
    """

    def __init__(self, slots: Sequence[WorkerSlot]) -> None:
        self.is_current = True
        self.num_calls = 0
        self.slots = tuple(slots)

    def __len__(self) -> int:
        return len(self.slots)

    def has(self, slot: WorkerSlot) -> bool:
        """Whether a slot belongs to the workforce."""
        return slot.index < len(self.slots) and self.slots[slot.index] is slot

    def can_do_without(self, index: int) -> bool:
        """Whether other workers, healthy or still to come, can do the work of one that did not become ready."""
        given_up = self.slots[index].given_up
        return any(slot.healthy or (given_up and not slot.given_up) for slot in self.slots)

    def count_simulated(self, account: Account) -> None:
        """Add a call's simulated steps to the totals of its workers."""
        for slot, share in zip(self.slots, account.workers, strict=True):
            slot.num_simulated_steps += share.num_simulated_steps
