"""The state of a worker in a fragment call."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rollserve_server.errors import DomainError
    from rollserve_server.pool.backends.backend import RemoteBuffer, WorkerHandle
    from rollserve_server.pool.sequences.in_flight import InFlight
    from rollserve_server.pool.sequences.open_work import WorkLocation
    from rollserve_server.sampling import FragmentOrder, FragmentReport, Message, RowProgress

__all__ = ["FragmentWorker", "PendingMessages"]


class PendingMessages(NamedTuple):
    """Messages whose buffer is not fetched yet, and the worker that wrote them."""

    messages: Sequence[Message]
    buffer: RemoteBuffer
    handle: WorkerHandle


@dataclass(eq=False)
class FragmentWorker:
    """The state of a worker in a fragment call.

    Attributes:
        index: index of the worker.
        num_row_steps: number of steps that each of its rows makes.
        num_rows: number of its rows.
        location: where the rows are; None if they have to be made.
        in_flight: orders that are not answered.
        num_made: steps made since its rows were made, except repeated steps that brought rows to where they stood.
        num_skipped: steps at the beginning that are not written this time, because they are written or delivered
            already.
        num_written: steps that are written, delivered, or not wanted.
        num_done: the part of them that is not pending.
        pending: what was written and is not delivered.
        progress: where the rows stand, once all is made and written.
        num_unknown: rows that begin their next episodes, because the way back to where they stood is not known.
        num_broken_off: all rows that could not be brought back to where they stood.
        losses: for each time that the worker was lost at its work, the steps that it had reported since its rows were
            made.
        num_steps_per_report: largest number of steps in a report.
        num_strandings: how often its rows were made again because of an environment's error.
        failure: the last such error.
        num_needed_row_steps: number of steps that each row has to make in any case: the least share that the request
            asks for, or more because they are written.
        is_missing: whether the slot has no worker and gets none for now.
        is_abandoned: whether the call goes on without the worker; its rows stand where they did.
        is_stuck: whether the worker had nothing to do with its last order, because it holds as much as it may.
    """

    index: int
    num_row_steps: int
    num_rows: int
    location: WorkLocation | None = None
    in_flight: deque[InFlight[FragmentOrder, FragmentReport]] = field(default_factory=deque)
    num_made: int = 0
    num_skipped: int = 0
    num_written: int = 0
    num_done: int = 0
    pending: deque[PendingMessages] = field(default_factory=deque)
    progress: Collection[RowProgress] | None = None
    num_unknown: int = 0
    num_broken_off: int = 0
    losses: list[int] = field(default_factory=list)
    num_steps_per_report: int = 0
    num_strandings: int = 0
    failure: DomainError | None = None
    num_needed_row_steps: int = 0
    is_missing: bool = False
    is_abandoned: bool = False
    is_stuck: bool = False

    @property
    def num_steps(self) -> int:
        """Number of steps that its rows make."""
        return self.num_row_steps * self.num_rows

    @property
    def has_enough(self) -> bool:
        """Whether its rows have made the steps that they have to make in any case."""
        return self.num_made >= self.num_needed_row_steps * self.num_rows

    @property
    def num_pending_bytes(self) -> int:
        """Bytes that wait to be delivered."""
        return sum(message.size for pending in self.pending for message in pending.messages)

    @property
    def num_losses_at_one_step(self) -> int:
        """How often the worker may have been lost at the same step, the furthest: a step that kills does so each time.

        The steps of up to two orders were made and not reported.
        """
        furthest = max(self.losses, default=0) - 2 * self.num_steps_per_report
        return sum(num_steps >= furthest for num_steps in self.losses)

    def skip(self, num_steps: int) -> int:
        """Leave out steps at the beginning; return how many of them are beyond the worker's own."""
        self.num_skipped = self.num_written = self.num_done = min(num_steps, self.num_steps)
        return num_steps - self.num_done

    def forget_rows(self) -> None:
        """Expect nothing more from the rows."""
        self.in_flight.clear()
        self.location = None

    def abandon(self) -> None:
        """Go on without the worker; its rows stand where they did before the call."""
        self.progress, self.num_row_steps, self.is_abandoned = [], 0, True
