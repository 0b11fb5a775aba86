"""The plan of a call: which episodes it needs, where they run, and in which order they are delivered.

Episodes are claimed by index, never by who finishes first: what a call delivers is a function of the episodes' lengths
alone. Workers only decide how long it takes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rollserve_server.pool.plan.claiming import Claiming, Demand, Stretch
from rollserve_server.pool.plan.ledger import Anywhere, EpisodeSize, PerWorker, Placement, RoundRobin, is_movable
from rollserve_server.pool.plan.units import Suspects
from rollserve_server.pool.requests import AtLeast, Exactly, InAll, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from rollserve_server.pool.accounts import FailedEpisode
    from rollserve_server.pool.plan.estimates import LengthEstimate
    from rollserve_server.pool.plan.ledger import Ledger


__all__ = ["Plan"]


class Plan:
    """The way of one call through its sequence, from the ledger's next index on.

    The caller asks `begin` which episodes a worker begins, reports ended episodes to `finish` and `fail` and lost
    workers to `lose`, and takes from `claiming` what to deliver, until that is complete. The plan keeps the ledger up
    to date; the episodes that the ledger has at the end were begun beyond the call's last one.

    Late episodes may run a second time elsewhere, see `begin_duplicates`: the run that ends first counts.

    Attributes:
        claiming: what is delivered next; the caller takes it from here.
        demand: how many episodes the call needs.
        num_open: for each worker, the number of runs that have not ended.
        redundant: workers, each with an episode that it has although it ended elsewhere. The caller removes them.
        suspects: work units that may be the reason why workers are lost, and that may have to run alone; None before
            one is lost.
    """

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
        unit_retries: int = 3,
    ) -> None:
        """Plan a call.

        Args:
            target: what the call has to deliver.
            placement: which worker an episode belongs to; the same as for the episodes that the ledger has.
            ledger: ledger of the sequence.
            estimate: estimate of the lengths of the sequence's episodes; it is only read here.
            num_workers: number of workers.
            num_partial_steps: steps of the ledger's unfinished episodes.
            unit_size: number of episodes in a work unit, which one worker begins, runs and loses as one.
            skip_failed: whether the call goes on without failed episodes.
            unit_retries: how often a lost work unit runs again beside others before it runs alone.
        """
        self.suspects: Suspects | None = None
        self._unit_retries = unit_retries
        self._placement = placement
        self._unit_size = unit_size
        self._ledger = ledger
        self._absent: set[int] = set()
        self.num_open = [0] * num_workers
        for index, worker in ledger.workers.items():
            self.num_open[worker] += index not in ledger.sizes
        for worker in ledger.duplicates.values():
            self.num_open[worker] += 1
        self.redundant: list[tuple[int, int]] = []
        stop_index = _stop_index(target, ledger.next_index, num_workers)
        self.claiming = Claiming(target, placement, ledger, self._settle, stop_index, skip_failed=skip_failed)
        self.demand = Demand(
            self.claiming,
            estimate,
            num_partial_steps=num_partial_steps,
            # One unit on each worker tells enough: a worker steps its environments one after the other anyway.
            max_unknown=num_workers * unit_size,
        )
        self._queue: _SharedQueue | _PinnedQueue
        if isinstance(placement, Anywhere):
            self._queue = _SharedQueue(placement, unit_size, ledger)
        else:
            self._queue = _PinnedQueue(placement, unit_size, ledger, num_workers)

    def begin(self, worker: int, room: int, *, is_idle: bool = False) -> list[range]:
        """Return the episodes that a worker begins now, in this order.

        There are at most `room` of them, and no more than the call needs as far as the estimate tells, apart from the
        rest of a work unit. If units have several episodes, each range lies in one unit. While a suspect waits for a
        worker on which nothing else runs, workers begin nothing, so that one of them soon runs nothing.

        Args:
            worker: index of the worker.
            room: maximum number of episodes.
            is_idle: whether nothing runs on the worker, although it may have episodes.
        """
        if self.claiming.complete or worker in self._absent:
            return []
        if (suspects := self.suspects) is not None:
            if suspects.is_isolated(worker) or suspects.culprit:
                return []
            if suspect := self._waiting_suspect(suspects, worker):
                return self._begin_alone(suspects, worker, suspect) if is_idle or not self.num_open[worker] else []
        num_more = self.demand.num_more(sum(self.num_open) - len(self._ledger.duplicates))
        if isinstance(self._queue, _SharedQueue):
            ranges = self._queue.take(self._share(self._queue, worker, room, num_more))
        else:
            ranges = self._take_bound(self._queue, worker, room, self.demand.stop_index(num_more))
        return self._record_begun(worker, ranges) if ranges else ranges

    def begin_duplicates(self, worker: int, is_late: Callable[[int], bool], room: int) -> list[range]:
        """Return late episodes that a worker without other work begins a second time.

        The call waits for these first: none comes after an episode that is not late. Each range lies in one work unit.
        An episode has one duplicate at a time.

        Args:
            worker: index of the worker.
            is_late: returns whether a running episode takes far longer than others.
            room: maximum number of episodes, apart from the rest of a work unit.
        """
        ledger, suspects, ranges = self._ledger, self.suspects, []
        if self.claiming.complete or worker in self._absent or not isinstance(self._placement, Anywhere):
            return []
        if suspects is not None and suspects.is_isolated(worker):
            return []
        for index in self.demand.awaited():
            unit = self.unit_of(index)
            if room <= 0 or (suspects is not None and unit.start in suspects) or not is_late(index):
                break
            owner, stop = ledger.workers[index], index + 1
            if owner == worker or index in ledger.duplicates:
                continue
            while stop < unit.stop and ledger.workers.get(stop) == owner and stop not in ledger.duplicates:
                stop += 1
            ledger.duplicates.update(dict.fromkeys(range(index, stop), worker))
            self.num_open[worker] += stop - index
            room -= stop - index
            ranges.append(range(index, stop))
        return ranges

    def expected_stretch(self, worker: int) -> Stretch | None:
        """Return the first unfinished stretch of a worker that has begun its share of the call; None for other workers.

        As far as the estimate tells, the call will claim that stretch as a whole.
        """
        has_share = not self.claiming.complete and self._has_begun_share(worker)
        return self.claiming.unfinished_stretch(worker) if has_share else None

    def needed_before(self) -> int | None:
        """Return the index before which all needed episodes are, as far as the estimate tells; None for no limit."""
        return None if self._unit_size == 1 else self.demand.needed_before()

    def unit_of(self, index: int) -> range:
        """Return the episodes of an episode's work unit."""
        return self._placement.unit_of(index, self._unit_size)

    def units_in(self, indices: range) -> Iterator[range]:
        """Yield the parts of a range that lie in one work unit each."""
        return self._placement.units_in(indices, self._unit_size)

    def finish(
        self,
        index: int,
        num_steps: int,
        num_bytes: int,
        worker: int | None = None,
        num_agent_steps: int | None = None,
    ) -> None:
        """Record the end of an episode.

        Args:
            index: index of the episode.
            num_steps: number of its steps.
            num_bytes: approximate bytes of its steps.
            worker: index of the worker on which it ended; needed only if it has a duplicate.
            num_agent_steps: number of the steps of all agents; by default `num_steps`.
        """
        ledger = self._ledger
        if index in ledger.duplicates and not self._settle(index, worker):
            return
        self.num_open[ledger.workers[index]] -= 1
        size = EpisodeSize(num_steps, num_bytes, num_steps if num_agent_steps is None else num_agent_steps)
        ledger.sizes[index] = size
        self.demand.finish(size)
        if self.suspects:
            self._acquit(self.suspects, index)

    def fail(self, index: int, failed: FailedEpisode) -> bool:
        """Record that a worker gave up an episode; return whether it is known that the call needs the episode.

        If the call turns out later to need the episode, it becomes the `obstacle` when it is next to deliver. An
        episode with a duplicate fails only when both workers have given it up.
        """
        ledger = self._ledger
        self.num_open[failed.worker] -= 1
        if index in ledger.duplicates:
            duplicate = ledger.duplicates.pop(index)
            if failed.worker != duplicate:  # only the other worker has the episode now
                ledger.workers[index] = duplicate
            return False
        del ledger.workers[index]
        ledger.failed[index] = failed
        if self.suspects:
            self._acquit(self.suspects, index)
        return self.claiming.needs(index)

    def lose(self, worker: int, *, may_be_cause: bool = False, hung_in: int | None = None) -> list[int]:
        """Record that a worker is gone; return its unclaimed episodes that no other worker has, which begin again.

        The worker begins nothing until `regain`.

        Args:
            worker: index of the worker.
            may_be_cause: whether an episode that ran may be the cause.
            hung_in: index of the episode that the worker is known to have hung in, if there is one.
        """
        self._absent.add(worker)
        lost, finished = self._ledger.lose(worker)
        running = {self.unit_of(index).start for index in lost if index not in finished}
        if self.suspects is None:
            self.suspects = Suspects(self._unit_retries)
        if hung_in is not None and self.unit_of(hung_in).start in running:
            self.suspects.hang(worker, self.unit_of(hung_in).start)
        else:
            self.suspects.lose(worker, running if may_be_cause and hung_in is None else ())
        self.claiming.lose(worker, finished)
        self.demand.lose(len(lost), finished.values(), self.num_open[worker], sum(self.num_open))
        self.num_open[worker] = 0
        self._queue.lose(worker, lost)
        return lost

    def regain(self, worker: int) -> None:
        """Record that a lost worker was replaced."""
        self._absent.discard(worker)

    def _waiting_suspect(self, suspects: Suspects, worker: int) -> list[int]:
        """Return the episodes of the first suspect that a worker may run and none runs; empty if there is none."""
        ledger, placement = self._ledger, self._placement
        for unit in suspects.to_isolate():
            owner = placement.owner_of(unit)
            if owner in (None, worker) or (owner in self._absent and is_movable(placement)):
                known = ledger.workers.keys() | ledger.failed.keys()
                if lost := [index for index in self.unit_of(unit) if index >= ledger.next_index and index not in known]:
                    return lost
        return []

    def _begin_alone(self, suspects: Suspects, worker: int, lost: list[int]) -> list[range]:
        """Begin a suspect on a worker on which nothing else runs."""
        suspects.isolate(worker, self.unit_of(lost[0]).start)
        if isinstance(self._queue, _SharedQueue):
            self._queue.take_lost(lost)
        return self._record_begun(worker, list(_ranges_of(lost)))

    def _record_begun(self, worker: int, ranges: list[range]) -> list[range]:
        for indices in ranges:
            self.demand.begin(len(indices))
            self.num_open[worker] += len(indices)
            self._ledger.workers.update(dict.fromkeys(indices, worker))
        return ranges

    def _settle(self, index: int, worker: int | None) -> bool:
        """Record where an episode with a duplicate has ended; return whether that run is the first to end."""
        ledger = self._ledger
        owner, duplicate = ledger.workers[index], ledger.duplicates.pop(index)
        is_first = worker != duplicate or index not in ledger.sizes
        if worker == duplicate and is_first:
            ledger.workers[index], duplicate = duplicate, owner
        self.num_open[duplicate] -= 1
        self.redundant.append((duplicate, index))
        return is_first

    def _acquit(self, suspects: Suspects, index: int) -> None:
        """Record that an episode has ended, which acquits its unit if no other episode of the unit is open."""
        unit, ledger = self.unit_of(index), self._ledger
        if not any(other in ledger.workers and other not in ledger.sizes for other in unit):
            suspects.acquit(unit.start)

    def _take_bound(self, queue: _PinnedQueue, worker: int, room: int, stop_index: int) -> list[range]:
        """Return the next episodes of a worker, followed by episodes of missing workers that others may run."""
        ranges = queue.take(worker, room, stop_index)
        if not (self._absent and is_movable(self._placement)):
            return ranges
        room -= sum(map(len, ranges))
        awaited = self.claiming.next_index
        if awaited not in self._ledger.workers and self._placement.owner_of(awaited) in self._absent:
            room = max(room, 1)  # the worker's own episodes may wait for it, because the worker's buffer is full
        for owner in sorted(self._absent):
            taken = queue.take(owner, room, stop_index)
            room -= sum(map(len, taken))
            ranges += taken
        return ranges

    def _has_begun_share(self, worker: int) -> bool:
        """Whether a worker has begun its share of all that the call needs; False if workers take turns without end."""
        if not isinstance(self._queue, _SharedQueue):
            return self._queue.has_begun_all_of(worker)
        num_open = sum(self.num_open)
        num_more = self.demand.num_more(num_open - len(self._ledger.duplicates))
        num_present = len(self.num_open) - len(self._absent)
        return self.num_open[worker] >= (num_open + max(num_more, 0)) // max(num_present, 1)

    def _share(self, queue: _SharedQueue, worker: int, room: int, num_more: int) -> int:
        """Return how many episodes a worker begins now, so that all workers have about as many."""
        if len(queue.lost):
            # A lost episode blocks all that come after it. If a worker's own episodes wait for it, because the worker's
            # buffer is full, that worker may be the only one to run it.
            num_more, room = max(num_more, len(queue.lost)), max(room, 1)
        num_present = len(self.num_open) - len(self._absent)
        share = math.ceil((sum(self.num_open) + num_more) / num_present) - self.num_open[worker]
        return max(min(room, share, num_more), 0)


