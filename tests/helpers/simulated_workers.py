"""Simulated workers of a plan, which are lost and begin duplicates at random."""

from __future__ import annotations

import random
from collections.abc import Callable

from rollserve_server.pool.plan.claiming import PlannedClaim
from rollserve_server.pool.plan.estimates import LengthEstimate
from rollserve_server.pool.plan.plan import Plan


class Workers:
    """Simulated workers that run episodes of given lengths in a random order.

    Random workers are lost with all episodes that are not claimed, and random workers begin duplicates.
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
        """Work until the plan is complete, and return its claims."""
        claims = self._claim(plan)
        for _ in range(30_000):
            if plan.claiming.complete:
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
                is_alone = not (self.queues[worker] or self.running[worker])
                assert is_alone or plan.unit_of(indices.start).start not in (plan.suspects or ())
                # A unit is begun as a whole, except for its delivered episodes.
                is_whole = indices.stop == plan.unit_of(indices.start).stop
                assert self._unit_size == 1 or is_whole or self.num_copied
                self.begun.update(indices)
                self.queues[worker] += indices
            if self.num_copied < self._num_copies:
                self._copy(worker, plan)
            finished, num_steps = self._work(worker)
            self.num_steps += num_steps
            estimate.observe(num_steps, [self._length(index) for index in finished])
            plan.demand.simulate(num_steps)
            for index in finished:
                self._finished[worker][index] = self._length(index)
                plan.finish(index, self._length(index), 100 * self._length(index), worker)
                self._cancel_redundant(plan)
            claims += self._claim(plan)
        raise AssertionError("the plan does not end")

    def _claim(self, plan: Plan) -> list[PlannedClaim]:
        claims = plan.claiming.claim(flush=False)
        self._cancel_redundant(plan)
        for claim in claims:
            for index in range(claim.start, claim.stop):
                del self._finished[claim.worker][index]
        return claims

    def _die(self, worker: int, plan: Plan) -> None:
        elsewhere = {index for other in range(len(self.queues)) if other != worker for index in self._held(other)}
        held = self._held(worker) - elsewhere
        # Losses of units that run alone do not count here: two of them would end the call.
        is_alone = plan.suspects is not None and plan.suspects.is_isolated(worker)
        assert set(plan.lose(worker, may_be_cause=not is_alone)) == held
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


def mixed_lengths(index: int) -> int:
    return 1 + index * 7919 % 40
