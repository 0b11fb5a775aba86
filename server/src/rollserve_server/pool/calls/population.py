"""One evaluation of a population: units of work, which any worker may run, and what they came to."""

from __future__ import annotations

import asyncio
import bisect
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rollserve import Reproducibility
from rollserve_server.errors import EnvFailedError, WorkerLostError
from rollserve_server.pool.accounts.account import Account, WorkerAccount
from rollserve_server.pool.accounts.env_failures import FailedEpisode
from rollserve_server.pool.calls.driver import (
    ORDERS_IN_FLIGHT,
    CallDriver,
    CallSettings,
    Delivery,
    put_to_work,
)
from rollserve_server.pool.calls.stragglers import Pace
from rollserve_server.sampling import Population, PopulationOrder, PopulationReport, Worker

if TYPE_CHECKING:
    import numpy as np

    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.pool.workers.workforce import Workforce
    from rollserve_server.sampling import Outcome

__all__ = ["PopulationCall"]


class PopulationCall(CallDriver):
    """Runs all units of a population. A worker that is lost on the way, or far slower than others, costs time only.

    Attributes:
        handles: of each place in the team, the worker that has a part in it.
        in_flight: of each worker, what is to come of orders that have not been answered.
    """

    def __init__(
        self,
        population: Population,
        parameters: Mapping[str, np.ndarray],
        num_rows: int,
        workforce: Workforce,
        settings: CallSettings,
        reproducibility: Reproducibility,
    ) -> None:
        """Takes how many rows each worker has, and the parameters, shared with the workers if they are large."""
        account = Account(
            seed=population.root_seed,
            first_episode_index=population.first_index,
            policy_version=population.policy_version,
            env_version=population.env_version,
            workers=[WorkerAccount() for _ in workforce],
        )
        super().__init__(workforce, settings, account, reproducibility)
        self.handles: list[WorkerHandle | None] = [None] * len(workforce)
        self.in_flight: list[deque[asyncio.Future[PopulationReport]]] = [deque() for _ in workforce]
        self._population = population
        self._parameters = parameters
        self._num_rows = num_rows
        self._units = _Units(population.num_units, len(workforce))
        self._outcomes: dict[int, Outcome] = {}
        self._held_steps = [0] * len(workforce)
        self._num_finished_last = [0] * len(workforce)
        self._has_answered = [False] * len(workforce)
        self._pace = Pace()
        can_repeat = reproducibility is not Reproducibility.WORKER
        self._straggler_factor = settings.straggler_factor if can_repeat else 0.0
        # Of units that run, when a worker was told to begin them; of each worker, what it is to run beside another.
        self._begun_at: dict[int, float] = {}
        self._duplicates: list[list[int]] = [[] for _ in workforce]

    @property
    def outcomes(self) -> Sequence[Outcome]:
        """What the units came to, in their order, once all are over."""
        return [self._outcomes[unit] for unit in range(self._population.num_units)]

    @property
    def num_members(self) -> int:
        """How many members there are."""
        return self._population.num_members

    @property
    def work_id(self) -> int:
        """The name that its workers know it by."""
        return self._population.work_id

    def _begin(self) -> None:
        """See CallDriver."""

    def _is_complete(self) -> bool:
        return len(self._outcomes) == self._population.num_units

    async def _next_delivery(self) -> Delivery | None:
        return None

    def _end(self) -> None:
        self.account.num_lost_steps += sum(self._held_steps)  # of units that ended elsewhere

    async def _drive(self, worker: int) -> None:
        if not self._workforce[worker].healthy:
            self._units.lose(worker)  # others take its share meanwhile
        while True:
            try:
                handle = await self._workforce.ready(worker)
            except WorkerLostError:
                if not self._workforce.can_do_without(worker):
                    raise
                continue
            self._units.regain(worker)
            try:
                await self._drive_handle(worker, handle)
            except WorkerLostError as error:
                self._workforce.lose(worker, handle, error)
                self._lose(worker, error)

    async def _drive_handle(self, worker: int, handle: WorkerHandle) -> None:
        """Keeps a worker at work until it is lost."""
        in_flight = self.in_flight[worker]
        while True:
            while len(in_flight) < ORDERS_IN_FLIGHT and (order := self._next_order(worker)):
                if self.handles[worker] is not handle:
                    self.handles[worker] = handle
                    await handle.call(Worker.add_population, self._population, self._parameters)
                report, _ = put_to_work(handle, order)
                in_flight.append(report)
            if not in_flight:
                if not self._begin_duplicates(worker):
                    await self._wait(self._seconds_to_late())
                continue
            self._take(worker, await asyncio.shield(in_flight[0]))
            in_flight.popleft()
            self._notify()

    def _next_order(self, worker: int) -> PopulationOrder | None:
        """What a worker is to do next, or None if there is nothing now."""
        units = self._units
        begin = units.begin(worker, self._num_rows + 2 * self._num_finished_last[worker])
        # The first answer often brings it all.
        is_first = not (self.in_flight[worker] or self._has_answered[worker])
        goes_on = units.num_open[worker] > 0 and (is_first or self._has_answered[worker])
        begin += [range(unit, unit + 1) for unit in self._duplicates[worker]]
        self._duplicates[worker].clear()
        if not (begin or goes_on):
            return None
        now = time.monotonic()
        for indices in begin:
            for unit in indices:
                self._begun_at.setdefault(unit, now)
        seconds = self._slice_seconds(has_answered=self._has_answered[worker])
        return PopulationOrder(self._population.work_id, tuple(begin), seconds)

    def _begin_duplicates(self, worker: int) -> bool:
        """Has a worker that has nothing to do run what others take too long for; returns whether there is anything."""
        late_after = self._pace.late_after(self._straggler_factor)
        if late_after is None:
            return False
        begun_at, before = self._begun_at, time.monotonic() - late_after
        room = self._num_rows - self._units.num_open[worker]
        duplicates = self._units.begin_duplicates(worker, lambda unit: begun_at[unit] < before, room)
        self._duplicates[worker] += duplicates
        self.account.count_stragglers(len(duplicates))
        return bool(duplicates)

    def _seconds_to_late(self) -> float | None:
        """After how many seconds to look for late units again; None if there is nothing to wait for but a change."""
        late_after = self._pace.late_after(self._straggler_factor)
        if late_after is None or not self._begun_at:
            return None
        left = min(self._begun_at.values()) + late_after - time.monotonic()
        return left if left > 0 else late_after

    def _take(self, worker: int, report: PopulationReport) -> None:
        """Takes in what a worker did."""
        share, account = self.account.workers[worker], self.account
        share.sampling_seconds += report.sampling_seconds
        share.num_simulated_steps += report.num_simulated_steps
        account.num_lost_steps += report.num_lost_steps
        self._held_steps[worker] += report.num_simulated_steps - report.num_lost_steps
        self._num_finished_last[worker] = len(report.outcomes)
        self._has_answered[worker] = True
        for outcome in report.outcomes:
            unit = outcome.episode_index
            if unit not in self._outcomes:  # else another worker was first, and these steps are lost
                account.num_discarded_steps += outcome.length
                account.num_discarded_episodes += 1
                self._held_steps[worker] -= outcome.length
                self._pace.observe(time.monotonic() - self._begun_at.pop(unit))
            self._units.finish(worker, unit)
            self._outcomes[unit] = outcome
        for env_failure in report.env_failures:
            account.take_env_failure(worker, env_failure)
            if env_failure.is_final and not all(unit in self._outcomes for unit in env_failure.indices):
                raise EnvFailedError(FailedEpisode.of(worker, env_failure).final_text)
        if report.failure is not None:
            raise report.failure

    def _lose(self, worker: int, error: WorkerLostError) -> None:
        """Takes in that a worker is gone, with the units that had not ended."""
        self.in_flight[worker].clear()
        self.handles[worker] = None
        self._duplicates[worker].clear()
        self._has_answered[worker] = False
        lost = self._units.lose(worker)
        for unit in lost:
            del self._begun_at[unit]
        self.account.num_lost_steps += self._held_steps[worker]
        self._held_steps[worker] = 0
        self._count_losses(lost, error, lambda unit: f"an episode of member {self._population.member_of(unit)}")
        self._notify()


