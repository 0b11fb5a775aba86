"""The claims of a call, on their way from the workers to the client, and what workers write early for them."""

from __future__ import annotations

import dataclasses
import operator
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rollserve_server.sampling import Claim, EarlyClaim

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from rollserve_server.pool.backends.backend import RemoteBuffer
    from rollserve_server.pool.plan.claiming import PlannedClaim, Stretch
    from rollserve_server.sampling import Parcel


__all__ = ["Cancellation", "Claims", "PendingDelivery"]

_MAX_PARCELS = 2
"""Parcels of a claim too large for one report that are fetched before they can be delivered."""

_num_steps = operator.attrgetter("num_steps")


class PendingDelivery(NamedTuple):
    """A parcel whose buffer is not fetched yet.

    Attributes:
        worker: index of the worker that wrote it.
        buffer: the buffer that holds its messages.
        parcel: the messages.
    """

    worker: int
    buffer: RemoteBuffer
    parcel: Parcel

    @property
    def num_steps(self) -> int:
        """Number of steps in the messages."""
        return sum(map(_num_steps, self.parcel.messages))


class Cancellation(NamedTuple):
    """Episodes that a worker is to drop, because another one has delivered them."""

    worker: int
    indices: range


@dataclass(eq=False)
class _Source:
    """A worker that has the episodes of a claim, or runs them again.

    Attributes:
        claim: the claim, as the worker knows it.
        worker: index of the worker; None if any may run the episodes.
        since: when an idle worker began to wait for the source; None before.
        is_ordered: whether an order that names the claim is with the worker.
        missing: episodes that run again.
        is_begun: whether the order to run them was sent.
    """

    claim: Claim
    worker: int | None
    since: float | None = None
    is_ordered: bool = False
    missing: set[int] = field(default_factory=set)
    is_begun: bool = False


@dataclass(eq=False)
class _OpenClaim:
    """A claim that is not delivered in full.

    Attributes:
        stop: index behind its last episode.
        owner: index of the worker that its episodes belong to; None if they belong to none.
        num_bytes: its approximate bytes.
        position: index of the episode, and its step, that the next parcel begins with.
        sources: workers that may write the next parcel; several only while nobody knows which one is first.
        is_written: whether its last message was written.
        deliveries: parcels that were written and are not delivered.
    """

    stop: int
    owner: int | None
    num_bytes: int
    position: tuple[int, int]
    sources: list[_Source]
    is_written: bool = False
    deliveries: deque[PendingDelivery] = field(default_factory=deque)


