"""A worker's place in the pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollserve_server.pool.interface.status import WorkerTotals
from rollserve_server.sampling import WorkerIdentity

if TYPE_CHECKING:
    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.pool.workers.restarts import Restarts

__all__ = ["WorkerSlot"]

_NOWHERE = WorkerIdentity(0, "")


@dataclass(eq=False)
class WorkerSlot:
    """A worker's place.

    Attributes:
        index: its number, from 0.
        handle: the worker, or the last one that was there.
        restarts: of the place.
        identity: where it runs, or has run.
        healthy: whether it is there.
        given_up: whether it is not there, and is not to be replaced for now, because it was lost too often.
        last_failure: what the last one was lost for, or could not be started for; empty if that never happened.
        num_broadcasts: how many things it is being asked that all are asked.
        lost_in_broadcast: whether the last one was lost with such a question, which may have been the cause; false once another
            is there.
        num_simulated_steps: what it, and those before it in this place, have simulated.
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
    num_simulated_steps: int = 0

    @property
    def totals(self) -> WorkerTotals:
        """What is counted of it."""
        return WorkerTotals(self.num_simulated_steps, self.restarts.count, self.last_failure)