def _stop_index(target: Target, first_index: int, num_workers: int) -> int | None:
    """Return the index behind the last episode of a call, or None if the call is for a number of steps."""
    match target:
        case Exactly():
            return first_index - target.num_skipped + target.num_episodes_per_worker * num_workers
        case InAll():
            return first_index + target.num_episodes
        case AtLeast():
            return None


class _SharedQueue:
    """A queue of episodes that any worker may run: lost ones first, then new ones.

    Attributes:
        lost: lost episodes that have not begun again.
    """

    def __init__(self, placement: Anywhere, unit_size: int, ledger: Ledger) -> None:
        """Continue behind the ledger's episodes.

        Args:
            placement: divides episodes into work units.
            unit_size: number of episodes in a work unit.
            ledger: ledger of the sequence; it is only read here.
        """
        self._placement = placement
        self._unit_size = unit_size
        known = ledger.workers.keys() | ledger.failed.keys()
        self._next_index = max(known, default=ledger.next_index - 1) + 1
        self.lost = [index for index in range(ledger.next_index, self._next_index) if index not in known]

    def take(self, count: int) -> list[range]:
        """Return the next episodes, in ranges of one work unit each if units have several episodes.

        There are `count` of them; more if a work unit goes beyond.
        """
        ranges = []
        while count > 0 and self.lost:
            lost = self._take_lost_range()
            ranges.append(lost)
            count -= len(lost)
        if count > 0:
            ranges += self._take_new(count)
        return ranges

    def take_lost(self, indices: Collection[int]) -> None:
        """Take lost episodes out of their order."""
        self.lost = [index for index in self.lost if index not in indices]

    def lose(self, worker: int, lost: Sequence[int]) -> None:
        """Have lost episodes begin again, on any worker."""
        self.lost = sorted([*self.lost, *lost])

    def _take_lost_range(self) -> range:
        """Return the first lost episodes, as far as they are consecutive and in one work unit."""
        start, length = self.lost[0], 1
        unit_stop = self._placement.unit_of(start, self._unit_size).stop
        # The lost episodes of a unit have no gaps, except where a part of it had duplicates or was given up.
        while self.lost[length : length + 1] == [start + length] and start + length < unit_stop:
            length += 1
        del self.lost[:length]
        return range(start, start + length)

    def _take_new(self, count: int) -> list[range]:
        start = self._next_index
        self._next_index = self._placement.unit_of(start + count - 1, self._unit_size).stop
        new = range(start, self._next_index)
        return [new] if self._unit_size == 1 else list(self._placement.units_in(new, self._unit_size))


