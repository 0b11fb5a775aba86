"""Evaluations of a population: units of work, which any worker may run, and their outcomes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rollserve_server.errors import EnvFailedError, WorkerLostError
from rollserve_server.pool.accounts import Account, FailedEpisode
from rollserve_server.pool.calls.call import Call
from rollserve_server.pool.plan.estimates import Pace
from rollserve_server.pool.plan.units import Units
from rollserve_server.pool.sequences.open_work import OpenWork
from rollserve_server.sampling import Population, PopulationOrder, PopulationReport, Worker
from rollserve_wire.environments import Reproducibility

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.pool.parts import PoolParts
    from rollserve_server.pool.requests import PopulationRequest
    from rollserve_server.pool.sequences.open_work import InFlight
    from rollserve_server.pool.state.versions import EnvVersion
    from rollserve_server.pool.workers.slots import Workforce
    from rollserve_server.sampling import Members, Outcome

__all__ = ["PopulationCall"]


class PopulationCall(Call[PopulationOrder, PopulationReport]):
    """An evaluation of a population. A worker that is lost, or far slower than others, costs time only."""

    def __init__(
        self,
        parts: PoolParts,
        request: PopulationRequest,
        population: Population,
        members: Members,
        env: EnvVersion,
        workforce: Workforce,
    ) -> None:
        """Take the members' parameters, shared with the workers if they are large, and their environments."""
        account = Account.begin(population, population.first_index, len(workforce))
        work: OpenWork[PopulationOrder, PopulationReport] = OpenWork(population.work_id, workforce)
        reproducibility = env.description.reproducibility
        super().__init__(parts, request, workforce, account, reproducibility, work.in_flight)
        self._work = work
        self._population = population
        self._members = members
        self._num_rows = env.description.num_rows
        self._watch_ends(env, population.max_episode_length)
        self._units = Units(population.num_units, len(workforce), self._settings.unit_retries)
        for worker, slot in enumerate(self._slots):
            if not slot.healthy:
                self._units.lose(worker)  # others take its share meanwhile
        self._outcomes: dict[int, Outcome] = {}
        self._num_finished_last = [0] * len(workforce)
        self._pace = Pace()
        can_repeat = self.reproducibility is not Reproducibility.WORKER
        self._straggler_factor = self._settings.straggler_factor if can_repeat else 0.0
        # For each running unit, when its order was sent; for each worker, duplicates that it is to begin.
        self._begun_at: dict[int, float] = {}
        self._duplicates: list[list[int]] = [[] for _ in self._slots]

    @property
    def outcomes(self) -> Sequence[Outcome]:
        """Outcomes of the units, in their order, once all have ended."""
        return [self._outcomes[unit] for unit in range(self._population.num_units)]

    def _is_complete(self) -> bool:
        return len(self._outcomes) == self._population.num_units

    def _end(self) -> None:
        self.account.num_lost_steps += self._work.num_held_steps  # of duplicates that ended second
        self._work.close()

    async def _next_handle(self, worker: int) -> WorkerHandle:
        handle = await self._ready(worker)
        self._units.regain(worker)
        return handle

    async def _prepare(self, worker: int, handle: WorkerHandle) -> None:
        if self._work.handles[worker] is not handle:
            self._work.handles[worker] = handle
            await handle.call(Worker.add_population, self._population, self._members)

    async def _idle(self, worker: int) -> None:
        if not self._begin_duplicates(worker):
            await self._wait(self._seconds_to_late())

    def _next_order(self, worker: int, handle: WorkerHandle) -> PopulationOrder | None:
        units = self._units
        begin = units.begin(worker, self._num_rows + 2 * self._num_finished_last[worker])
        # The first answer often brings everything, so nothing is ordered beyond it.
        goes_on = units.num_open[worker] > 0 and (self._has_answered[worker] or not self.in_flight[worker])
        begin += [range(unit, unit + 1) for unit in self._duplicates[worker]]
        self._duplicates[worker].clear()
        if not (begin or goes_on):
            return None
        now = time.monotonic()
        for indices in begin:
            for unit in indices:
                self._begun_at.setdefault(unit, now)
        return PopulationOrder(self._population.work_id, tuple(begin), self._slice_seconds(worker))

    def _begin_duplicates(self, worker: int) -> bool:
        """Have an idle worker run what others take too long for; return whether there is anything."""
        late_after = self._pace.late_after(self._straggler_factor)
        if late_after is None:
            return False
        begun_at, latest = self._begun_at, time.monotonic() - late_after
        room = self._num_rows - self._units.num_open[worker]
        duplicates = self._units.begin_duplicates(worker, lambda unit: begun_at[unit] < latest, room)
        self._duplicates[worker] += duplicates
        self.account.num_straggler_episodes += len(duplicates)
        return bool(duplicates)

    def _seconds_to_late(self) -> float | None:
        """Return after how many seconds to look for late units again; None if only an event can make any late."""
        late_after = self._pace.late_after(self._straggler_factor)
        if late_after is None or not self._begun_at:
            return None
        left = min(self._begun_at.values()) + late_after - time.monotonic()
        return left if left > 0 else late_after

    def _take_report(
        self, worker: int, sent: InFlight[PopulationOrder, PopulationReport], report: PopulationReport
    ) -> None:
        self.account.num_lost_steps += report.num_lost_steps
        self._work.held_steps[worker] += report.num_simulated_steps - report.num_lost_steps
        self._num_finished_last[worker] = len(report.outcomes)
        self._has_answered[worker] = True
        for outcome in report.outcomes:
            self._take_outcome(worker, outcome)
        for env_failure in report.env_failures:
            self.account.count_env_failure(worker, env_failure)
            if env_failure.is_final and not all(unit in self._outcomes for unit in env_failure.indices):
                raise EnvFailedError(FailedEpisode.of(worker, env_failure).final_text)
        if report.failure is not None:
            raise report.failure
        self._count_ends(report.num_simulated_steps, len(report.outcomes) + len(report.env_failures))
        self._notify()

    def _take_outcome(self, worker: int, outcome: Outcome) -> None:
        unit = outcome.episode_index
        if unit not in self._outcomes:  # else another worker was first, and these steps are lost
            self.account.num_discarded_steps += outcome.length
            self.account.num_discarded_episodes += 1
            self._work.held_steps[worker] -= outcome.length
            self._pace.observe(time.monotonic() - self._begun_at.pop(unit))
        self._units.finish(worker, unit)
        self._outcomes[unit] = outcome

    def _lose(self, worker: int, handle: WorkerHandle, error: WorkerLostError) -> None:
        was_working = bool(self.in_flight[worker])
        self.in_flight[worker].clear()
        self._work.handles[worker] = None
        self._duplicates[worker].clear()
        self._has_answered[worker] = False
        lost = self._units.lose(worker)
        for unit in lost:
            del self._begun_at[unit]
        self.account.num_lost_steps += self._work.held_steps[worker]
        self._work.held_steps[worker] = 0
        self.account.count_retried(error.reason.lower(), len(lost))
        self._suspect(worker, lost if was_working else (), error)
        self._notify()

    def _suspect(self, worker: int, lost: Sequence[int], error: WorkerLostError) -> None:
        """Suspect lost units, unless something else is the cause; raise the error if one proves to be."""
        suspects, population = self._units.suspects, self._population
        hung = [unit for unit in lost if population.index_of(unit) == error.episode_index]
        if len(hung) == 1:
            suspects.hang(worker, hung[0])
        else:  # members share episodes, so that several units may have been the one
            suspects.lose(worker, () if self._has_other_cause(error) else hung or lost)
        self._check_suspects(suspects, error, lambda unit: f"an episode of member {population.member_of(unit)}")
