"""One sampling call: keeps its workers busy, and delivers what they write in the order of the episodes."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rollserve import Reproducibility
from rollserve_server.errors import EnvFailedError, WorkerLostError
from rollserve_server.pool.accounts.account import Account, WorkerAccount
from rollserve_server.pool.accounts.env_failures import FailedEpisode
from rollserve_server.pool.calls.claims import Cancellation, Claims, PendingDelivery
from rollserve_server.pool.calls.driver import (
    ORDERS_IN_FLIGHT,
    CallDriver,
    CallSettings,
    Delivery,
    put_to_work,
)
from rollserve_server.pool.calls.stragglers import Stragglers
from rollserve_server.pool.plan.placement import Anywhere, PerWorker
from rollserve_server.pool.plan.plan import Plan
from rollserve_server.pool.sequences.open_sequence import InFlight, OpenSequence
from rollserve_server.sampling import EARLY, Claim, EpisodeRange, Order

if TYPE_CHECKING:
    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.pool.plan.length_estimate import LengthEstimate
    from rollserve_server.pool.plan.placement import RowLayout
    from rollserve_server.pool.plan.plan import Target
    from rollserve_server.pool.workers.workforce import Workforce
    from rollserve_server.sampling import EpisodeFailure, Report

__all__ = ["EpisodeCall"]


class EpisodeCall(CallDriver):
    """Runs one call, which has its stream for itself meanwhile.

    A worker that is lost on the way costs time only: its episodes run again, elsewhere if they are bound to none, and
    are the same. So are those that take far longer than others, which run a second time beside the first.

    Attributes:
        sequence: what it delivers a part of.
    """

    def __init__(
        self,
        target: Target,
        sequence: OpenSequence,
        workforce: Workforce,
        rows: RowLayout,
        estimate: LengthEstimate,
        settings: CallSettings,
        reproducibility: Reproducibility,
    ) -> None:
        ledger, placement = sequence.ledger, sequence.placement
        account = Account(
            seed=sequence.spec.root_seed,
            first_episode_index=ledger.next_index,
            policy_version=sequence.spec.policy_version,
            env_version=sequence.spec.env_version,
            workers=[WorkerAccount() for _ in workforce],
            num_carried_steps=sequence.num_held_steps,
        )
        super().__init__(workforce, settings, account, reproducibility)
        self.sequence = sequence
        self._rows = rows
        self._estimate = estimate
        self._pinned = not isinstance(placement, Anywhere)
        num_partial_steps = sequence.num_held_steps - sum(num_steps for num_steps, _ in ledger.sizes.values())
        self._plan = Plan(
            target,
            placement,
            ledger,
            estimate,
            len(workforce),
            num_partial_steps,
            rows.unit_size(placement),
            skip_failed=settings.skip_failed,
        )
        self._claims = Claims(settings.window_bytes, sequence.claim_names, pinned=self._pinned)
        self._num_finished_last = [0] * len(workforce)
        self._steps_per_second = [0.0] * len(workforce)
        self._has_answered = [False] * len(workforce)
        can_repeat = not self._pinned and reproducibility is not Reproducibility.WORKER
        factor = settings.straggler_factor if can_repeat else 0.0
        self._stragglers = Stragglers(self._plan, self._claims, sequence, estimate.pace, factor)
        # Of each worker, what it is to run beside another.
        self._duplicates: list[list[range]] = [[] for _ in workforce]
        # Of each worker, what it wrote without being asked.
        self._early: dict[int, PendingDelivery] = {}

    def _begin(self) -> None:
        try:
            self._advance_claims()
        except EnvFailedError as error:  # of an episode that calls before had begun
            self._failure = error

    def _is_complete(self) -> bool:
        return self._plan.complete and not self._claims

    def _end(self) -> None:
        self.account.num_kept_steps = self.sequence.num_held_steps

    async def _drive(self, worker: int) -> None:
        while True:
            handle = await self._next_handle(worker)
            try:
                await self._drive_handle(worker, handle)
            except WorkerLostError as error:
                self._workforce.lose(worker, handle, error)
                self._lose(worker, error)

    async def _next_handle(self, worker: int) -> WorkerHandle:
        """The worker, or once it is there the one in its place."""
        known, slot = self.sequence.handles[worker], self._workforce[worker]
        if known is not None and not (slot.handle is known and slot.healthy):  # it was lost while no call was there
            self._lose(worker, WorkerLostError(f"worker {worker} is lost", worker))
        elif not slot.healthy:
            self._plan.lose(worker)  # others take its share meanwhile
        while True:
            try:
                handle = await self._workforce.ready(worker)
            except WorkerLostError:
                if self._pinned or not self._workforce.can_do_without(worker):
                    raise
            else:
                break
        self.sequence.handles[worker] = handle
        self._plan.regain(worker)
        return handle

    async def _drive_handle(self, worker: int, handle: WorkerHandle) -> None:
        """Keeps a worker at work until it is lost."""
        in_flight = self.sequence.in_flight[worker]
        stuck = False
        while True:
            while len(in_flight) < ORDERS_IN_FLIGHT and (order := self._next_order(worker, stuck)):
                self.sequence.handles[worker] = handle
                in_flight.append(InFlight(order, *put_to_work(handle, order)))
            if not in_flight:
                if not self._begin_duplicates(worker):
                    await self._wait(self._stragglers.seconds())
                stuck = False
                continue
            # If the call ends meanwhile, the answer is the next call's.
            order, coming, payload = in_flight[0]
            report = await asyncio.shield(coming)
            in_flight.popleft()
            self._has_answered[worker] = True
            self.sequence.cancellations[worker].answered(order.cancel)
            for asked in order.deliver:
                self._claims.answered(asked.claim_id)
            for parcel in report.parcels:
                written = PendingDelivery(worker, payload, parcel)
                if parcel.claim_id == EARLY:
                    self._early[worker] = written
                else:
                    self._take_delivery(written)
            if report.is_closed:
                self.sequence.handles[worker] = None
            self._take(worker, report)
            idle = not (report.num_simulated_steps or report.parcels or report.env_failures)
            # A worker whose buffer is full may be waiting for just what would be claimed with its next episode.
            if self._advance_claims(flush=idle) or not idle:
                self._notify()
            # Others may have come so far since the order was given that its next ones reach further.
            stuck = idle and order.before == self._plan.needed_before()

    def _next_order(self, worker: int, stuck: bool) -> Order | None:
        """What a worker is to do next, or None if there is nothing now.

        Args:
            worker: which one.
            stuck: whether it had nothing to do with its last order, and so would have nothing now unless it is given
                something: its buffer is full, its episodes have ended, or those that have not are not needed yet.
        """
        plan, claims = self._plan, self._claims
        begin_again = claims.to_begin(worker) + self._duplicates[worker]
        begin = plan.begin(worker, self._rows.num_rows + self._lookahead(worker) - plan.num_open[worker])
        deliver = claims.to_ask(worker)
        samples = (not plan.complete and plan.num_open[worker] > 0) or claims.num_missing(worker) > 0
        # The first answer often brings it all.
        is_first = not (self.sequence.in_flight[worker] or self._has_answered[worker])
        is_ahead = not (is_first or self._has_answered[worker])
        release = () if plan.complete else tuple(self.sequence.releases[worker])
        cancel = self.sequence.cancellations[worker].take()
        if not (begin or begin_again or deliver or release or cancel or (samples and not stuck and not is_ahead)):
            return None
        if release:
            self.sequence.releases[worker].clear()
        self._duplicates[worker].clear()
        for indices in begin:
            self._stragglers.begin(indices)
        return Order(
            sequence=self.sequence.spec,
            begin=tuple(map(self._episode_range, begin)),
            begin_again=tuple(
                self._episode_range(part) for indices in begin_again for part in self._plan.units_in(indices)
            ),
            before=plan.needed_before(),
            deliver=tuple(deliver),
            max_message_bytes=self._settings.max_message_bytes,
            bind_worker=self._pinned,
            seconds=self._slice_seconds(has_answered=self._has_answered[worker]) if samples else 0.0,
            columns=self._settings.columns,
            # Of calls whose episodes are bound to their workers, each worker's are known beforehand.
            early=bool(begin) and isinstance(self.sequence.placement, PerWorker),
            release=release,
            is_whole=is_first and plan.has_begun_all_of(worker),
            cancel=cancel,
        )

    def _begin_duplicates(self, worker: int) -> bool:
        """Has a worker that has nothing to do run what the call waits for too long; returns whether there is any."""
        # Its own episodes may be waiting for just those, because its buffer is full.
        room = max(self._rows.num_rows - self._plan.num_open[worker], 1)
        duplicates, num_episodes = self._stragglers.begin_duplicates(worker, room)
        self._duplicates[worker] += duplicates
        self.account.count_stragglers(num_episodes)
        return num_episodes > 0

    def _lookahead(self, worker: int) -> int:
        """How many episodes are to wait for a worker's rows: as many as may end there during two orders."""
        mean = self._estimate.mean
        seconds = self._slice_seconds(has_answered=self._has_answered[worker])
        num_expected = int(self._steps_per_second[worker] * seconds / mean) if mean else 0
        return 2 * max(num_expected, self._num_finished_last[worker])

    def _episode_range(self, indices: range) -> EpisodeRange:
        return EpisodeRange(indices, self._plan.unit_of(indices.start).start)

    def _take(self, worker: int, report: Report) -> None:
        """Takes in what a worker did."""
        share = self.account.workers[worker]
        share.sampling_seconds += report.sampling_seconds
        share.encoding_seconds += report.encoding_seconds
        share.num_simulated_steps += report.num_simulated_steps
        self.account.dropped_infos.update(report.dropped_infos)
        num_held_steps = report.num_simulated_steps - report.num_idle_steps
        self.account.num_idle_steps += report.num_idle_steps
        self.sequence.held_steps[worker] += num_held_steps
        self._give_up(worker, report.num_lost_steps)
        num_new_steps = max(num_held_steps - report.num_lost_steps, 0)
        self._estimate.observe(num_new_steps, [num_steps for _, num_steps, _ in report.finished])
        self._plan.simulate(num_held_steps - report.num_lost_steps)
        self._num_finished_last[worker] = len(report.finished)
        if report.num_simulated_steps:
            self._steps_per_second[worker] = report.num_simulated_steps / max(report.sampling_seconds, 1e-6)
        cancellations = self.sequence.cancellations[worker]
        for index, num_steps, num_bytes in report.finished:
            if index not in cancellations and not self._claims.finish(worker, index):
                self._plan.finish(index, num_steps, num_bytes, worker)
                self._stragglers.finish(index)
        for env_failure in report.env_failures:
            self._take_env_failure(worker, env_failure)
        self._cancel_redundant()
        if report.failure is not None:
            raise report.failure

    def _take_env_failure(self, worker: int, failure: EpisodeFailure) -> None:
        """Takes in that episodes of a worker run again, or are given up. Raises the error if nothing can do without."""
        self.account.take_env_failure(worker, failure)
        if not failure.is_final:
            return
        failed = FailedEpisode.of(worker, failure)
        for index in failure.indices:
            if index not in self.sequence.cancellations[worker] and not self._can_do_without(worker, index, failed):
                raise EnvFailedError(failed.final_text, episode_index=failed.index)

    def _can_do_without(self, worker: int, index: int, failed: FailedEpisode) -> bool:
        """Takes in that a worker gave up an episode; returns whether the call may go on, as far as is known."""
        if not self._claims.is_missing(worker, index):
            return not self._plan.fail(index, failed)
        # What had gone well before, and is claimed, stands in the middle of what is to be written together.
        cancellation = self._claims.give_up(worker, index)
        self._cancel([cancellation] if cancellation else [])
        return cancellation is not None

    def _skip(self, episodes: Mapping[int, FailedEpisode]) -> None:
        """Takes in that the call goes on without episodes, by index."""
        self.account.env_failures.skip(episodes.values())

    def _take_delivery(self, written: PendingDelivery) -> None:
        cancellations = self._claims.take(written)
        if cancellations is None:  # another worker was first
            self._give_up(written.worker, written.num_steps)
            return
        self._cancel(cancellations)

    def _cancel(self, cancellations: Sequence[Cancellation]) -> None:
        """Has workers forget what they have in vain."""
        for worker, indices in cancellations:
            self.sequence.cancellations[worker].add(indices)

    def _cancel_redundant(self) -> None:
        """Has workers forget what others have ended before them."""
        for worker, index in self._plan.redundant:
            self.sequence.cancellations[worker].add(range(index, index + 1))
        self._plan.redundant.clear()

    def _lose(self, worker: int, error: WorkerLostError) -> None:
        """Takes in that a worker is gone, with all that it had not written."""
        sequence = self.sequence
        sequence.in_flight[worker].clear()
        self._early.pop(worker, None)
        sequence.releases[worker].clear()
        sequence.cancellations[worker].clear()
        self._duplicates[worker].clear()
        sequence.handles[worker] = None
        lost = self._claims.lose(worker) + self._plan.lose(worker)
        written = sum(written.num_steps for written in self._claims.held_of(worker))
        self._give_up(worker, sequence.held_steps[worker] - written)
        self._retry(lost, error)

    def _give_up(self, worker: int, num_steps: int) -> None:
        """Takes in that steps which a worker made are not going to be delivered."""
        self.sequence.held_steps[worker] -= num_steps
        self.account.num_lost_steps += num_steps

    def _retry(self, lost: Sequence[int], error: WorkerLostError) -> None:
        """Takes in that episodes are to run again. Raises the error if that has happened too often."""
        cut = self._claims.cut_episode()
        if cut is not None and self.reproducibility is Reproducibility.WORKER:
            text = f"{error.text}; a part of episode {cut} was delivered, which cannot be run again: its environment is"
            raise WorkerLostError(f"{text} no function of its seed", error.worker_index)
        self._count_losses(lost, error, "episode {}".format)
        self._notify()

    def _advance_claims(self, *, flush: bool = False) -> bool:
        """Claims what can be delivered next; returns whether there was anything.

        Raises:
            EnvFailedError: next is an episode that was given up, and the call is not to go on without it.
        """
        planned_claims = self._plan.claim(flush=flush)
        for planned in planned_claims:
            claim_id = self._claims.add(planned)
            early = self._early.pop(planned.worker, None)
            if early is not None and (early.parcel.start[0], early.parcel.stop[0]) == (planned.start, planned.stop):
                self._take_delivery(early._replace(parcel=dataclasses.replace(early.parcel, claim_id=claim_id)))
                if self.sequence.handles[planned.worker] is not None:  # else it has forgotten all of the stream
                    self.sequence.releases[planned.worker].append(Claim(claim_id, planned.start, planned.stop))
        self._skip(self._plan.take_skipped())
        if (obstacle := self._plan.obstacle) is not None:
            others = f"; like all {count} episodes before it" if (count := self._plan.num_skipped_in_a_row) else ""
            raise EnvFailedError(f"{obstacle.final_text}{others}", episode_index=obstacle.index)
        self._cancel_redundant()
        return bool(planned_claims)

    async def _next_delivery(self) -> Delivery | None:
        written = self._claims.next_pending()
        if written is None:
            return None
        worker, payload, parcel = written
        try:
            buffer = await payload.get()
        except WorkerLostError as error:
            lost, num_steps, cancellations = self._claims.lose_first_delivery()
            self._cancel(cancellations)
            for its_worker, count in num_steps.items():
                self._give_up(its_worker, count)
            self._retry(lost, error)
            return None
        self._claims.delivered()
        self.sequence.held_steps[worker] -= written.num_steps
        return self._deliver(worker, parcel.messages, buffer)
