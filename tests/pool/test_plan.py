"""The plan of a call as a state machine: random workers never change which episodes are claimed, or their order."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from simulated_workers import Workers, mixed_lengths

from rollserve_server.pool import AtLeast, Exactly, InAll, Target
from rollserve_server.pool.plan.claiming import PlannedClaim, Stretch
from rollserve_server.pool.plan.estimates import LengthEstimate
from rollserve_server.pool.plan.ledger import Anywhere, Ledger, PerWorker, Placement, RoundRobin
from rollserve_server.pool.plan.plan import Plan


def worker_of(placement: Placement, index: int) -> int | None:
    """Return the worker that the episode belongs to, as the protos define it."""
    match placement:
        case Anywhere():
            return None
        case RoundRobin():
            return index // placement.size % placement.num_workers
        case PerWorker():
            return (index - placement.first_index) // placement.size


def check_claims(claims: list[PlannedClaim], first: int, placement: Placement) -> int:
    """Check that the claims are consecutive, of one owner and on workers that may run them; return where they end."""
    alike = isinstance(placement, PerWorker) and placement.are_alike
    for claim in claims:
        assert claim.start == first
        assert claim.stop > claim.start
        for index in range(claim.start, claim.stop):
            assert worker_of(placement, index) == claim.owner
            assert claim.owner in (None, claim.worker) or alike
        first = claim.stop
    return first


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
    unit_retries=st.sampled_from([0, 3]),
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
    unit_retries=3,
)
def test_at_least_delivers_the_shortest_prefix(
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
    unit_retries: int,
) -> None:
    size = size and size * unit_size  # whole units go to workers in turn
    placement: Placement = RoundRobin(num_workers, size) if size else Anywhere()
    workers = Workers(num_workers, num_rows, lengths, seed, num_deaths, unit_size, num_copies)
    ledger, estimate = Ledger(next_index=0), LengthEstimate(limit)
    first, num_delivered = 0, 0
    for num_steps in requests:
        plan = Plan(
            AtLeast(num_steps),
            placement,
            ledger,
            estimate,
            num_workers,
            unit_size=unit_size,
            unit_retries=unit_retries,
        )
        stop = check_claims(workers.serve(plan, estimate), first, placement)
        delivered = [lengths(index) for index in range(first, stop)]
        assert sum(delivered) >= num_steps > sum(delivered[:-1])
        num_delivered += sum(delivered)
        first = ledger.next_index
        assert first == stop
        # Every simulated step was delivered, is finished for the next call, is of a running episode, or was lost.
        finished = sum(size.num_steps for size in ledger.sizes.values())
        running = sum(steps for of_worker in workers.running for steps in of_worker.values())
        assert workers.num_steps == num_delivered + finished + running + workers.num_lost_steps
        assert min(ledger.workers, default=first) >= first


@given(num_workers=st.integers(1, 6), size=st.integers(1, 9), index=st.integers(0, 2**63), worker=st.integers(0, 5))
def test_next_of_finds_the_next_episode_of_a_worker(num_workers: int, size: int, index: int, worker: int) -> None:
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
    are_alike=st.booleans(),
    unit_retries=st.sampled_from([0, 3]),
)
def test_exactly_begins_the_requested_episodes_of_each_worker(
    lengths: Callable[[int], int],
    num_workers: int,
    num_rows: int,
    count: int,
    first: int,
    skipped: float,
    seed: int,
    num_deaths: int,
    unit_size: int,
    are_alike: bool,
    unit_retries: int,
) -> None:
    num_skipped = round(skipped * count * num_workers)
    placement, start = PerWorker(first, count, are_alike), first + num_skipped
    workers = Workers(num_workers, num_rows, lengths, seed, num_deaths, unit_size)
    ledger, estimate = Ledger(next_index=start), LengthEstimate(None)
    target = Exactly(count, num_skipped)
    sizes = {"unit_size": unit_size, "unit_retries": unit_retries}
    plan = Plan(target, placement, ledger, estimate, num_workers, **sizes)
    claims = workers.serve(plan, estimate)
    assert check_claims(claims, start, placement) == first + num_workers * count
    assert are_alike or [claim.worker for claim in claims] == sorted(claim.worker for claim in claims)
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
def test_in_all_begins_only_the_units_of_the_requested_episodes(
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
def test_huge_call_begins_only_what_has_room(target: Target, placement: Placement) -> None:
    plan = Plan(target, placement, Ledger(5), LengthEstimate(500), num_workers=3)
    for _ in range(3):
        for worker in range(3):
            assert sum(len(indices) for indices in plan.begin(worker, 7)) == 7


@pytest.mark.parametrize("target", [AtLeast(10), Exactly(1), InAll(1)])
def test_complete_plan_begins_nothing(target: Target) -> None:
    placement: Placement = PerWorker(0, 1) if isinstance(target, Exactly) else Anywhere()
    workers = Workers(1, 4, lambda index: 10, seed=0)
    estimate = LengthEstimate(None)
    plan = Plan(target, placement, Ledger(0), estimate, 1)
    workers.serve(plan, estimate)
    assert plan.begin(0, 100) == []


def test_expected_length_bounds_what_is_begun() -> None:
    estimate = LengthEstimate(None)
    estimate.observe(20_000, [20] * 1000)
    plan = Plan(AtLeast(2048), Anywhere(), Ledger(0), estimate, num_workers=2)
    begun = [len(indices) for worker in (0, 1) for indices in plan.begin(worker, 1000)]
    assert sum(begun) == 103
    assert max(begun) - min(begun) <= 1


def test_length_estimate_is_not_biased_to_short_episodes() -> None:
    """Half of the episodes have 1 step, the others 1000; early on, only short ones have ended."""
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


def test_length_estimate_starts_at_the_limit() -> None:
    assert LengthEstimate(500).mean == 500
    plan = Plan(AtLeast(161), Anywhere(), Ledger(0), LengthEstimate(16), num_workers=2)
    assert sum(len(indices) for worker in (0, 1) for indices in plan.begin(worker, 100)) == 11


def test_plan_begins_one_episode_per_worker_when_no_length_is_known() -> None:
    estimate = LengthEstimate(None)
    plan = Plan(AtLeast(1000), Anywhere(), Ledger(0), estimate, num_workers=3)
    assert [plan.begin(worker, 100) for worker in (0, 1, 2, 0)] == [[range(1)], [range(1, 2)], [range(2, 3)], []]
    estimate.observe(30, [])
    assert plan.begin(0, 100) == []
    plan.finish(1, 10, 1000)
    estimate.observe(0, [10])
    assert plan.begin(0, 100) != []


def test_workers_with_their_share_have_an_expected_stretch() -> None:
    plan = Plan(AtLeast(60), Anywhere(), Ledger(0), LengthEstimate(10), num_workers=2)
    assert plan.expected_stretch(0) is None
    assert [plan.begin(worker, 9) for worker in range(2)] == [[range(3)], [range(3, 6)]]
    assert plan.expected_stretch(0) == Stretch(0, 3, num_missing_steps=60, owner=None)
    assert plan.expected_stretch(1) == Stretch(3, 6, num_missing_steps=None, owner=None)  # steps before are not known
    for index in range(3):
        plan.finish(index, 5, 1)
    assert plan.expected_stretch(1) == Stretch(3, 6, num_missing_steps=45, owner=None)
    assert [(claim.start, claim.stop) for claim in plan.claiming.claim(flush=False, stops=[2])] == [(0, 2), (2, 3)]
    assert plan.lose(1) == [3, 4, 5]
    assert plan.expected_stretch(1) is None


def test_workers_have_an_expected_stretch_of_each_owner() -> None:
    plan = Plan(Exactly(2), PerWorker(0, 2, are_alike=True), Ledger(0), LengthEstimate(10), num_workers=2)
    plan.lose(1)
    assert plan.begin(0, 9) == [range(2), range(2, 4)]
    assert plan.expected_stretch(0) == Stretch(0, 2, num_missing_steps=None, owner=0)
    for index in range(2):
        plan.finish(index, 5, 1)
    assert plan.expected_stretch(0) == Stretch(2, 4, num_missing_steps=None, owner=1)


def test_workers_without_room_for_their_share_have_no_expected_stretch() -> None:
    plan = Plan(AtLeast(60), Anywhere(), Ledger(0), LengthEstimate(10), num_workers=2)
    assert plan.begin(0, 2) == [range(2)]
    assert plan.expected_stretch(0) is None


def test_awaited_stragglers_are_begun_twice() -> None:
    estimate = LengthEstimate(10)
    plan = Plan(AtLeast(60), Anywhere(), Ledger(0), estimate, num_workers=3)
    assert [plan.begin(worker, 2) for worker in range(3)] == [[range(2)], [range(2, 4)], [range(4, 6)]]
    assert plan.begin_duplicates(2, lambda index: index == 1, 9) == []  # episode 0 is delivered before
    assert plan.begin_duplicates(2, lambda index: index < 3, 2) == [range(1), range(1, 2)]
    assert (
        plan.begin_duplicates(1, lambda index: index < 3, 2) == []
    )  # 0 and 1 have two workers, and 2 runs on this one
    assert plan.begin_duplicates(0, lambda index: index < 3, 2) == [range(2, 3)]
    plan.finish(0, 10, 1, worker=2)
    plan.finish(1, 10, 1, worker=0)
    assert plan.redundant == [(0, 0), (2, 1)]
    assert [plan.lose(worker) for worker in (1, 0)] == [[3], [1, 2]]
    assert plan.claiming.claim(flush=True)[0].worker == 2
    assert plan.begin(2, 9) == [range(1, 2), range(2, 3), range(3, 4)]


def test_episodes_bound_to_a_worker_are_not_duplicated() -> None:
    for target, placement in ((AtLeast(60), RoundRobin(2)), (Exactly(3), PerWorker(0, 3))):
        plan = Plan(target, placement, Ledger(0), LengthEstimate(10), num_workers=2)
        assert plan.begin(0, 9) != []
        assert plan.begin_duplicates(1, lambda index: True, 9) == []
