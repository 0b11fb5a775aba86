"""An open sequence: which of its episodes were begun, where they are, and what workers hold, from call to call."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollserve_server.pool.sequences.cancellations import Cancellations

if TYPE_CHECKING:
    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.pool.plan.ledger import Ledger
    from rollserve_server.pool.plan.placement import Placement
    from rollserve_server.pool.sequences.in_flight import InFlight
    from rollserve_server.pool.workers.workforce import Workforce
    from rollserve_server.sampling import Claim, Order, Report, SequenceSpec

__all__ = ["OpenSequence"]


@dataclass(eq=False)
class OpenSequence:
    """A sequence whose episodes workers have begun.

    Attributes:
        spec: what its episodes are a function of, and the name of the workers' work on it.
        placement: which worker an episode belongs to.
        ledger: episodes that were begun and are not claimed.
        workforce: workers that may run its episodes.
        handles: for each slot, the worker that has work on it, or None.
        in_flight: for each slot, orders that are not answered.
        held_steps: for each slot, steps that were simulated and are not delivered.
        releases: for each slot, claims that the worker keeps although they are delivered, because it wrote them early.
        cancellations: for each slot, cancelled episodes that the worker may still have.
        claim_names: names for claims.
        begun_at: for each running episode, when its order was sent.
    """

    spec: SequenceSpec
    placement: Placement
    ledger: Ledger
    workforce: Workforce
    handles: list[WorkerHandle | None]
    in_flight: list[deque[InFlight[Order, Report]]]
    held_steps: list[int]
    releases: list[list[Claim]]
    cancellations: list[Cancellations]
    claim_names: Iterator[int] = field(default_factory=itertools.count)
    begun_at: dict[int, float] = field(default_factory=dict)

    @classmethod
    def begin(cls, spec: SequenceSpec, placement: Placement, ledger: Ledger, workforce: Workforce) -> OpenSequence:
        """Return a sequence that no worker has work on."""
        return cls(
            spec,
            placement,
            ledger,
            workforce,
            handles=[None for _ in workforce],
            in_flight=[deque() for _ in workforce],
            held_steps=[0 for _ in workforce],
            releases=[[] for _ in workforce],
            cancellations=[Cancellations() for _ in workforce],
        )

    @property
    def num_held_steps(self) -> int:
        """Number of steps that were simulated and are not delivered."""
        return sum(self.held_steps)
