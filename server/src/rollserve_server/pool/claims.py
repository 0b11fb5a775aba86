"""The claims of a call on their way from the workers to the client."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rollserve_server.sampling import Claim

if TYPE_CHECKING:
    from rollserve_server.pool.backend import Payload
    from rollserve_server.pool.plan import PlannedClaim
    from rollserve_server.sampling import Parcel

__all__ = ["Claims", "Written"]

_PARCELS_WAITING = 2
"""Of a claim too large for one report, how much is fetched before it can be delivered."""


class Written(NamedTuple):
    """What a worker wrote of a claim.

    Attributes:
        worker: which one.
        payload: the buffer, which is to be fetched.
        parcel: which messages stand there.
    """

    worker: int
    payload: Payload
    parcel: Parcel

    @property
    def num_steps(self) -> int:
        """How many steps the messages hold."""
        return sum(message.num_steps for message in self.parcel.messages)


@dataclass(eq=False)
class _OpenClaim:
    """A claim on its way.

    Attributes:
        claim: what its worker is told.
        worker: which one that is; None if its episodes are lost, and any worker may run them again.
        num_bytes: its approximate bytes.
        position: the index of the episode, and its step, that what has not come begins with.
        asked: whether an order that names it is with the worker.
        written: whether its last message has come.
        parcels: what has come and is to be delivered.
        missing: episodes that are to be run again, because they were lost.
        begun: whether the worker has been told to run those.
    """

    claim: Claim
    worker: int | None
    num_bytes: int
    position: tuple[int, int]
    asked: bool = False
    written: bool = False
    parcels: deque[Written] = field(default_factory=deque)
    missing: set[int] = field(default_factory=set)
    begun: bool = False


class Claims:
    """Claims in the order in which they are to be delivered.

    What a lost worker has not written is run again in the same place of that order, on one worker.
    """

    def __init__(self, window_bytes: int, *, pinned: bool) -> None:
        """Begins without claims.

        Args:
            window_bytes: how much may be on its way.
            pinned: whether episodes belong to workers, and so wait for the one in a lost one's place.
        """
        self._window_bytes = window_bytes
        self._pinned = pinned
        self._claims: dict[int, _OpenClaim] = {}
        self._num_claims = 0
        self._missing: dict[int, _OpenClaim] = {}

    def __bool__(self) -> bool:
        return bool(self._claims)

    def add(self, planned: PlannedClaim) -> int:
        """Puts a claim behind the others; returns its name."""
        claim = Claim(self._num_claims, planned.start, planned.stop)
        position = (planned.start, 0)
        self._claims[self._num_claims] = _OpenClaim(claim, planned.worker, planned.num_bytes, position)
        self._num_claims += 1
        return claim.claim_id

    def to_ask(self, worker: int) -> list[Claim]:
        """The claims that a worker is to write now: in order, as far as the window reaches."""
        claims, num_bytes = [], 0
        for claim in self._claims.values():
            if num_bytes >= self._window_bytes:
                break
            num_bytes += claim.num_bytes
            waits = not (claim.asked or claim.written or claim.missing) and len(claim.parcels) < _PARCELS_WAITING
            if waits and claim.worker == worker:
                claim.asked = True
                claims.append(claim.claim)
        return claims

    def to_begin(self, worker: int) -> list[range]:
        """The episodes that a worker is to run again now."""
        ranges = []
        for claim in self._claims.values():
            if claim.missing and not claim.begun and claim.worker in (None, worker):
                claim.worker, claim.begun = worker, True
                ranges.append(range(claim.claim.start, claim.claim.stop))
        return ranges

    def num_missing(self, worker: int) -> int:
        """How many episodes a worker is running again."""
        return sum(len(claim.missing) for claim in self._claims.values() if claim.begun and claim.worker == worker)

    def finish(self, index: int) -> bool:
        """Takes in that an episode has ended; returns whether it was one that was to be run again."""
        claim = self._missing.pop(index, None)
        if claim is None:
            return False
        claim.missing.discard(index)
        return True

    def answered(self, claim_id: int) -> None:
        """Takes in that the order which named a claim was answered, whatever has come of it."""
        self._claims[claim_id].asked = False

    def take(self, written: Written) -> int:
        """Takes in what was written of a claim.

        Returns:
            Of a claim that is so complete, how many steps were simulated once more, and had been delivered before.
        """
        claim = self._claims[written.parcel.claim_id]
        claim.parcels.append(written)
        claim.position = written.parcel.stop
        claim.written = written.parcel.complete
        return claim.claim.first_step if claim.written else 0

    def next_written(self) -> Written | None:
        """What of the first claim is there; see `delivered`."""
        first = next(iter(self._claims.values()), None)
        return first.parcels[0] if first is not None and first.parcels else None

    def delivered(self) -> None:
        """Takes in that what `next_written` gave is delivered."""
        claim_id, claim = next(iter(self._claims.items()))
        claim.parcels.popleft()
        if claim.written and not claim.parcels:
            del self._claims[claim_id]

    def lose_payload(self) -> tuple[list[int], int]:
        """Takes in that what `next_written` gave is gone with its machine.

        Returns:
            The episodes to be run again, and how many steps of them had been written.
        """
        first = next(iter(self._claims.values()))
        position = first.parcels[0].parcel.start
        num_steps = sum(written.num_steps for written in first.parcels)
        first.parcels.clear()
        return self._remake(first, position), num_steps

    def lose(self, worker: int) -> list[int]:
        """Takes in that a worker is gone; returns the episodes that it had not written, to be run again."""
        lost = []
        for claim in self._claims.values():
            if claim.worker == worker and not claim.written:
                lost += self._remake(claim, claim.position)
        return lost

    def cut_episode(self) -> int | None:
        """An episode that is to be run again though a part of it is written, if there is one."""
        cut = (claim.claim.start for claim in self._claims.values() if claim.missing and claim.claim.first_step)
        return next(cut, None)

    def held_of(self, worker: int) -> Iterator[Written]:
        """What a worker wrote and is not delivered."""
        return (written for claim in self._claims.values() for written in claim.parcels if written.worker == worker)

    def _remake(self, claim: _OpenClaim, position: tuple[int, int]) -> list[int]:
        claim.position = position
        start, first_step = position
        claim.claim = Claim(claim.claim.claim_id, start, claim.claim.stop, first_step)
        claim.missing = set(range(start, claim.claim.stop))
        self._missing.update(dict.fromkeys(claim.missing, claim))
        claim.worker = claim.worker if self._pinned else None
        claim.asked = claim.written = claim.begun = False
        return sorted(claim.missing)
