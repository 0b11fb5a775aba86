"""Plans with failed episodes: the claims depend on the episodes alone, whatever the workers do."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st
from simulated_workers import Workers, mixed_lengths

from rollserve_server.pool import AtLeast, Exactly, FailedEpisode, InAll, Target
from rollserve_server.pool.plan.claiming import PlannedClaim
from rollserve_server.pool.plan.estimates import LengthEstimate
from rollserve_server.pool.plan.ledger import Anywhere, Ledger, PerWorker, Placement, RoundRobin
from rollserve_server.pool.plan.plan import Plan


class FailingWorkers(Workers):
    """Workers on which some episodes fail at their ends: `fails` says which, in every attempt."""

    def __init__(self, num_workers: int, num_rows: int, fails: Callable[[int], bool], seed: int, deaths: int) -> None:
        super().__init__(num_workers, num_rows, mixed_lengths, seed, deaths)
        self._fails = fails

    def _work(self, worker: int) -> tuple[list[int], int]:
        ended, num_steps = super()._work(worker)
        for index in filter(self._fails, ended):
            assert self.plan.fail(index, FailedEpisode(index, worker, 1, "")) in (False, not self.skip_failed)
            num_steps -= mixed_lengths(index)
        return [index for index in ended if not self._fails(index)], num_steps

    def run(self, plan: Plan, estimate: LengthEstimate, *, skip_failed: bool) -> list[PlannedClaim] | None:
        """Return the claims, or None if the plan meets an obstacle."""
        self.plan, self.skip_failed = plan, skip_failed
        try:
            return self.serve(plan, estimate)
        except _ObstacleError:
            return None

    def _claim(self, plan: Plan) -> list[PlannedClaim]:
        claims = super()._claim(plan)
        if plan.claiming.obstacle is not None:
            raise _ObstacleError
        return claims


class _ObstacleError(Exception):
    pass


def expected_indices(
    target: Target, first: int, num_workers: int, fails: Callable[[int], bool]
) -> tuple[list[int], int]:
    """The indices of the episodes that a call delivers, and the first index of the next call."""
    if isinstance(target, AtLeast):
        indices, num_steps, index = [], 0, first
        while num_steps < target.num_steps:
            if not fails(index):
                indices.append(index)
                num_steps += mixed_lengths(index)
            index += 1
        return indices, index
    count = target.num_episodes if isinstance(target, InAll) else target.num_episodes_per_worker * num_workers
    return [index for index in range(first, first + count) if not fails(index)], first + count


@given(
    pattern=st.lists(st.booleans(), min_size=1, max_size=40).filter(lambda pattern: not all(pattern)),
    num_workers=st.integers(1, 4),
    num_rows=st.integers(1, 5),
    kind=st.sampled_from(["anywhere", "round robin", "exactly", "in all"]),
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=3),
    first=st.integers(0, 30),
    deaths=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_plan_claims_all_but_the_failed_episodes_when_they_are_skipped(
    pattern: list[bool],
    num_workers: int,
    num_rows: int,
    kind: str,
    sizes: list[int],
    first: int,
    deaths: int,
    seed: int,
) -> None:
    def fails(index: int) -> bool:
        return pattern[index % len(pattern)]

    workers = FailingWorkers(num_workers, num_rows, fails, seed, deaths)
    ledger, estimate = Ledger(first), LengthEstimate(None)
    for size in sizes:
        placement: Placement = Anywhere()
        target: Target = AtLeast(size)
        if kind == "round robin":
            placement = RoundRobin(num_workers)
        elif kind == "exactly":
            placement, target = PerWorker(first, 1 + size // 10), Exactly(1 + size // 10)
        elif kind == "in all":
            target = InAll(1 + size // 10)
        indices, following = expected_indices(target, first, num_workers, fails)
        if not indices:
            return
        plan = Plan(target, placement, ledger, estimate, num_workers, skip_failed=True)
        claims = workers.run(plan, estimate, skip_failed=True)
        assert claims is not None
        assert [index for claim in claims for index in range(claim.start, claim.stop)] == indices
        skipped = sorted(plan.claiming.skipped)
        assert skipped == [index for index in range(first, following) if fails(index)]
        assert ledger.next_index == first + len(indices) + len(skipped) == following
        first = following


@given(
    failing=st.integers(0, 60),
    num_workers=st.integers(1, 4),
    num_steps=st.integers(1, 1500),
    deaths=st.integers(0, 2),
    seed=st.integers(0, 1000),
)
def test_failed_episode_is_an_obstacle_only_if_the_call_needs_it(
    failing: int, num_workers: int, num_steps: int, deaths: int, seed: int
) -> None:
    workers = FailingWorkers(num_workers, 4, lambda index: index == failing, seed, deaths)
    estimate = LengthEstimate(None)
    plan = Plan(AtLeast(num_steps), Anywhere(), Ledger(0), estimate, num_workers)
    claims = workers.run(plan, estimate, skip_failed=False)
    indices, following = expected_indices(AtLeast(num_steps), 0, num_workers, lambda index: False)
    if failing < following:
        assert claims is None
        assert plan.claiming.obstacle is not None
        assert plan.claiming.obstacle.index == failing
    else:
        assert claims is not None
        assert [index for claim in claims for index in range(claim.start, claim.stop)] == indices
