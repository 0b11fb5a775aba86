"""A stream from call to call: which of its episodes were begun, where they are, and what is on its way."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import asyncio

    from rollserve_server.pool.backend import Payload, WorkerHandle
    from rollserve_server.pool.placement import Placement
    from rollserve_server.pool.plan import Ledger
    from rollserve_server.sampling import Claim, Order, Report, Stream

__all__ = ["InFlight", "OpenStream"]


class InFlight(NamedTuple):
    """An order, and what is to come of it."""

    order: Order
    report: asyncio.Future[Report]
    payload: Payload


@dataclass(eq=False)
class OpenStream:
    """A stream, and what is known of its episodes from call to call.

    Attributes:
        stream: its name and what its episodes are a function of.
        placement: where its episodes run.
        ledger: those that were begun and not claimed.
        handles: of each place in the pool, the worker that has a part in the stream.
        in_flight: of each worker, orders that have not been answered, with their answers to come.
        held_steps: of each worker, steps that it made and that are not delivered.
        releases: of each worker, claims of episodes that it keeps although they are taken, because it wrote them early.
    """

    stream: Stream
    placement: Placement
    ledger: Ledger
    handles: list[WorkerHandle | None]
    in_flight: list[deque[InFlight]]
    held_steps: list[int]
    releases: list[list[Claim]]

    @classmethod
    def begin(cls, stream: Stream, placement: Placement, ledger: Ledger, num_workers: int) -> OpenStream:
        """A stream that no worker has a part in yet."""
        return cls(
            stream,
            placement,
            ledger,
            handles=[None] * num_workers,
            in_flight=[deque() for _ in range(num_workers)],
            held_steps=[0] * num_workers,
            releases=[[] for _ in range(num_workers)],
        )

    @property
    def num_held_steps(self) -> int:
        """How many steps were made and not delivered."""
        return sum(self.held_steps)