class _Units:
    """Units of work, and the workers that run them; the lowest are begun first.

    Attributes:
        num_open: of each worker, how many it has that have not ended.
    """

    def __init__(self, num_units: int, num_workers: int) -> None:
        self._next, self._stop = 0, num_units
        self._to_begin_again: list[int] = []
        self._running: list[set[int]] = [set() for _ in range(num_workers)]
        self._duplicated: set[int] = set()
        self._absent: set[int] = set()

    @property
    def num_open(self) -> Sequence[int]:
        return [len(units) for units in self._running]

    def begin(self, worker: int, room: int) -> list[range]:
        """The units that a worker is to begin now: at most as many as make `room` with those that it has, and no more
        than its share.
        """  # noqa: D205
        num_open = self.num_open
        num_left = self._stop - self._next + len(self._to_begin_again)
        num_present = len(self._running) - len(self._absent)
        share = math.ceil((sum(num_open) + num_left) / num_present)
        count = max(min(room, share) - num_open[worker], 0)
        again, self._to_begin_again = self._to_begin_again[:count], self._to_begin_again[count:]
        stop = min(self._next + count - len(again), self._stop)
        ranges = [*(range(unit, unit + 1) for unit in again), range(self._next, stop)]
        self._next = stop
        for units in ranges:
            self._running[worker].update(units)
        return [units for units in ranges if units]

    def begin_duplicates(self, worker: int, is_late: Callable[[int], bool], room: int) -> list[int]:
        """Late units of other workers, at most as many as there is room for, that a worker is to run beside them."""
        elsewhere = set().union(*self._running) - self._running[worker] - self._duplicated
        duplicates = list(itertools.islice(filter(is_late, sorted(elsewhere)), max(room, 0)))
        self._running[worker].update(duplicates)
        self._duplicated.update(duplicates)
        return duplicates

    def finish(self, worker: int, unit: int) -> None:
        """Takes in that a unit has ended, wherever else it runs."""
        self._running[worker].discard(unit)
        if unit in self._duplicated:
            self._duplicated.discard(unit)
            for units in self._running:
                units.discard(unit)

    def lose(self, worker: int) -> list[int]:
        """Takes in that a worker is gone; returns what it was running, which is to begin again."""
        self._absent.add(worker)
        lost = sorted(self._running[worker] - self._duplicated)
        self._duplicated -= self._running[worker]
        self._running[worker].clear()
        for unit in lost:
            bisect.insort(self._to_begin_again, unit)
        return lost

    def regain(self, worker: int) -> None:
        """Takes in that there is a worker in a lost one's place."""
        self._absent.discard(worker)
