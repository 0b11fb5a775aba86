"""The claims of a call on their way from the workers to the client."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rollserve_server.sampling import Claim

if TYPE_CHECKING:
    from rollserve_server.pool.backends.backend import RemoteBuffer
    from rollserve_server.pool.plan.plan import PlannedClaim
    from rollserve_server.sampling import Parcel

__all__ = ["Cancellation", "Claims", "PendingDelivery"]

_PARCELS_WAITING = 2
"""Of a claim too large for one report, how much is fetched before it can be delivered."""


class PendingDelivery(NamedTuple):
    """What a worker wrote of a claim.

    Attributes:
        worker: which one.
        payload: the buffer, which is to be fetched.
        parcel: which messages stand there.
    """

    worker: int
    payload: RemoteBuffer
    parcel: Parcel

    @property
    def num_steps(self) -> int:
        """How many steps the messages hold."""
        return sum(message.num_steps for message in self.parcel.messages)


class Cancellation(NamedTuple):
    """A worker that has episodes in vain: they were written elsewhere."""

    worker: int
    indices: range


@dataclass(eq=False)
class _Source:
    """Where the episodes of a claim stand, or are run again.

    Attributes:
        claim: what its worker is told.
        worker: which one that is; None if any may be.
        since: when somebody who had nothing else to do began to wait for them; None before.
        asked: whether an order that names the claim is with the worker.
        missing: episodes that are to be run again.
        begun: whether the worker has been told to run those.
    """

    claim: Claim
    worker: int | None
    since: float | None = None
    asked: bool = False
    missing: set[int] = field(default_factory=set)
    begun: bool = False


@dataclass(eq=False)
class _OpenClaim:
    """A claim on its way.

    Attributes:
        stop: one more than the index of its last episode.
        num_bytes: its approximate bytes.
        position: the index of the episode, and its step, that what has not come begins with.
        sources: where that is to come from; more than one only as long as nobody knows which is first.
        written: whether its last message has come.
        parcels: what has come and is to be delivered.
    """

    stop: int
    num_bytes: int
    position: tuple[int, int]
    sources: list[_Source]
    written: bool = False
    parcels: deque[PendingDelivery] = field(default_factory=deque)


class Claims:
    """Claims in the order in which they are to be delivered.

    What a lost worker has not written is run again in the same place of that order, on one worker. What a worker takes
    far too long to write is run again beside it, and written by whoever is first.
    """

    def __init__(self, window_bytes: int, names: Iterator[int], *, pinned: bool) -> None:
        """Begins without claims.

        Args:
            window_bytes: how much may be on its way.
            names: for claims; none comes twice in a stream, where a call before may have left one unanswered.
            pinned: whether episodes belong to workers, and so wait for the one in a lost one's place.
        """
        self._window_bytes = window_bytes
        self._pinned = pinned
        self._claims: deque[_OpenClaim] = deque()
        self._names = names
        # Of those that are not written, by the names that workers know them by.
        self._sources: dict[int, tuple[_OpenClaim, _Source]] = {}
        # By worker and episode, those that are being run again.
        self._missing: dict[tuple[int | None, int], _Source] = {}

    def __bool__(self) -> bool:
        return bool(self._claims)

    def add(self, planned: PlannedClaim) -> int:
        """Puts a claim behind the others; returns its name."""
        claim = _OpenClaim(planned.stop, planned.num_bytes, (planned.start, 0), [])
        self._claims.append(claim)
        return self._add_source(claim, planned.worker).claim.claim_id

    def to_ask(self, worker: int) -> list[Claim]:
        """The claims that a worker is to write now: in order, as far as the window reaches."""
        claims = []
        for claim in self._in_window():
            for source in claim.sources:
                waits = not (source.asked or source.missing) and len(claim.parcels) < _PARCELS_WAITING
                if waits and source.worker == worker:
                    source.asked = True
                    claims.append(source.claim)
        return claims

    def to_begin(self, worker: int) -> list[range]:
        """The episodes that a worker is to run again now."""
        ranges = []
        for claim in self._claims:
            for source in claim.sources:
                if source.missing and not source.begun and source.worker in (None, worker):
                    source.worker, source.begun = worker, True
                    self._missing.update(((worker, index), source) for index in source.missing)
                    ranges.append(range(source.claim.start, source.claim.stop))
        return ranges

    def num_missing(self, worker: int) -> int:
        """How many episodes a worker is running again."""
        return sum(its_worker == worker for its_worker, _ in self._missing)

    def begin_duplicates(self, worker: int, now: float, late_after: float) -> list[range]:
        """Has a worker that has nothing else to do run again what others do not write, unless two of them have it.

        Args:
            worker: which one.
            now: the time, in seconds.
            late_after: for how long somebody has to have waited.

        Returns:
            The episodes; `to_begin` tells of them, too.
        """
        ranges = []
        for claim in self._in_window():
            if claim.written or claim.parcels or len(claim.sources) > 1:
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
        """Since when somebody waits for the first claim, if anybody does."""
        return self._claims[0].sources[0].since if self._claims and self._claims[0].sources else None

    def is_missing(self, worker: int, index: int) -> bool:
        """Whether a worker runs an episode again, for a claim."""
        return (worker, index) in self._missing

    def give_up(self, worker: int, index: int) -> Cancellation | None:
        """Takes in that a worker gave up an episode that it ran again.

        Returns:
            What it has in vain now, because another worker has it, too; None if no other does.
        """
        source = self._missing[worker, index]
        claim, _ = self._sources[source.claim.claim_id]
        return self._cancel(claim, source) if len(claim.sources) > 1 else None

    def finish(self, worker: int, index: int) -> bool:
        """Takes in that an episode has ended; returns whether it was one that was to be run again."""
        source = self._missing.pop((worker, index), None)
        if source is None:
            return False
        source.missing.discard(index)
        return True

    def answered(self, claim_id: int) -> None:
        """Takes in that the order which named a claim was answered, whatever has come of it."""
        if claim_id in self._sources:
            self._sources[claim_id][1].asked = False

    def take(self, written: PendingDelivery) -> list[Cancellation] | None:
        """Takes in what was written of a claim.

        Returns:
            Who has the claim's episodes beside whoever wrote it; None if it came from elsewhere before.
        """
        if written.parcel.claim_id not in self._sources:
            return None
        claim, source = self._sources[written.parcel.claim_id]
        cancellations = [self._cancel(claim, other) for other in list(claim.sources) if other is not source]
        claim.parcels.append(written)
        claim.position = written.parcel.stop
        claim.written = written.parcel.complete
        source.since = None
        if claim.written:
            self._remove(claim, source)
        return [cancellation for cancellation in cancellations if cancellation is not None]

    def next_pending(self) -> PendingDelivery | None:
        """What of the first claim is there; see `delivered`."""
        return self._claims[0].parcels[0] if self._claims and self._claims[0].parcels else None

    def delivered(self) -> None:
        """Takes in that what `next_pending` gave is delivered."""
        claim = self._claims[0]
        claim.parcels.popleft()
        if claim.written and not claim.parcels:
            self._claims.popleft()

    def lose_first_delivery(self) -> tuple[list[int], Counter[int], list[Cancellation]]:
        """Takes in that what `next_pending` gave is gone with its machine.

        Returns:
            The episodes to be run again, how many steps of them each worker had written, and who has them in vain now:
            a worker that lives on would hold for ever what nobody asks for.
        """
        first = self._claims[0]
        worker, _, parcel = first.parcels[0]
        num_steps: Counter[int] = Counter()
        for written in first.parcels:
            num_steps[written.worker] += written.num_steps
        first.parcels.clear()
        cancellations = [
            cancellation for source in list(first.sources) if (cancellation := self._cancel(first, source))
        ]
        return self._remake(first, worker, parcel.start), num_steps, cancellations

    def lose(self, worker: int) -> list[int]:
        """Takes in that a worker is gone; returns the episodes that it alone had and had not written, to run again."""
        lost: list[int] = []
        for claim in self._claims:
            for source in [source for source in claim.sources if source.worker == worker]:
                self._remove(claim, source)
                if not claim.sources:
                    lost += self._remake(claim, worker, claim.position)
        return lost

    def cut_episode(self) -> int | None:
        """An episode that is to be run again though a part of it is written, if there is one."""
        sources = (source for claim in self._claims for source in claim.sources)
        return next((source.claim.start for source in sources if source.missing and source.claim.first_step), None)

    def held_of(self, worker: int) -> Iterator[PendingDelivery]:
        """What a worker wrote and is not delivered."""
        return (written for claim in self._claims for written in claim.parcels if written.worker == worker)

    def _in_window(self) -> Iterator[_OpenClaim]:
        """The first claims, as far as the window reaches."""
        num_bytes = 0
        for claim in self._claims:
            if num_bytes >= self._window_bytes:
                break
            num_bytes += claim.num_bytes
            yield claim

    def _add_source(self, claim: _OpenClaim, worker: int | None) -> _Source:
        start, first_step = claim.position
        source = _Source(Claim(next(self._names), start, claim.stop, first_step), worker)
        claim.sources.append(source)
        self._sources[source.claim.claim_id] = claim, source
        return source

    def _cancel(self, claim: _OpenClaim, source: _Source) -> Cancellation | None:
        """Removes a source; tells of its worker, if it has one that has begun with it."""
        self._remove(claim, source)
        if source.worker is None or (source.missing and not source.begun):
            return None
        return Cancellation(source.worker, range(source.claim.start, source.claim.stop))

    def _remove(self, claim: _OpenClaim, source: _Source) -> None:
        claim.sources.remove(source)
        del self._sources[source.claim.claim_id]
        for index in source.missing:
            self._missing.pop((source.worker, index), None)

    def _remake(self, claim: _OpenClaim, worker: int, position: tuple[int, int]) -> list[int]:
        """Has what of a claim comes behind a position be run again."""
        claim.position, claim.written = position, False
        source = self._add_source(claim, worker if self._pinned else None)
        source.missing = set(range(source.claim.start, source.claim.stop))
        return sorted(source.missing)
