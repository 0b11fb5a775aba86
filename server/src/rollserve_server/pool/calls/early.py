"""Early claims of a call, and what workers have written for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rollserve_server.pool.calls.claims import PendingDelivery
from rollserve_server.sampling import EarlyClaim

if TYPE_CHECKING:
    from rollserve_server.pool.backends.backend import RemoteBuffer
    from rollserve_server.pool.plan.claiming import PlannedClaim, Stretch
    from rollserve_server.sampling import Parcel

__all__ = ["EarlyClaims"]


class EarlyClaims:
    """The early claims of one call, which no other call knows: their messages have the form that this call wants.

    An early claim changes nothing: its worker keeps the episodes, and writes them again if they are claimed in another
    way, or by another call.
    """

    def __init__(self, names: Iterator[int]) -> None:
        """Start without claims.

        Args:
            names: names for claims; none comes twice in a sequence.
        """
        self._names = names
        self._expected: set[int] = set()
        # The last delivery of each worker that was written early and is not claimed.
        self._written: dict[int, PendingDelivery] = {}

    @property
    def stops(self) -> list[int]:
        """Indices behind the last episodes of what is written."""
        return [delivery.parcel.stop[0] for delivery in self._written.values()]

    def expect(self, stretch: Stretch) -> EarlyClaim:
        """Return the early claim of a stretch, for the order of its worker."""
        claim = EarlyClaim(next(self._names), stretch.start, stretch.stop, stretch.num_missing_steps, stretch.owner)
        self._expected.add(claim.claim_id)
        return claim

    def take_report(self, worker: int, buffer: RemoteBuffer, asked: EarlyClaim, parcel: Parcel | None) -> None:
        """Record the answer to an order with an early claim, which may be another call's."""
        if asked.claim_id in self._expected:
            self._expected.discard(asked.claim_id)
            if parcel is not None:
                self._written[worker] = PendingDelivery(worker, buffer, parcel)

    def lose(self, worker: int) -> None:
        """Forget what a lost worker has written: its episodes run again."""
        self._written.pop(worker, None)

    def claim(self, planned: PlannedClaim, claim_id: int) -> PendingDelivery | None:
        """Return what was written of just these episodes, under the name of their claim; None if nothing was."""
        delivery = self._written.get(planned.worker)
        if delivery is None or (delivery.parcel.start[0], delivery.parcel.stop[0]) != (planned.start, planned.stop):
            return None
        del self._written[planned.worker]
        return delivery.named(claim_id)
