"""A slot: a position in the pool, and the worker in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollserve_server.pool.accounts.counters import WorkerTotals
from rollserve_server.sampling import WorkerIdentity

if TYPE_CHECKING:
    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.pool.workers.restarts import Restarts

__all__ = ["WorkerSlot"]

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
    lost_in_broadcast: bool = False
    has_refused: bool = False
    was_ended: bool = False
    is_excused: bool = False
    num_simulated_steps: int = 0

    @property
    def totals(self) -> WorkerTotals:
        """Totals of the workers that the slot has had."""
        return WorkerTotals(self.num_simulated_steps, self.restarts.count, self.last_failure)
