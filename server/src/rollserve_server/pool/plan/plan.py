"""Which episodes a sampling call needs, where they run, and in which order they are delivered. Pure: no clock, no I/O.

Episodes are claimed by index, never by who finishes first: what a call delivers is a function of the episodes' lengths
alone. Workers only decide how long it takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollserve_server.pool.interface.targets import AtLeast, Exactly, InAll, Target
from rollserve_server.pool.plan.duplicates import Duplicates
from rollserve_server.pool.plan.placement import Anywhere, PerWorker, Placement, RoundRobin

if TYPE_CHECKING:
    from rollserve_server.pool.accounts.env_failures import FailedEpisode
    from rollserve_server.pool.plan.ledger import Ledger
    from rollserve_server.pool.plan.length_estimate import LengthEstimate

__all__ = ["Plan", "PlannedClaim"]


@dataclass(frozen=True)
class PlannedClaim:
    """Consecutive episodes that stand finished on one worker and are next to be delivered.

    Attributes:
        worker: which one.
        start: the first episode's index.
        stop: one more than the last one's.
        num_bytes: their approximate bytes.
    """

    worker: int
    start: int
    stop: int
    num_bytes: int


class Plan:
    """One call's way through its stream, from the ledger's next index on.

    The caller asks `begin` which episodes a worker is to begin, tells `finish` which have ended and `lose` of workers
    that are gone, and takes from `claim` what is to be delivered, until `complete`. The ledger is kept up to date, and
    what stands in it at the end is what was begun beyond the call's last episode.

    Episodes that are late may be begun a second time elsewhere, see `begin_duplicates`: the one that ends first counts.

    Attributes:
        complete: whether everything that the call delivers has been claimed.
        num_open: of each worker, how many episodes were begun there that have not ended.
        obstacle: an episode that was given up, and without which the call does not go on: it is not to, or nothing
            would be left, or it would never end.
        num_skipped_in_a_row: how many episodes, just before the one whose turn it is, the call goes on without.
        redundant: workers, and an episode that each of them has in vain, because it ended elsewhere. The caller takes
            them out.
    """

    _CLAIM_BYTES = 1 << 20
    _MOST_SKIPPED_IN_A_ROW = 256
    """Where all episodes fail, a call for a number of steps would else go on for ever."""

    def __init__(
        self,
        target: Target,
        placement: Placement,
        ledger: Ledger,
        estimate: LengthEstimate,
        num_workers: int,
        num_partial_steps: int = 0,
        unit_size: int = 1,
        *,
        skip_failed: bool = False,
    ) -> None:
        """Plans a call.

        Args:
            target: what is wanted.
            placement: which worker an episode belongs to; the same as for what the ledger holds.
            ledger: of the stream.
            estimate: of the lengths of the stream's episodes; is asked, not changed.
            num_workers: how many workers there are.
            num_partial_steps: the steps that the ledger's unfinished episodes have.
            unit_size: how many episodes run together, on one worker, and are begun and lost as one.
            skip_failed: whether the call goes on without episodes that were given up.
        """
        self._skip_failed = skip_failed
        self._skipped: dict[int, FailedEpisode] = {}
        self.num_skipped_in_a_row = 0
        self.obstacle: FailedEpisode | None = None
        self._is_rest = isinstance(target, Exactly) and target.num_skipped > 0
        self._unit_size = unit_size
        self._num_partial_steps = num_partial_steps
        self._target = target
        self._placement = placement
        self._ledger = ledger
        self._estimate = estimate
        self._num_workers = num_workers
        self._first = ledger.next_index
        # Of episodes that any worker may run: those of lost workers, and the first that was never begun.
        known = ledger.workers.keys() | ledger.failed.keys()
        self._next_index = max(known, default=self._first - 1) + 1
        self._to_begin_again = [index for index in range(self._first, self._next_index) if index not in known]
        self._num_begun = len(known)
        self._known_steps = sum(steps for steps, _ in ledger.sizes.values())
        self._next_of_worker = [self._first] * num_workers
        self._claimed_steps = 0
        self._scan = _Scan(self._first)
        self._absent: set[int] = set()
        # One more than the last index, if that is known beforehand.
        self._end = _end(target, self._first, num_workers)
        self.complete = self._first == self._end
        self.num_open = [0] * num_workers
        for index, worker in ledger.workers.items():
            self.num_open[worker] += index not in ledger.sizes
        for worker in ledger.duplicates.values():
            self.num_open[worker] += 1
        self._duplicates = Duplicates(ledger, self.num_open)
        self.redundant = self._duplicates.redundant

    def begin(self, worker: int, room: int) -> list[range]:
        """The episodes that a worker is to begin now, in this order: each range is of one unit, if units have several.

        There are at most `room` of them, and no more than it takes, as far as the estimate tells, to reach the target;
        but for what a unit has beyond.
        """
        if self.complete or worker in self._absent:
            return []
        wanted = self._num_wanted()
        if isinstance(self._placement, Anywhere):
            # What was lost is in the way of all that comes after it.
            wanted = max(wanted, len(self._to_begin_again))
            if self._to_begin_again:
                # A worker whose own episodes wait for one of these, because its buffer is full, may be the only one.
                room = max(room, 1)
            num_present = self._num_workers - len(self._absent)
            share = math.ceil((sum(self.num_open) + wanted) / num_present) - self.num_open[worker]
            ranges = self._next_ranges(max(min(room, share, wanted), 0))
        else:
            # Never below what was begun: an episode that another worker's have overtaken is in the way of them all.
            bound = self._first + self._num_begun + max(wanted, 0)
            if self._end is not None:
                bound = min(bound, self._end)
            ranges = self._pinned_ranges(self._placement, worker, room, bound)
        for indices in ranges:
            self._num_begun += len(indices)
            self.num_open[worker] += len(indices)
            self._ledger.workers.update(dict.fromkeys(indices, worker))
        return ranges

    def begin_duplicates(self, worker: int, is_late: Callable[[int], bool], room: int) -> list[range]:
        """Episodes to begin a second time on a worker that has nothing else to do: late ones that the call waits for.

        They are those that it waits for first: none behind one that is not late. Each range is of one unit. There are
        at most `room` of them, but for what a unit has beyond; and of each there is one copy at a time.

        Args:
            worker: which one.
            is_late: says of an episode, which runs, whether it takes far longer than others.
            room: how many.
        """
        if self.complete or worker in self._absent or not isinstance(self._placement, Anywhere):
            return []
        return self._duplicates.begin(worker, self._awaited(), is_late, room, self.unit_of)

    def first_open(self) -> int | None:
        """The first episode that runs and that the call waits for, if there is one."""
        return next(self._awaited(), None)

    def has_begun_all_of(self, worker: int) -> bool:
        """Whether all episodes were begun that belong to the worker; false where any worker may run any."""
        return isinstance(self._placement, PerWorker) and self._next_of_worker[worker] >= self._placement.stop_of(
            worker
        )

    def needed_before(self) -> int | None:
        """Before which index all episodes that are needed are, as far as the estimate tells; None for no such index."""
        if self._unit_size == 1:
            return None
        mean = self._estimate.mean
        if not isinstance(self._target, AtLeast) or mean is None:
            return self._end
        missing_steps = self._target.num_steps - self._claimed_steps
        return self._scan.index + max(math.ceil(missing_steps / mean), 1)

    def unit_of(self, index: int) -> range:
        """The episodes that run together with one."""
        return self._placement.unit_of(index, self._unit_size)

    def units_in(self, indices: range) -> Iterator[range]:
        """The parts of a range that are of one unit each."""
        start = indices.start
        while start < indices.stop:
            stop = min(self.unit_of(start).stop, indices.stop)
            yield range(start, stop)
            start = stop

    def simulate(self, num_steps: int) -> None:
        """Takes in that so many steps were made, those of episodes that end with them included.

        Less than 0 if more were thrown away.
        """
        self._num_partial_steps = max(self._num_partial_steps + num_steps, 0)

    def finish(self, index: int, num_steps: int, num_bytes: int, worker: int | None = None) -> None:
        """Takes in that an episode has ended, with so many steps and approximate bytes.

        Args:
            index: which one.
            num_steps: how many steps it has.
            num_bytes: how many bytes, about.
            worker: where it ended, if it was begun twice.
        """
        if index in self._ledger.duplicates and not self._duplicates.settle(index, worker):
            return
        self._num_partial_steps = max(self._num_partial_steps - num_steps, 0)
        self.num_open[self._ledger.workers[index]] -= 1
        self._ledger.sizes[index] = (num_steps, num_bytes)
        self._known_steps += num_steps

    def fail(self, index: int, failed: FailedEpisode) -> bool:
        """Takes in that a worker gave up an episode; returns whether it is known that the call cannot do without.

        Otherwise, if the call is not to go on without it, it becomes the `obstacle` once its turn comes. An episode
        that another worker has, too, is not given up before that one does.
        """
        ledger = self._ledger
        self.num_open[failed.worker] -= 1
        if index in ledger.duplicates:
            self._duplicates.give_up(index, failed.worker)
            return False
        del ledger.workers[index]
        ledger.failed[index] = failed
        return not self._skip_failed and self._end is not None and index < self._end

    def take_skipped(self) -> dict[int, FailedEpisode]:
        """The episodes that the call has gone on without, by index, since this was last asked."""
        skipped, self._skipped = self._skipped, {}
        return skipped

    def lose(self, worker: int) -> list[int]:
        """Takes in that a worker is gone with all its unclaimed episodes; returns those, which are to begin again.

        It gets no more until `regain` tells that another is in its place.
        """
        self._absent.add(worker)
        ledger = self._ledger
        held = sorted(index for index, its_worker in ledger.workers.items() if its_worker == worker)
        lost = [index for index in held if index not in ledger.duplicates]
        for index in [index for index, its_worker in ledger.duplicates.items() if its_worker == worker]:
            del ledger.duplicates[index]
        for index in held:
            del ledger.workers[index]
            if index in ledger.duplicates:  # it is that one now
                ledger.workers[index] = ledger.duplicates.pop(index)
            num_steps, _ = ledger.sizes.pop(index, (0, 0))
            self._known_steps -= num_steps
            # The claim that is being gathered begins anew.
            if index < self._scan.index:
                self._claimed_steps -= num_steps
        if self._scan.num_bytes and self._scan.worker == worker:
            self._scan = _Scan(ledger.next_index)
        if self.num_open[worker]:
            self._num_partial_steps -= self._num_partial_steps * self.num_open[worker] // sum(self.num_open)
        self.num_open[worker] = 0
        self._num_begun -= len(lost)
        self._next_of_worker[worker] = self._first
        if isinstance(self._placement, Anywhere):
            self._to_begin_again = sorted(self._to_begin_again + lost)
        return lost

    def regain(self, worker: int) -> None:
        """Takes in that there is a worker in a lost one's place."""
        self._absent.discard(worker)

    def claim(self, *, flush: bool = False) -> list[PlannedClaim]:
        """What can be delivered next, in order.

        Episodes that stand together on one worker are claimed together, so that they share messages: once there is
        enough of them, once the next one is elsewhere, or at once.
        """
        claims = []
        ledger, scan = self._ledger, self._scan
        while not self.complete:
            if scan.index in ledger.failed:
                if scan.num_bytes:
                    claims.append(self._close_claim())
                if not self._skip():
                    break
                continue
            worker = ledger.workers.get(scan.index)
            if scan.num_bytes and (
                scan.num_bytes >= self._CLAIM_BYTES or (worker is not None and worker != scan.worker)
            ):
                claims.append(self._close_claim())
            if worker is None or scan.index not in ledger.sizes:
                break
            num_steps, num_bytes = ledger.sizes[scan.index]
            scan.take(worker, num_bytes)
            self.num_skipped_in_a_row = 0
            self._claimed_steps += num_steps
            if self._is_reached(scan.index):
                claims.append(self._close_claim())
                self.complete = True
        if flush and scan.num_bytes:
            claims.append(self._close_claim())
        return claims

    def _awaited(self) -> Iterator[int]:
        """Episodes that run and that the call waits for, as far as the estimate tells, in their order."""
        ledger, index = self._ledger, self._scan.index
        num_steps = float(self._claimed_steps)
        while (index in ledger.workers or index in ledger.failed) and index != self._end:
            if index in ledger.sizes:
                num_steps += ledger.sizes[index][0]
            elif index in ledger.workers:
                yield index
                num_steps += self._estimate.mean or 1
            index += 1
            if isinstance(self._target, AtLeast) and num_steps >= self._target.num_steps:
                break

    def _num_wanted(self) -> int:
        """How many more episodes are to be begun."""
        if not isinstance(self._target, AtLeast):
            assert self._end is not None  # noqa: S101
            return self._end - self._first - self._num_begun
        num_open = sum(self.num_open) - len(self._ledger.duplicates)
        missing_steps = self._target.num_steps - self._known_steps
        # What goes on for long goes on for longer: the expected length of an episode that has s steps is between the
        # mean, if all are equal, and the mean and s, if the end may come at any time.
        if num_open:
            missing_steps -= round(self._estimate.spread * self._num_partial_steps)
        mean = self._estimate.mean
        if mean is None:
            # One on each worker tells: a worker steps its environments one after the other anyway.
            return min(missing_steps, self._num_workers * self._unit_size) - num_open
        return math.ceil(missing_steps / mean) - num_open

    def _next_ranges(self, count: int) -> list[range]:
        """The next episodes to begin, wherever that is: those again that were lost, then new ones."""
        ranges = []
        while count > 0 and self._to_begin_again:
            start = self._to_begin_again[0]
            # What was lost of a unit has no gaps, but where a part of it was begun twice or given up.
            stop = 1
            while self._to_begin_again[stop : stop + 1] == [start + stop] and start + stop < self.unit_of(start).stop:
                stop += 1
            ranges.append(range(start, start + stop))
            del self._to_begin_again[:stop]
            count -= stop
        if count > 0:
            start = self._next_index
            self._next_index = self.unit_of(start + count - 1).stop
            ranges += (
                self.units_in(range(start, self._next_index)) if self._unit_size > 1 else [range(start, start + count)]
            )
        return ranges

    def _pinned_ranges(self, placement: RoundRobin | PerWorker, worker: int, room: int, bound: int) -> list[range]:
        """The next episodes that belong to the worker, below `bound` and not more than there is room for."""
        ranges: list[range] = []
        if isinstance(placement, PerWorker):
            bound = min(bound, placement.stop_of(worker))
        index = placement.next_of(worker, max(self._next_of_worker[worker], self._ledger.next_index))
        while index < bound and room > 0:
            stop = index + 1
            if index not in self._ledger.workers and index not in self._ledger.failed:
                stop = self._end_of_gap(index, self.unit_of(index).stop)
                room -= stop - index
                if self._unit_size == 1 and ranges and ranges[-1].stop == index:
                    ranges[-1] = range(ranges[-1].start, stop)
                else:
                    ranges.append(range(index, stop))
            self._next_of_worker[worker] = stop
            index = placement.next_of(worker, stop)
        return ranges

    def _end_of_gap(self, index: int, stop: int) -> int:
        """The first episode from an index on that was given up, or `stop`."""
        failed = self._ledger.failed
        return next((other for other in range(index, stop) if other in failed), stop) if failed else stop

    def _skip(self) -> bool:
        """Goes on behind an episode that was given up, and whose turn it is; returns whether that is to be."""
        ledger, index = self._ledger, self._scan.index
        endless = self._end is None and self.num_skipped_in_a_row >= self._MOST_SKIPPED_IN_A_ROW
        nothing_is_left = index + 1 == self._end and not (self._claimed_steps or self._is_rest)
        if not self._skip_failed or endless or nothing_is_left:
            self.obstacle = ledger.failed[index]
            return False
        self.num_skipped_in_a_row += 1
        self._skipped[index] = ledger.failed.pop(index)
        self._scan.index = ledger.next_index = index + 1
        self.complete = self._is_reached(index + 1)
        return True

    def _close_claim(self) -> PlannedClaim:
        """Ends the claim that is being gathered: its episodes leave the ledger."""
        scan, ledger = self._scan, self._ledger
        claim = PlannedClaim(scan.worker, ledger.next_index, scan.index, scan.num_bytes)
        for index in range(claim.start, claim.stop):
            if index in ledger.duplicates:
                self._duplicates.settle(index, claim.worker)
            del ledger.workers[index], ledger.sizes[index]
        ledger.next_index = claim.stop
        scan.num_bytes = 0
        return claim

    def _is_reached(self, stop: int) -> bool:
        """Whether the episodes before `stop` make the target."""
        if isinstance(self._target, AtLeast):
            return self._claimed_steps >= self._target.num_steps
        return stop == self._end


def _end(target: Target, first: int, num_workers: int) -> int | None:
    """One more than the last index, if the target is a number of episodes of which this one is to be claimed first."""
    match target:
        case Exactly():
            return first - target.num_skipped + target.num_episodes_per_worker * num_workers
        case InAll():
            return first + target.num_episodes
        case _:
            return None


@dataclass
class _Scan:
    """The claim that is being gathered.

    Attributes:
        index: the next episode to look at.
        worker: where the gathered ones are.
        num_bytes: their approximate bytes; 0 if there are none.
    """

    index: int
    worker: int = 0
    num_bytes: int = 0

    def take(self, worker: int, num_bytes: int) -> None:
        self.index += 1
        self.worker = worker
        self.num_bytes += num_bytes