class _PinnedQueue:
    """A queue of episodes for each worker, because each episode belongs to one worker."""

    def __init__(self, placement: RoundRobin | PerWorker, unit_size: int, ledger: Ledger, num_workers: int) -> None:
        """Begin at the ledger's next index.

        Args:
            placement: which worker an episode belongs to.
            unit_size: number of episodes in a work unit.
            ledger: ledger of the sequence; it is only read here.
            num_workers: number of workers.
        """
        self._placement = placement
        self._unit_size = unit_size
        self._ledger = ledger
        self._first_index = ledger.next_index
        # For each worker, the index from which on to look for an episode that has not begun.
        self._next_of_worker = [self._first_index] * num_workers

    def take(self, worker: int, room: int, stop_index: int) -> list[range]:
        """Return the next episodes of a worker, in ranges of one work unit each if units have several episodes.

        Args:
            worker: index of the worker that they belong to.
            room: maximum number of episodes, apart from the rest of a work unit.
            stop_index: index behind the last work unit that may begin.
        """
        ranges: list[range] = []
        placement, ledger = self._placement, self._ledger
        if isinstance(placement, PerWorker):
            stop_index = min(stop_index, placement.stop_of(worker))
        index = placement.next_of(worker, max(self._next_of_worker[worker], ledger.next_index))
        while index < stop_index and room > 0:
            stop = index + 1
            if index not in ledger.workers and index not in ledger.failed:
                stop = self._stop_of_run(index)
                room -= stop - index
                if self._unit_size == 1 and ranges and ranges[-1].stop == index:
                    ranges[-1] = range(ranges[-1].start, stop)
                else:
                    ranges.append(range(index, stop))
            self._next_of_worker[worker] = stop
            index = placement.next_of(worker, stop)
        return ranges

    def lose(self, worker: int, lost: Sequence[int]) -> None:
        """Have lost episodes begin again, including episodes that belong to other workers."""
        for owner in {worker, *map(self._placement.owner_of, lost)}:
            self._next_of_worker[owner] = self._first_index

    def has_begun_all_of(self, worker: int) -> bool:
        """Whether a worker has begun all of its episodes; false where workers take turns without end."""
        placement, ledger = self._placement, self._ledger
        if not isinstance(placement, PerWorker) or self._next_of_worker[worker] < placement.stop_of(worker):
            return False
        own = range(placement.next_of(worker, ledger.next_index), placement.stop_of(worker))
        return not placement.are_alike or all(ledger.workers.get(index) == worker for index in own)

    def _stop_of_run(self, index: int) -> int:
        """Return the end of an episode's work unit, or the first episode before that which was given up."""
        stop, failed = self._placement.unit_of(index, self._unit_size).stop, self._ledger.failed
        return next((other for other in range(index, stop) if other in failed), stop) if failed else stop


def _ranges_of(indices: Sequence[int]) -> Iterator[range]:
    """Yield the ranges that rising indices consist of."""
    start = 0
    for position in range(1, len(indices) + 1):
        if position == len(indices) or indices[position] != indices[position - 1] + 1:
            yield range(indices[start], indices[position - 1] + 1)
            start = position