class Claims:
    """Claims in the order in which they are delivered.

    What a lost worker has not written runs again, on one worker, in the same place of that order. What a worker takes
    too long to write runs again beside it, and the first to write it counts.

    An early claim changes nothing: its worker keeps the episodes, and writes them again if they are claimed in another
    way, or by another call. No other call knows it, because its messages have the form that this call wants.

    Attributes:
        open: claims that are not delivered in full.
    """

    def __init__(self, window_bytes: int, names: Iterator[int], *, pinned: bool) -> None:
        """Start without claims.

        Args:
            window_bytes: bytes that may be on their way.
            names: names for claims; none comes twice in a sequence, where an earlier call may have left one unanswered.
            pinned: whether episodes wait for the replacement of a lost worker, because no other may run them.
        """
        self._window_bytes = window_bytes
        self._is_pinned = pinned
        self.open: deque[_OpenClaim] = deque()
        self._names = names
        # Sources of claims that are not written, by the name that workers know the claim by.
        self._sources: dict[int, tuple[_OpenClaim, _Source]] = {}
        # Sources by worker and by each episode that runs again.
        self._missing: dict[tuple[int | None, int], _Source] = {}
        # Names of early claims that are not answered; and the last delivery of each worker that was written early and
        # is not claimed.
        self._expected: set[int] = set()
        self._early: dict[int, PendingDelivery] = {}

    def expect(self, stretch: Stretch) -> EarlyClaim:
        """Return the early claim of a stretch, for the order of its worker."""
        claim = EarlyClaim(next(self._names), stretch.start, stretch.stop, stretch.num_missing_steps, stretch.owner)
        self._expected.add(claim.claim_id)
        return claim

    def take_early(self, worker: int, buffer: RemoteBuffer, asked: EarlyClaim, parcel: Parcel | None) -> None:
        """Record the answer to an order with an early claim, which may be another call's."""
        if asked.claim_id in self._expected:
            self._expected.discard(asked.claim_id)
            if parcel is not None:
                self._early[worker] = PendingDelivery(worker, buffer, parcel)

    def early_stops(self) -> Collection[int]:
        """Return the indices behind the last episodes of what is written early."""
        return [delivery.parcel.stop[0] for delivery in self._early.values()] if self._early else ()

    def add(self, planned: PlannedClaim) -> Claim | None:
        """Add a claim behind the others; return it if just its episodes were written early, else None."""
        claim = _OpenClaim(planned.stop, planned.owner, planned.num_bytes, (planned.start, 0), [])
        self.open.append(claim)
        claim_id = self._add_source(claim, planned.worker).claim.claim_id
        early = self._early.get(planned.worker)
        if early is None or (early.parcel.start[0], early.parcel.stop[0]) != (planned.start, planned.stop):
            return None
        del self._early[planned.worker]
        self.take(early._replace(parcel=dataclasses.replace(early.parcel, claim_id=claim_id)))
        return Claim(claim_id, planned.start, planned.stop)

    def to_ask(self, worker: int) -> list[Claim]:
        """Return the claims that a worker should write now: in order, as far as the window reaches."""
        claims = []
        for claim in self._in_window():
            for source in claim.sources:
                can_write = not (source.is_ordered or source.missing) and len(claim.deliveries) < _MAX_PARCELS
                if can_write and source.worker == worker:
                    source.is_ordered = True
                    claims.append(source.claim)
        return claims

    def to_begin(self, worker: int) -> list[range]:
        """Return the episodes that a worker should run again now."""
        ranges = []
        for claim in self.open:
            for source in claim.sources:
                if source.missing and not source.is_begun and source.worker in (None, worker):
                    source.worker, source.is_begun = worker, True
                    self._missing.update(((worker, index), source) for index in source.missing)
                    ranges.append(range(source.claim.start, source.claim.stop))
        return ranges

    @property
    def num_missing(self) -> int:
        """Number of episodes that workers are running again."""
        return len(self._missing)

    def is_running_again(self, worker: int) -> bool:
        """Whether a worker is running episodes again."""
        return bool(self._missing) and any(owner == worker for owner, _ in self._missing)

    def begin_duplicates(self, worker: int, now: float, late_after: float) -> list[range]:
        """Have an idle worker run again what others do not write, unless two workers have it already.

        Args:
            worker: index of the worker.
            now: the time, in seconds.
            late_after: seconds that an idle worker must have waited.

        Returns:
            The episodes, which `to_begin` returns, too.
        """
        ranges = []
        for claim in self._in_window():
            if claim.is_written or claim.deliveries or len(claim.sources) > 1:
                continue
            (source,) = claim.sources
            if source.since is None:
                source.since = now
            if source.worker not in (None, worker) and now - source.since > late_after:
                duplicate = self._add_source(claim, worker)
                duplicate.missing = set(range(duplicate.claim.start, duplicate.claim.stop))
                ranges.append(range(duplicate.claim.start, duplicate.claim.stop))
        return ranges

    def first_since(self) -> float | None:
        """Return when an idle worker began to wait for the first claim, or None."""
        return self.open[0].sources[0].since if self.open and self.open[0].sources else None

    def is_missing(self, worker: int, index: int) -> bool:
        """Whether a worker runs an episode again for a claim."""
        return (worker, index) in self._missing

    def give_up(self, worker: int, index: int) -> Cancellation | None:
        """Record that a worker gave up an episode that it ran again.

        Returns:
            What the worker is to drop, because another worker has it, too; None if no other worker does.
        """
        source = self._missing[worker, index]
        claim, _ = self._sources[source.claim.claim_id]
        return self._cancel(claim, source) if len(claim.sources) > 1 else None

    def finish(self, worker: int, index: int) -> bool:
        """Record the end of an episode; return whether it ran again for a claim."""
        source = self._missing.pop((worker, index), None)
        if source is None:
            return False
        source.missing.discard(index)
        return True

    def answered(self, claim_id: int) -> None:
        """Record that the order which named a claim was answered, with or without a parcel."""
        if claim_id in self._sources:
            self._sources[claim_id][1].is_ordered = False

    def take(self, delivery: PendingDelivery) -> list[Cancellation] | None:
        """Record a parcel.

        Returns:
            What other workers are to drop because of it; None if the claim was written by another worker before.
        """
        if delivery.parcel.claim_id not in self._sources:
            return None
        claim, source = self._sources[delivery.parcel.claim_id]
        others = [other for other in claim.sources if other is not source]
        cancellations = [each for other in others if (each := self._cancel(claim, other)) is not None]
        claim.deliveries.append(delivery)
        claim.position = delivery.parcel.stop
        claim.is_written = delivery.parcel.complete
        source.since = None
        if claim.is_written:
            self._remove(claim, source)
        return cancellations

    def next_pending(self) -> PendingDelivery | None:
        """Return the first parcel of the first claim, if it was written; see `delivered`."""
        return self.open[0].deliveries[0] if self.open and self.open[0].deliveries else None

    def delivered(self) -> None:
        """Record that the parcel of `next_pending` is delivered."""
        claim = self.open[0]
        claim.deliveries.popleft()
        if claim.is_written and not claim.deliveries:
            self.open.popleft()

    def lose_first_delivery(self) -> tuple[list[int], Counter[int], list[Cancellation]]:
        """Record that the buffer of `next_pending` is gone with its machine.

        Returns:
            The episodes to run again; by worker, the steps of them that it had written; and what workers that live on
            are to drop, because nobody will ask them for it.
        """
        first = self.open[0]
        worker, _, parcel = first.deliveries[0]
        num_steps: Counter[int] = Counter()
        for delivery in first.deliveries:
            num_steps[delivery.worker] += delivery.num_steps
        first.deliveries.clear()
        cancellations = [each for source in list(first.sources) if (each := self._cancel(first, source))]
        return self._run_again(first, worker, parcel.start), num_steps, cancellations

    def lose(self, worker: int) -> list[int]:
        """Record that a worker is gone; return the episodes that only it had and had not written, to run again.

        What it has written early runs again, too: it is not claimed.
        """
        self._early.pop(worker, None)
        lost: list[int] = []
        for claim in self.open:
            for source in [source for source in claim.sources if source.worker == worker]:
                self._remove(claim, source)
                if not claim.sources:
                    lost += self._run_again(claim, worker, claim.position)
        return lost

    def cut_episode(self) -> int | None:
        """Return the index of an episode that runs again although a part of it was written, or None."""
        sources = (source for claim in self.open for source in claim.sources)
        return next((source.claim.start for source in sources if source.missing and source.claim.first_step), None)

    def held_of(self, worker: int) -> Iterator[PendingDelivery]:
        """Return what a worker wrote and is not delivered."""
        return (delivery for claim in self.open for delivery in claim.deliveries if delivery.worker == worker)

    def _in_window(self) -> list[_OpenClaim]:
        """Return the first claims, as far as the window reaches."""
        claims, num_bytes = [], 0
        for claim in self.open:
            if num_bytes >= self._window_bytes:
                break
            num_bytes += claim.num_bytes
            claims.append(claim)
        return claims

    def _add_source(self, claim: _OpenClaim, worker: int | None) -> _Source:
        start, first_step = claim.position
        source = _Source(Claim(next(self._names), start, claim.stop, first_step, claim.owner), worker)
        claim.sources.append(source)
        self._sources[source.claim.claim_id] = claim, source
        return source

    def _cancel(self, claim: _OpenClaim, source: _Source) -> Cancellation | None:
        """Remove a source; return what its worker is to drop, if it has begun."""
        self._remove(claim, source)
        if source.worker is None or (source.missing and not source.is_begun):
            return None
        return Cancellation(source.worker, range(source.claim.start, source.claim.stop))

    def _remove(self, claim: _OpenClaim, source: _Source) -> None:
        claim.sources.remove(source)
        del self._sources[source.claim.claim_id]
        for index in source.missing:
            self._missing.pop((source.worker, index), None)

    def _run_again(self, claim: _OpenClaim, worker: int, position: tuple[int, int]) -> list[int]:
        """Have the rest of a claim, from a position on, run again; return its episodes."""
        claim.position, claim.is_written = position, False
        source = self._add_source(claim, worker if self._is_pinned else None)
        source.missing = set(range(source.claim.start, source.claim.stop))
        return sorted(source.missing)
