"""The plan of a call as a state machine: whatever workers do, the answer is the prefix in the order of the indices."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rollserve_server.pool import AtLeast, Exactly, InAll, Target
from rollserve_server.pool.plan.ledger import Ledger
from rollserve_server.pool.plan.length_estimate import LengthEstimate
from rollserve_server.pool.plan.placement import Anywhere, PerWorker, Placement, RoundRobin
from rollserve_server.pool.plan.plan import Plan, PlannedClaim


class Workers:
    """Workers that run episodes of given lengths, a step of each row at a time, in an order drawn at random.

    Now and then one is lost, with all that it had not been told to deliver, and now and then one begins what others are
    late with, as it is drawn.
    """

    def __init__(
        self,
        num_workers: int,
        num_rows: int,
        length: Callable[[int], int],
        seed: int,
        num_deaths: int = 0,
        unit_size: int = 1,
        num_copies: int = 0,
    ) -> None:
        self._unit_size = unit_size
        self._num_copies = num_copies
        self.num_copied = 0
        self.num_rows = num_rows
        self.num_lost_steps = 0
        self.queues: list[list[int]] = [[] for _ in range(num_workers)]
        self.running: list[dict[int, int]] = [{} for _ in range(num_workers)]
        self.begun: set[int] = set()
        self.num_steps = 0
        self._length = length
        self._random = random.Random(seed)
        self._num_deaths = num_deaths
        self._absent: set[int] = set()
        self._finished: list[dict[int, int]] = [{} for _ in range(num_workers)]

    def serve(self, plan: Plan, estimate: LengthEstimate) -> list[PlannedClaim]:
        """Works until the plan is complete; returns what was claimed."""
        claims = self._claim(plan)
        for _ in range(30_000):
            if plan.complete:
                self._absent.clear()
                return claims
            worker = self._random.randrange(len(self.queues))
            if self._num_deaths and self._random.random() < 0.05:
                self._num_deaths -= 1
                self._die(worker, plan)
            if worker in self._absent:
                if self._random.random() < 0.2:
                    self._absent.discard(worker)
                    plan.regain(worker)
                else:
                    assert plan.begin(worker, 100) == []
                continue
            for indices in plan.begin(worker, self.num_rows + 2 - plan.num_open[worker]):
                assert self.begun.isdisjoint(indices)
                # Of a unit, all is begun at once that is not delivered.
                is_whole = indices.stop == plan.unit_of(indices.start).stop
                assert self._unit_size == 1 or is_whole or self.num_copied
                self.begun.update(indices)
                self.queues[worker] += indices
            if self.num_copied < self._num_copies:
                self._copy(worker, plan)
            finished, num_steps = self._work(worker)
            self.num_steps += num_steps
            estimate.observe(num_steps, [self._length(index) for index in finished])
            plan.simulate(num_steps)
            for index in finished:
                self._finished[worker][index] = self._length(index)
                plan.finish(index, self._length(index), 100 * self._length(index), worker)
                self._cancel_redundant(plan)
            claims += self._claim(plan)
        raise AssertionError("the plan came to no end")

    def _claim(self, plan: Plan) -> list[PlannedClaim]:
        claims = plan.claim()
        self._cancel_redundant(plan)
        for claim in claims:
            for index in range(claim.start, claim.stop):
                del self._finished[claim.worker][index]
        return claims

    def _die(self, worker: int, plan: Plan) -> None:
        elsewhere = {index for other in range(len(self.queues)) if other != worker for index in self._held(other)}
        held = self._held(worker) - elsewhere
        assert set(plan.lose(worker)) == held
        self.num_lost_steps += sum(self.running[worker].values()) + sum(self._finished[worker].values())
        self.begun -= held
        for of_worker in (self.queues[worker], self.running[worker], self._finished[worker]):
            of_worker.clear()
        self._absent.add(worker)

    def _held(self, worker: int) -> set[int]:
        return {*self.queues[worker], *self.running[worker], *self._finished[worker]}

    def _copy(self, worker: int, plan: Plan) -> None:
        for indices in plan.begin_duplicates(worker, lambda index: self._random.random() < 0.5, self.num_rows):
            assert self._held(worker).isdisjoint(indices)
            holders = [self._held(other) for other in range(len(self.queues))]
            assert all(sum(index in held for held in holders) == 1 for index in indices)
            self.queues[worker] += indices
            self.num_copied += len(indices)

    def _cancel_redundant(self, plan: Plan) -> None:
        for worker, index in plan.redundant:
            assert index in self._held(worker)
            if index in self.queues[worker]:
                self.queues[worker].remove(index)
            self.num_lost_steps += self.running[worker].pop(index, 0) + self._finished[worker].pop(index, 0)
        plan.redundant.clear()

    def _work(self, worker: int) -> tuple[list[int], int]:
        queue, running = self.queues[worker], self.running[worker]
        finished, num_steps = [], 0
        for _ in range(self._random.randrange(1, 30)):
            while queue and len(running) < self.num_rows:
                running[queue.pop(0)] = 0
            for index in list(running):
                running[index] += 1
                num_steps += 1
                if running[index] == self._length(index):
                    del running[index]
                    finished.append(index)
        return finished, num_steps


def worker_of(placement: Placement, index: int) -> int | None:
    """The worker that the episode belongs to, as the contract defines it."""
    match placement:
        case Anywhere():
            return None
        case RoundRobin():
            return index // placement.size % placement.num_workers
        case PerWorker():
            return (index - placement.first_index) // placement.size


def check_claims(claims: list[PlannedClaim], first: int, placement: Placement) -> int:
    """That the claims are consecutive, and each on the worker that it belongs to; returns where they end."""
    for claim in claims:
        assert claim.start == first
        assert claim.stop > claim.start
        for index in range(claim.start, claim.stop):
            assert worker_of(placement, index) in (None, claim.worker)
        first = claim.stop
    return first


def mixed_lengths(index: int) -> int:
    return 1 + index * 7919 % 40


LENGTHS = st.one_of(
    st.just(lambda index: 1),
    st.just(mixed_lengths),
    st.just(lambda index: 1000 if random.Random(index).random() < 0.5 else 1),
)


@given(
    lengths=LENGTHS,
    num_workers=st.integers(1, 5),
    num_rows=st.integers(1, 6),
    requests=st.lists(st.integers(1, 3000), min_size=1, max_size=4),
    limit=st.sampled_from([None, 1000]),
    size=st.sampled_from([None, 1, 2, 7]),
    seed=st.integers(0, 1000),
    num_deaths=st.integers(0, 8),
    unit_size=st.sampled_from([1, 1, 2, 7]),
    num_copies=st.sampled_from([0, 10, 1000]),
)
@example(
    lengths=mixed_lengths,
    num_workers=3,
    num_rows=1,
    requests=[3],
    limit=None,
    size=1,
    seed=114,
    num_deaths=0,
    unit_size=1,
    num_copies=0,
)
def test_at_least_is_the_shortest_prefix(
    lengths: Callable[[int], int],
    num_workers: int,
    num_rows: int,
    requests: list[int],
    limit: int | None,
    size: int | None,
    seed: int,
    num_deaths: int,
    unit_size: int,
    num_copies: int,
) -> None:
    size = size and size * unit_size  # workers take turns with whole units
    placement: Placement = RoundRobin(num_workers, size) if size else Anywhere()
    workers = Workers(num_workers, num_rows, lengths, seed, num_deaths, unit_size, num_copies)
    ledger, estimate = Ledger(next_index=0), LengthEstimate(limit)
    first, num_delivered = 0, 0
    for num_steps in requests:
        plan = Plan(AtLeast(num_steps), placement, ledger, estimate, num_workers, unit_size=unit_size)
        stop = check_claims(workers.serve(plan, estimate), first, placement)
        delivered = [lengths(index) for index in range(first, stop)]
        assert sum(delivered) >= num_steps > sum(delivered[:-1])
        num_delivered += sum(delivered)
        first = ledger.next_index
        assert first == stop
        # Whatever was simulated was delivered, stands finished for the next call, is running, or was lost.
        finished = sum(steps for steps, _ in ledger.sizes.values())
        running = sum(steps for of_worker in workers.running for steps in of_worker.values())
        assert workers.num_steps == num_delivered + finished + running + workers.num_lost_steps
        assert min(ledger.workers, default=first) >= first


@given(num_workers=st.integers(1, 6), size=st.integers(1, 9), index=st.integers(0, 2**63), worker=st.integers(0, 5))
def test_the_next_episode_of_a_worker(num_workers: int, size: int, index: int, worker: int) -> None:
    placement = RoundRobin(num_workers, size)
    worker %= num_workers
    found = placement.next_of(worker, index)
    assert worker_of(placement, found) == worker
    between = [worker_of(placement, earlier) for earlier in range(index, found)]
    assert worker not in between
    assert found - index <= (num_workers - 1) * size


@given(
    lengths=LENGTHS,
    num_workers=st.integers(1, 5),
    num_rows=st.integers(1, 6),
    count=st.integers(1, 20),
    first=st.integers(0, 10**12),
    skipped=st.floats(0, 1),
    seed=st.integers(0, 1000),
    num_deaths=st.integers(0, 8),
    unit_size=st.sampled_from([1, 1, 2, 7]),
)
def test_exactly_so_many_on_each_worker_and_no_more(
    lengths: Callable[[int], int],
    num_workers: int,
    num_rows: int,
    count: int,
    first: int,
    skipped: float,
    seed: int,
    num_deaths: int,
    unit_size: int,
) -> None:
    num_skipped = round(skipped * count * num_workers)
    placement, start = PerWorker(first, count), first + num_skipped
    workers = Workers(num_workers, num_rows, lengths, seed, num_deaths, unit_size)
    ledger, estimate = Ledger(next_index=start), LengthEstimate(None)
    plan = Plan(Exactly(count, num_skipped), placement, ledger, estimate, num_workers, unit_size=unit_size)
    claims = workers.serve(plan, estimate)
    assert check_claims(claims, start, placement) == first + num_workers * count
    assert [claim.worker for claim in claims] == sorted(claim.worker for claim in claims)
    assert workers.begun == set(range(start, first + num_workers * count))
    assert not ledger.workers


@given(
    lengths=LENGTHS,
    num_workers=st.integers(1, 5),
    num_rows=st.integers(1, 6),
    count=st.integers(1, 60),
    first=st.integers(0, 100),
    size=st.sampled_from([None, 1, 3]),
    seed=st.integers(0, 1000),
    num_deaths=st.integers(0, 8),
    unit_size=st.sampled_from([1, 1, 2, 7]),
    num_copies=st.sampled_from([0, 10, 1000]),
)
def test_so_many_in_all_and_no_more_units_than_they_are_in(
    lengths: Callable[[int], int],
    num_workers: int,
    num_rows: int,
    count: int,
    first: int,
    size: int | None,
    seed: int,
    num_deaths: int,
    unit_size: int,
    num_copies: int,
) -> None:
    placement: Placement = RoundRobin(num_workers, size * unit_size) if size else Anywhere()
    workers = Workers(num_workers, num_rows, lengths, seed, num_deaths, unit_size, num_copies)
    ledger, estimate = Ledger(next_index=first), LengthEstimate(None)
    plan = Plan(InAll(count), placement, ledger, estimate, num_workers, unit_size=unit_size)
    assert check_claims(workers.serve(plan, estimate), first, placement) == first + count
    assert workers.begun == set(range(first, plan.unit_of(first + count - 1).stop))


@pytest.mark.parametrize(
    ("target", "placement"),
    [
        (AtLeast(2**62), Anywhere()),
        (AtLeast(2**62), RoundRobin(3)),
        (AtLeast(2**62), RoundRobin(3, 5)),
        (Exactly(2**40), PerWorker(5, 2**40)),
        (InAll(2**40), Anywhere()),
        (InAll(2**40), RoundRobin(3)),
    ],
)
def test_enormous_calls_begin_no_more_than_there_is_room_for(target: Target, placement: Placement) -> None:
    plan = Plan(target, placement, Ledger(5), LengthEstimate(500), num_workers=3)
    for _ in range(3):
        for worker in range(3):
            assert sum(len(indices) for indices in plan.begin(worker, 7)) == 7


@pytest.mark.parametrize("target", [AtLeast(10), Exactly(1), InAll(1)])
def test_nothing_begins_after_the_end(target: Target) -> None:
    placement: Placement = PerWorker(0, 1) if isinstance(target, Exactly) else Anywhere()
    workers = Workers(1, 4, lambda index: 10, seed=0)
    estimate = LengthEstimate(None)
    plan = Plan(target, placement, Ledger(0), estimate, 1)
    workers.serve(plan, estimate)
    assert plan.begin(0, 100) == []


def test_no_more_is_begun_than_the_expected_length_asks_for() -> None:
    estimate = LengthEstimate(None)
    estimate.observe(20_000, [20] * 1000)
    plan = Plan(AtLeast(2048), Anywhere(), Ledger(0), estimate, num_workers=2)
    begun = [len(indices) for worker in (0, 1) for indices in plan.begin(worker, 1000)]
    assert sum(begun) == 103
    assert max(begun) - min(begun) <= 1


def test_the_estimate_is_not_biased_to_short_episodes() -> None:
    """Half of the episodes take one step, the others a thousand; early on only the short ones have ended."""
    estimate = LengthEstimate(None)
    assert estimate.mean is None
    for _ in range(100):
        estimate.observe(50, [])
    estimate.observe(50, [1] * 10)
    assert estimate.mean == pytest.approx(505)
    estimate.fade(1)
    assert estimate.mean == pytest.approx(505)
    estimate.observe(495, [5] * 99)
    assert estimate.mean == pytest.approx(10)


def test_at_first_episodes_are_taken_to_be_as_long_as_their_limit() -> None:
    assert LengthEstimate(500).mean == 500
    plan = Plan(AtLeast(161), Anywhere(), Ledger(0), LengthEstimate(16), num_workers=2)
    assert sum(len(indices) for worker in (0, 1) for indices in plan.begin(worker, 100)) == 11


def test_where_nothing_is_known_one_episode_on_each_worker_tells() -> None:
    estimate = LengthEstimate(None)
    plan = Plan(AtLeast(1000), Anywhere(), Ledger(0), estimate, num_workers=3)
    assert [plan.begin(worker, 100) for worker in (0, 1, 2, 0)] == [[range(1)], [range(1, 2)], [range(2, 3)], []]
    estimate.observe(30, [])
    assert plan.begin(0, 100) == []
    plan.finish(1, 10, 1000)
    estimate.observe(0, [10])
    assert plan.begin(0, 100) != []


def test_what_is_late_and_awaited_is_begun_once_more() -> None:
    estimate = LengthEstimate(10)
    plan = Plan(AtLeast(60), Anywhere(), Ledger(0), estimate, num_workers=3)
    assert [plan.begin(worker, 2) for worker in range(3)] == [[range(2)], [range(2, 4)], [range(4, 6)]]
    assert plan.begin_duplicates(2, lambda index: index == 1, 9) == []  # 0 comes first
    assert plan.begin_duplicates(2, lambda index: index < 3, 2) == [range(1), range(1, 2)]
    assert plan.begin_duplicates(1, lambda index: index < 3, 2) == []  # they have two workers, and 2 is its own
    assert plan.begin_duplicates(0, lambda index: index < 3, 2) == [range(2, 3)]
    plan.finish(0, 10, 1, worker=2)
    plan.finish(1, 10, 1, worker=0)
    assert plan.redundant == [(0, 0), (2, 1)]
    assert [plan.lose(worker) for worker in (1, 0)] == [[3], [1, 2]]
    assert plan.claim(flush=True)[0].worker == 2
    assert plan.begin(2, 9) == [range(1, 2), range(2, 3), range(3, 4)]


def test_nothing_is_begun_twice_that_is_bound_to_its_worker() -> None:
    for target, placement in ((AtLeast(60), RoundRobin(2)), (Exactly(3), PerWorker(0, 3))):
        plan = Plan(target, placement, Ledger(0), LengthEstimate(10), num_workers=2)
        assert plan.begin(0, 9) != []
        assert plan.begin_duplicates(1, lambda index: True, 9) == []
