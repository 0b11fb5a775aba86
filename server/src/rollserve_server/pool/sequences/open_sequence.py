"""A stream from call to call: which of its episodes were begun, where they are, and what is on its way."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rollserve_server.pool.calls.stragglers import Cancellations

if TYPE_CHECKING:
    import asyncio

    from rollserve_server.pool.backends.backend import RemoteBuffer, WorkerHandle
    from rollserve_server.pool.plan.placement import Placement
    from rollserve_server.pool.plan.plan import Ledger
    from rollserve_server.pool.workers.workforce import Workforce
    from rollserve_server.sampling import Claim, Order, Report, SequenceSpec

__all__ = ["InFlight", "OpenSequence"]


class InFlight(NamedTuple):
    """An order, and what is to come of it."""

    order: Order
    report: asyncio.Future[Report]
    payload: RemoteBuffer


@dataclass(eq=False)
class OpenSequence:
    """A stream, and what is known of its episodes from call to call.

    Attributes:
        spec: its name and what its episodes are a function of.
        placement: where its episodes run.
        ledger: those that were begun and not claimed.
        team: the workers that may run them.
        handles: of each place in the team, the worker that has a part in the stream.
        in_flight: of each worker, orders that have not been answered, with their answers to come.
        held_steps: of each worker, steps that it made and that are not delivered.
        releases: of each worker, claims of episodes that it keeps although they are taken, because it wrote them early.
        cancellations: of each worker, episodes that it has although others have them, too, and were first.
        claim_names: names for claims.
        begun_at: of episodes that have not ended, when a worker was told to begin them.
    """

    spec: SequenceSpec
    placement: Placement
    ledger: Ledger
    workforce: Workforce
    handles: list[WorkerHandle | None]
    in_flight: list[deque[InFlight]]
    held_steps: list[int]
    releases: list[list[Claim]]
    cancellations: list[Cancellations]
    claim_names: Iterator[int] = field(default_factory=itertools.count)
    begun_at: dict[int, float] = field(default_factory=dict)

    @classmethod
    def begin(cls, sequence: SequenceSpec, placement: Placement, ledger: Ledger, workforce: Workforce) -> OpenSequence:
        """A stream that no worker has a part in yet."""
        return cls(
            sequence,
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
        """How many steps were made and not delivered."""
        return sum(self.held_steps)
