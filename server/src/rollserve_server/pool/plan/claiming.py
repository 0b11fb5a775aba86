"""Claiming: which finished episodes a call delivers next, and how many more it needs as far as lengths tell."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rollserve_server.pool.plan.ledger import Anywhere
from rollserve_server.pool.requests import AtLeast, Exactly, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from rollserve_server.pool.accounts import FailedEpisode
    from rollserve_server.pool.plan.estimates import LengthEstimate
    from rollserve_server.pool.plan.ledger import EpisodeSize, Ledger, Placement


__all__ = ["Claiming", "Demand", "PlannedClaim", "Stretch"]

_CLAIM_BYTES = 1 << 20
"""Size from which on a claim takes no further episode."""
_MAX_SKIPPED_IN_A_ROW = 256
"""Limit of consecutive skipped episodes: without it, a call for steps would never end if every episode failed."""


@dataclass(frozen=True)
class PlannedClaim:
    """Consecutive finished episodes on one worker that are delivered next.

    Attributes:
        worker: index of the worker.
        start: index of the first episode.
        stop: index behind the last episode.
        num_bytes: approximate bytes of the episodes.
        owner: index of the worker that all of the episodes belong to; None if they belong to none.
    """

    worker: int
    start: int
    stop: int
    num_bytes: int
    owner: int | None = None


class Stretch(NamedTuple):
    """Consecutive episodes on one worker, begun and not claimed, up to the first that is elsewhere.

    Attributes:
        start: index of the first episode.
        stop: index behind the last episode.
        num_missing_steps: number of steps that the call needs from the first episode on; None if that is not known,
            because episodes before are not finished, or the call needs a number of episodes or of agents' steps.
        owner: index of the worker that all of the episodes belong to; None if they belong to none.
    """

    start: int
    stop: int
    num_missing_steps: int | None
    owner: int | None


class Claiming:
    """The claims of one call, in the order of the episodes.

    Attributes:
        target: what the call has to deliver.
        ledger: ledger of the sequence; claimed and skipped episodes are removed from it.
        stop_index: index behind the last episode of the call; None if only the number of steps is known.
        complete: whether everything that the call delivers is claimed.
        obstacle: a failed episode that ends the call: it may not be skipped, or nothing would be left to deliver, or
            all 256 episodes before it were skipped, too. None if there is none.
        skipped: by index, failed episodes that the call goes on without. The caller removes them.
        num_skipped_in_a_row: number of skipped episodes just before the next one.
        next_index: index of the next episode to claim or skip; those from the ledger's next index to it are gathered
            for the next claim.
        num_steps: steps of the claimed and gathered episodes, as the target counts them.
        steps_of: returns the number of an episode's steps, as the target counts them.
    """

    def __init__(
        self,
        target: Target,
        placement: Placement,
        ledger: Ledger,
        settle: Callable[[int, int], object],
        stop_index: int | None,
        *,
        skip_failed: bool,
    ) -> None:
        """Begin at the ledger's next index.

        Args:
            target: what the call has to deliver.
            placement: which worker an episode belongs to.
            ledger: ledger of the sequence; claimed and skipped episodes are removed from it.
            settle: called with a claimed episode that has a duplicate, and the worker whose run is claimed.
            stop_index: index behind the last episode of the call; None if only the number of steps is known.
            skip_failed: whether the call goes on without failed episodes.
        """
        self.target = target
        self.ledger = ledger
        self._settle = settle
        self._owner_of = None if isinstance(placement, Anywhere) else placement.owner_of
        self.stop_index = stop_index
        self._skip_failed = skip_failed
        self._is_rest = isinstance(target, Exactly) and target.num_skipped > 0
        self.skipped: dict[int, FailedEpisode] = {}
        self.num_skipped_in_a_row = 0
        self.obstacle: FailedEpisode | None = None
        self.complete = ledger.next_index == stop_index
        self.next_index = ledger.next_index
        self.num_steps = 0
        self._counts_agent_steps = isinstance(target, AtLeast) and target.counts_agent_steps
        counted = "num_agent_steps" if self._counts_agent_steps else "num_steps"
        self.steps_of: Callable[[EpisodeSize], int] = operator.attrgetter(counted)
        # The worker that has the gathered episodes, the one that they belong to, and their bytes: 0 if there are none,
        # because every episode has some.
        self._worker = 0
        self._owner: int | None = None
        self._num_bytes = 0

    def claim(self, *, flush: bool, stops: Collection[int] = ()) -> list[PlannedClaim]:
        """Return what can be delivered next, in order.

        Consecutive episodes on one worker are gathered into one claim, so that they share messages, until they have
        1 MiB, or the next episode is elsewhere or belongs to another worker.

        Args:
            flush: whether to claim at once what is gathered.
            stops: indices at which claims end, because what comes before is written together.
        """
        claims = []
        ledger, owner_of = self.ledger, self._owner_of
        while not self.complete:
            index = self.next_index
            if index in ledger.failed:
                if self._num_bytes:
                    claims.append(self._close())
                if not self._skip():
                    break
                continue
            worker = ledger.workers.get(index)
            owner = None if worker is None or owner_of is None else owner_of(index)
            is_elsewhere = worker is not None and (worker, owner) != (self._worker, self._owner)
            is_full = self._num_bytes >= _CLAIM_BYTES or index in stops
            if self._num_bytes and (is_full or is_elsewhere):
                claims.append(self._close())
            size = ledger.sizes.get(index)
            if worker is None or size is None:
                break
            self.next_index += 1
            self.num_steps += self.steps_of(size)
            self.num_skipped_in_a_row = 0
            self._worker, self._owner = worker, owner
            self._num_bytes += size.num_bytes
            if self._is_reached():
                claims.append(self._close())
                self.complete = True
        if flush and self._num_bytes:
            claims.append(self._close())
        return claims

    def unfinished_stretch(self, worker: int) -> Stretch | None:
        """Return the first stretch of a worker that has an unfinished episode; None if there is none."""
        workers, sizes, owner_of = self.ledger.workers, self.ledger.sizes, self._owner_of
        num_missing_steps, index, owner = self._num_missing_steps(), self.ledger.next_index, None
        while index in workers and index != self.stop_index:
            start, holder, num_steps, is_finished = index, workers[index], 0, True
            owner = owner_of and owner_of(index)
            while workers.get(index) == holder and index != self.stop_index and (owner_of and owner_of(index)) == owner:
                size = sizes.get(index)
                num_steps, is_finished = (num_steps + size.num_steps, is_finished) if size else (num_steps, False)
                index += 1
            if holder == worker and not is_finished:
                return Stretch(start, index, num_missing_steps, owner)
            if not is_finished:
                num_missing_steps = None
            elif num_missing_steps is not None:
                num_missing_steps -= num_steps
        return None

    def needs(self, index: int) -> bool:
        """Whether it is known that the call cannot complete without an episode."""
        return not self._skip_failed and self.stop_index is not None and index < self.stop_index

    def lose(self, worker: int, finished: Mapping[int, EpisodeSize]) -> None:
        """Record that a worker is gone. If the gathered episodes were there, gather from the first one again.

        Args:
            worker: index of the worker.
            finished: for each finished episode that is gone, its size.
        """
        self.num_steps -= sum(self.steps_of(size) for index, size in finished.items() if index < self.next_index)
        if self._num_bytes and self._worker == worker:
            self.next_index = self.ledger.next_index
            self._num_bytes = 0

    def _num_missing_steps(self) -> int | None:
        """Return the number of steps that the call needs beside the claimed ones; None unless it counts them."""
        if not isinstance(self.target, AtLeast) or self._counts_agent_steps:
            return None
        num_missing_steps = self.target.num_steps - self.num_steps
        for index in range(self.ledger.next_index, self.next_index):  # gathered, and not claimed
            num_missing_steps += self.ledger.sizes[index].num_steps
        return num_missing_steps

    def _close(self) -> PlannedClaim:
        """Return the gathered claim; its episodes leave the ledger."""
        ledger = self.ledger
        claim = PlannedClaim(self._worker, ledger.next_index, self.next_index, self._num_bytes, self._owner)
        for index in range(claim.start, claim.stop):
            if index in ledger.duplicates:  # of a work unit, the episodes that had ended have duplicates, too
                self._settle(index, claim.worker)
            del ledger.workers[index], ledger.sizes[index]
        ledger.next_index = claim.stop
        self._num_bytes = 0
        return claim

    def _skip(self) -> bool:
        """Skip the next episode, which has failed; return False if it is an obstacle instead."""
        ledger, index = self.ledger, self.next_index
        is_endless = self.stop_index is None and self.num_skipped_in_a_row >= _MAX_SKIPPED_IN_A_ROW
        # The rest of a repeated call may be empty: its client has the episodes before.
        is_empty = index + 1 == self.stop_index and not (self.num_steps or self._is_rest)
        if not self._skip_failed or is_endless or is_empty:
            self.obstacle = ledger.failed[index]
            return False
        self.num_skipped_in_a_row += 1
        self.skipped[index] = ledger.failed.pop(index)
        self.next_index = ledger.next_index = index + 1
        self.complete = self._is_reached()
        return True

    def _is_reached(self) -> bool:
        """Whether the episodes before the next index make the target."""
        if isinstance(self.target, AtLeast):
            return self.num_steps >= self.target.num_steps
        return self.next_index == self.stop_index


class Demand:
    """The number of episodes that a call needs beside the ones it has begun."""

    def __init__(
        self, claiming: Claiming, estimate: LengthEstimate, *, num_partial_steps: int, max_unknown: int
    ) -> None:
        """Count what the ledger has as begun.

        Args:
            claiming: claims of the call; they and the ledger are only read here.
            estimate: estimate of the lengths of the sequence's episodes.
            num_partial_steps: steps of the ledger's unfinished episodes.
            max_unknown: maximum number of episodes that run while their lengths are unknown.
        """
        ledger = claiming.ledger
        self._claiming = claiming
        self._estimate = estimate
        self._max_unknown = max_unknown
        self._first_index = ledger.next_index
        self._num_begun = len(ledger.workers.keys() | ledger.failed.keys())
        self._num_partial_steps = num_partial_steps
        # Of finished episodes: the steps, and the steps as the target counts them.
        self._num_finished_steps = sum(size.num_steps for size in ledger.sizes.values())
        self._num_counted_steps = sum(map(claiming.steps_of, ledger.sizes.values()))

    def num_more(self, num_running: int) -> int:
        """Return how many more episodes the call needs; below 0 if more run than it needs.

        Args:
            num_running: number of episodes that have begun and not ended.
        """
        if not isinstance(self._claiming.target, AtLeast):
            assert self._claiming.stop_index is not None  # noqa: S101
            return self._claiming.stop_index - self._first_index - self._num_begun
        num_missing_steps = self._in_env_steps(self._claiming.target.num_steps - self._num_counted_steps)
        # The expected length of an episode that has made s steps lies between the mean, if all lengths are equal, and
        # the mean plus s, if it may end at any time.
        if num_running:
            num_missing_steps -= round(self._estimate.spread * self._num_partial_steps)
        mean = self._estimate.mean
        if mean is None:
            return min(math.ceil(num_missing_steps), self._max_unknown) - num_running
        return math.ceil(num_missing_steps / mean) - num_running

    def stop_index(self, num_more: int) -> int:
        """Return the index before which episodes may begin, if the call needs that many more.

        Where episodes belong to workers, an earlier episode of one worker may begin after later ones of others, which
        it blocks: so the index is never below the number of episodes that have begun.
        """
        stop = self._first_index + self._num_begun + max(num_more, 0)
        return stop if self._claiming.stop_index is None else min(stop, self._claiming.stop_index)

    def needed_before(self) -> int | None:
        """Return the index before which all needed episodes are; None if that is not known."""
        mean = self._estimate.mean
        if not isinstance(self._claiming.target, AtLeast) or mean is None:
            return self._claiming.stop_index
        num_missing_steps = self._in_env_steps(self._claiming.target.num_steps - self._claiming.num_steps)
        return self._claiming.next_index + max(math.ceil(num_missing_steps / mean), 1)

    def awaited(self) -> Iterator[int]:
        """Yield running episodes that the call needs, in their order."""
        ledger, index = self._claiming.ledger, self._claiming.next_index
        num_steps = float(self._claiming.num_steps)
        while (index in ledger.workers or index in ledger.failed) and index != self._claiming.stop_index:
            if index in ledger.sizes:
                num_steps += self._claiming.steps_of(ledger.sizes[index])
            elif index in ledger.workers:
                yield index
                num_steps += (self._estimate.mean or 1) / self._in_env_steps(1)
            index += 1
            if isinstance(self._claiming.target, AtLeast) and num_steps >= self._claiming.target.num_steps:
                break

    def begin(self, num_episodes: int) -> None:
        """Record that episodes have begun."""
        self._num_begun += num_episodes

    def simulate(self, num_steps: int) -> None:
        """Record steps of running episodes; below 0 if more were thrown away."""
        self._num_partial_steps = max(self._num_partial_steps + num_steps, 0)

    def finish(self, size: EpisodeSize) -> None:
        """Record the end of an episode of that size."""
        self._num_partial_steps = max(self._num_partial_steps - size.num_steps, 0)
        self._num_finished_steps += size.num_steps
        self._num_counted_steps += self._claiming.steps_of(size)

    def lose(self, num_lost: int, finished: Collection[EpisodeSize], num_open: int, num_all_open: int) -> None:
        """Record that a worker is gone.

        Args:
            num_lost: number of its episodes that begin again.
            finished: sizes of its finished episodes.
            num_open: number of its runs that had not ended.
            num_all_open: the same number for all workers, including this one.
        """
        self._num_begun -= num_lost
        self._num_finished_steps -= sum(size.num_steps for size in finished)
        self._num_counted_steps -= sum(map(self._claiming.steps_of, finished))
        if num_open:  # the steps of single runs are not known: assume that all have the same number
            self._num_partial_steps -= self._num_partial_steps * num_open // num_all_open

    def _in_env_steps(self, num_steps: int) -> float:
        """Return how many steps of the environment have so many steps as the target counts them, about."""
        if not self._num_counted_steps or self._num_counted_steps == self._num_finished_steps:
            return num_steps
        return num_steps * self._num_finished_steps / self._num_counted_steps
