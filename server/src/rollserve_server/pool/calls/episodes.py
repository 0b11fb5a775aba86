"""Calls for whole episodes, and prefetches: keep workers busy, and deliver in the order of the episodes."""

from __future__ import annotations

import itertools
import operator
import time
from collections import Counter
from typing import TYPE_CHECKING

from rollserve_server.errors import EnvFailedError, WorkerLostError
from rollserve_server.pool.accounts import Account, FailedEpisode
from rollserve_server.pool.calls.call import Call
from rollserve_server.pool.calls.claims import Cancellation, Claims, PendingDelivery
from rollserve_server.pool.plan.ledger import Anywhere, is_movable
from rollserve_server.pool.plan.plan import Plan
from rollserve_server.pool.requests import AtLeast, EvaluationRequest
from rollserve_server.sampling import EpisodeRange, Order, Outcome
from rollserve_wire.environments import Reproducibility

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.pool.parts import PoolParts
    from rollserve_server.pool.plan.estimates import LengthEstimate
    from rollserve_server.pool.requests import SampleRequest, Target
    from rollserve_server.pool.results import Delivery
    from rollserve_server.pool.sequences.open_work import InFlight, OpenSequence
    from rollserve_server.pool.sequences.sequences import OwnSequence
    from rollserve_server.pool.state.versions import EnvVersion
    from rollserve_server.sampling import EpisodeFailure, Report


__all__ = ["EpisodeCall", "Prefetch"]

_MARGIN_SECONDS = 0.01
"""Delay of a look for stragglers beyond the time at which one is late."""

_num_steps = operator.attrgetter("num_steps")


class EpisodeCall(Call["Order", "Report"]):
    """A call for whole episodes, which has its sequence for itself.

    A lost worker costs time only: its episodes run again, on any worker that may run them, and are the same. A
    straggler runs a second time beside the first.

    Attributes:
        sequence: the sequence that it delivers a part of.
        own: the own sequence that it goes on with, if it names no seed.
    """

    _claims_episodes = True

    def __init__(
        self,
        parts: PoolParts,
        request: SampleRequest | EvaluationRequest,
        target: Target,
        sequence: OpenSequence,
        env: EnvVersion,
        estimate: LengthEstimate,
        own: OwnSequence | None = None,
    ) -> None:
        """Claim what workers have finished already. The sequence of an evaluation is for it alone, and ends with it."""
        ledger, placement, workforce = sequence.ledger, sequence.placement, sequence.workforce
        account = Account.begin(sequence.spec, ledger.next_index, len(workforce))
        account.num_carried_steps = sequence.num_held_steps
        reproducibility = env.description.reproducibility
        super().__init__(parts, request, workforce, account, reproducibility, sequence.in_flight)
        self.sequence, self.own = sequence, own
        self._num_rows = env.description.num_rows
        self._estimate = estimate
        self._is_pinned = not is_movable(placement)
        num_partial_steps = sequence.num_held_steps - sum(map(_num_steps, ledger.sizes.values()))
        self._plan = Plan(
            target,
            placement,
            ledger,
            estimate,
            len(workforce),
            num_partial_steps,
            env.unit_size(placement),
            skip_failed=request.options.skip_failed,
            unit_retries=self._settings.unit_retries,
        )
        num_target_steps = target.num_steps if isinstance(target, AtLeast) else 0
        self._watch_ends(env, sequence.spec.max_episode_length, num_target_steps)
        # By episode, how often its messages were lost on their way.
        self._num_lost_deliveries: Counter[int] = Counter()
        self._claims = Claims(self._settings.window_bytes, sequence.claim_names, pinned=self._is_pinned)
        self._num_finished_last = [0] * len(workforce)
        self._steps_per_second = [estimate.steps_per_second] * len(workforce)
        # Whether a worker had nothing to do with its last order, and so would have nothing now unless it gets
        # something: its buffer is full, its episodes have ended, or its open ones are not needed yet.
        self._is_stuck = [False] * len(workforce)
        can_repeat = isinstance(placement, Anywhere) and self.reproducibility is not Reproducibility.WORKER
        self._straggler_factor = self._settings.straggler_factor if can_repeat else 0.0
        # By worker, episodes that it is to begin as duplicates.
        self._duplicates: dict[int, list[range]] = {}
        # Of an evaluation, the outcomes of ended episodes by index.
        self._is_evaluation, self._outcomes = isinstance(request, EvaluationRequest), dict[int, Outcome]()
        try:
            self._advance_claims()
        except EnvFailedError as error:  # of an episode that earlier calls had begun
            self._failure = error

    @property
    def outcomes(self) -> Sequence[Outcome]:
        """Outcomes of an evaluation's claimed episodes in the order of their indices, without skipped ones."""
        claimed = range(self.account.first_episode_index, self.sequence.ledger.next_index)
        return [self._outcomes[index] for index in claimed if index in self._outcomes]

    def _is_complete(self) -> bool:
        return self._plan.claiming.complete and not self._claims.open

    def _end(self) -> None:
        if self._is_evaluation:  # what was begun beyond the end of an evaluation is discarded
            self.account.num_idle_steps += self.sequence.num_held_steps
            self.sequence.close()
            return
        self.account.num_kept_steps = self.sequence.num_held_steps
        if num_steps := self.account.num_simulated_steps:
            num_seconds = sum(map(operator.attrgetter("sampling_seconds"), self.account.workers))
            self._estimate.steps_per_second = num_steps / max(num_seconds, 1e-6)

    def _num_ended_episodes(self) -> int:
        ledger, account = self.sequence.ledger, self.account
        num_claimed = ledger.next_index - account.first_episode_index - account.env_failures.num_skipped
        return num_claimed - self._claims.num_missing + len(ledger.sizes)

    async def _next_handle(self, worker: int) -> WorkerHandle:
        known, slot = self.sequence.handles[worker], self._slots[worker]
        if known is not None and not (slot.handle is known and slot.healthy):  # lost while no call was there
            self._lose(worker, known, WorkerLostError(f"worker {worker} is lost", worker))
        elif not slot.healthy:
            self._plan.lose(worker)  # others take its share meanwhile
        if self._is_pinned:
            handle = await self._parts.workers.available(slot)
        else:
            handle = await self._ready(worker)
        self.sequence.handles[worker] = handle
        self._plan.regain(worker)
        self._is_stuck[worker] = False
        return handle

    async def _idle(self, worker: int) -> None:
        if not self._begin_duplicates(worker):
            await self._wait(self._seconds_to_late())
        self._is_stuck[worker] = False

    def _next_order(self, worker: int, handle: WorkerHandle) -> Order | None:
        plan, claims, sequence = self._plan, self._claims, self.sequence
        begin_again, begin, deliver = self._duplicates.pop(worker, []), [], []
        if claims.open:
            begin_again, deliver = claims.to_begin(worker) + begin_again, claims.to_ask(worker)
        if not plan.claiming.complete:
            room = self._num_rows + self._lookahead(worker) - plan.num_open[worker]
            begin = plan.begin(worker, room, is_idle=self._is_stuck[worker])
        samples = (not plan.claiming.complete and plan.num_open[worker] > 0) or claims.is_running_again(worker)
        # The first answer often brings everything, so nothing is ordered beyond it.
        can_go_on = (
            samples and not self._is_stuck[worker] and (self._has_answered[worker] or not self.in_flight[worker])
        )
        # An idle worker may keep what it wrote early: it hears of that with its next order, in this call or the next.
        release = tuple(sequence.releases.pop(worker, ())) if samples or begin else ()
        cancellations = sequence.cancellations.get(worker)
        cancel = () if cancellations is None else cancellations.take()
        if not (begin or begin_again or deliver or release or cancel or can_go_on):
            return None
        for indices in begin:
            sequence.begun_at.update(dict.fromkeys(indices, time.monotonic()))
        # The unfinished episodes that the call will probably claim next of the worker.
        stretch = None if begin_again or not self._claims_episodes else plan.expected_stretch(worker)
        return Order(
            sequence=sequence.spec,
            begin=tuple(map(self._episode_range, begin)),
            begin_again=tuple(map(self._episode_range, itertools.chain.from_iterable(map(plan.units_in, begin_again)))),
            before=plan.needed_before(),
            deliver=tuple(deliver),
            max_message_bytes=self._request.messages.max_message_bytes,
            seconds=self._slice_seconds(worker, may_be_last=stretch is not None) if samples else 0.0,
            report_outcomes=self._is_evaluation,
            columns=self._request.messages.columns,
            early=None if stretch is None else claims.expect(stretch),
            release=release,
            cancel=cancel,
        )

    def _begin_duplicates(self, worker: int) -> bool:
        """Have an idle worker run what the call has waited for too long; return whether there is any."""
        late_after = self._estimate.pace.late_after(self._straggler_factor)
        if late_after is None or not self._claims_episodes:
            return False
        now, begun_at, started = time.monotonic(), self.sequence.begun_at, self._started
        written = self._claims.begin_duplicates(worker, now, late_after)
        # At least one: the worker's own episodes may wait for just that, because its buffer is full.
        room = max(self._num_rows - self._plan.num_open[worker], 1)
        running = self._plan.begin_duplicates(
            worker, lambda index: now - begun_at.get(index, started) > late_after, room
        )
        self._duplicates.setdefault(worker, []).extend(running)
        num_episodes = sum(map(len, (*written, *running)))
        self.account.num_straggler_episodes += num_episodes
        return num_episodes > 0

    def _seconds_to_late(self) -> float | None:
        """Return after how many seconds to look for stragglers again; None if only an event can make anything late."""
        late_after = self._estimate.pace.late_after(self._straggler_factor)
        if late_after is None:
            return None
        first, written = next(self._plan.demand.awaited(), None), self._claims.first_since()
        begun = None if first is None else self.sequence.begun_at.get(first, self._started)
        left = [since + late_after - time.monotonic() for since in (written, begun) if since is not None]
        # What is late already has a duplicate, or no worker that could run one.
        return min((seconds for seconds in left if seconds > 0), default=late_after) + _MARGIN_SECONDS

    def _lookahead(self, worker: int) -> int:
        """Return how many episodes should wait for a worker's rows: as many as may end there during two orders."""
        mean = self._estimate.mean
        num_expected = int(self._steps_per_second[worker] * self._slice_seconds(worker) / mean) if mean else 0
        return 2 * max(num_expected, self._num_finished_last[worker])

    def _episode_range(self, indices: range) -> EpisodeRange:
        return EpisodeRange(indices, self._plan.unit_of(indices.start).start)

    def _take_report(self, worker: int, sent: InFlight[Order, Report], report: Report) -> None:
        order, sequence = sent.order, self.sequence
        self._has_answered[worker] = True
        if order.cancel:
            sequence.cancellations[worker].acknowledge(order.cancel)
        for asked in order.deliver:
            self._claims.answered(asked.claim_id)
        for parcel in report.parcels:
            self._take_delivery(PendingDelivery(worker, sent.buffer, parcel))
        if order.early is not None:
            self._claims.take_early(worker, sent.buffer, order.early, report.early)
        self._count(worker, report)
        for outcome in report.outcomes:  # of an episode that ran again, the run that is delivered counts
            self._outcomes[outcome.episode_index] = outcome
        self._take_outcomes(worker, report)
        self._count_ends(report.num_simulated_steps, len(report.finished) + len(report.env_failures))
        was_idle = not (report.num_simulated_steps or report.parcels or report.env_failures)
        # A worker whose buffer is full may be waiting for just what would be claimed with its next episode.
        if self._advance_claims(flush=was_idle) or not was_idle:
            self._notify()
        # Others may have come so far since the order was given that its next ones reach further.
        self._is_stuck[worker] = was_idle and order.before == self._plan.needed_before()

    def _count(self, worker: int, report: Report) -> None:
        """Add a worker's steps to the account, to the estimate and to the plan."""
        num_held_steps = report.num_simulated_steps - report.num_idle_steps
        self.account.num_idle_steps += report.num_idle_steps
        self.sequence.held_steps[worker] += num_held_steps
        if report.num_lost_steps:
            self._count_lost(worker, report.num_lost_steps)
        num_new_steps = max(num_held_steps - report.num_lost_steps, 0)
        self._estimate.observe(num_new_steps, [*map(_num_steps, report.finished)])
        self._plan.demand.simulate(num_held_steps - report.num_lost_steps)
        self._num_finished_last[worker] = len(report.finished)
        if report.num_simulated_steps:
            self._steps_per_second[worker] = report.num_simulated_steps / max(report.sampling_seconds, 1e-6)

    def _take_outcomes(self, worker: int, report: Report) -> None:
        """Record which episodes have ended or failed; raise the error that ends the call, if there is one."""
        cancelled, begun_at, now = self.sequence.cancellations.get(worker, ()), self.sequence.begun_at, time.monotonic()
        for index, num_steps, num_bytes, num_agent_steps in report.finished:
            if index not in cancelled and not self._claims.finish(worker, index):
                self._plan.finish(index, num_steps, num_bytes, worker, num_agent_steps)
                self._estimate.pace.observe(now - begun_at.pop(index, self._started))
        for env_failure in report.env_failures:
            self._take_env_failure(worker, env_failure)
        if self._plan.redundant:
            self._cancel_redundant()
        if report.failure is not None:
            raise report.failure

    def _take_env_failure(self, worker: int, failure: EpisodeFailure) -> None:
        """Record that episodes run again, or are given up; raise the error if the call cannot do without them."""
        self.account.count_env_failure(worker, failure)
        if not failure.is_final:
            return
        failed = FailedEpisode.of(worker, failure)
        for index in failure.indices:
            is_cancelled = index in self.sequence.cancellations.get(worker, ())
            if not (is_cancelled or self._can_do_without(worker, index, failed)):
                raise EnvFailedError(failed.final_text, episode_index=failed.index)

    def _can_do_without(self, worker: int, index: int, failed: FailedEpisode) -> bool:
        """Record that a worker gave up an episode; return whether the call may go on, as far as is known."""
        if not self._claims.is_missing(worker, index):
            return not self._plan.fail(index, failed)
        # An episode that had ended well before, and is claimed, stands in the middle of what is written together.
        cancellation = self._claims.give_up(worker, index)
        self._cancel([cancellation] if cancellation else [])
        return cancellation is not None

    def _take_delivery(self, delivery: PendingDelivery) -> None:
        cancellations = self._claims.take(delivery)
        if cancellations is None:  # another worker was first
            self._count_lost(delivery.worker, delivery.num_steps)
            return
        self._cancel(cancellations)

    def _cancel(self, cancellations: Sequence[Cancellation]) -> None:
        """Have workers drop what another worker has delivered."""
        for worker, indices in cancellations:
            self.sequence.cancel(worker, indices)

    def _cancel_redundant(self) -> None:
        """Have workers drop what another worker has finished first."""
        for worker, index in self._plan.redundant:
            self.sequence.cancel(worker, range(index, index + 1))
        self._plan.redundant.clear()

    def _lose(self, worker: int, handle: WorkerHandle, error: WorkerLostError) -> None:
        sequence = self.sequence
        was_working = bool(self.in_flight[worker])
        sequence.forget(worker)
        self._duplicates.pop(worker, None)
        may_be_cause = was_working and not self._has_other_cause(error)
        lost = self._claims.lose(worker)  # these have ended once, so they are not the cause
        lost += self._plan.lose(worker, may_be_cause=may_be_cause, hung_in=error.episode_index)
        num_written_steps = sum(delivery.num_steps for delivery in self._claims.held_of(worker))
        self._count_lost(worker, sequence.held_steps[worker] - num_written_steps)
        self._retry(lost, error)
        self._check_suspects(self._plan.suspects, error, "episode {}".format)

    def _count_lost(self, worker: int, num_steps: int) -> None:
        """Count steps of a worker that will not be delivered."""
        self.sequence.held_steps[worker] -= num_steps
        self.account.num_lost_steps += num_steps

    def _retry(self, lost: Sequence[int], error: WorkerLostError) -> None:
        """Record that episodes run again; raise an error if one of them cannot."""
        cut = self._claims.cut_episode()
        if cut is not None and self.reproducibility is Reproducibility.WORKER:
            text = f"{error.text}; a part of episode {cut} was delivered, and its environment cannot repeat an episode"
            raise WorkerLostError(text, error.worker_index)
        self.account.count_retried(error.reason.lower(), len(lost))
        self._notify()

    def _retry_delivery(self, lost: Sequence[int], error: WorkerLostError) -> None:
        """Record that episodes run again whose messages are lost; raise the error if that has happened too often."""
        self._retry(lost, error)
        self._num_lost_deliveries.update(lost)
        num_losses = max(self._num_lost_deliveries[index] for index in lost)
        if num_losses > self._settings.unit_retries:
            raise error.again(f"{error.text}; the messages of episode {lost[0]} were lost {num_losses} times")

    def _advance_claims(self, *, flush: bool = False) -> bool:
        """Claim what can be delivered next; return whether there was anything.

        Raises:
            EnvFailedError: next is an episode that was given up, and the call cannot go on without it.
        """
        if not self._claims_episodes:
            return False
        claiming, claims = self._plan.claiming, self._claims
        planned_claims = claiming.claim(flush=flush, stops=claims.early_stops())
        for planned in planned_claims:
            if (released := claims.add(planned)) is not None:
                self.sequence.releases.setdefault(planned.worker, []).append(released)
        if claiming.skipped:
            self.account.env_failures.skip(claiming.skipped.values())
            for index in claiming.skipped:
                self._outcomes.pop(index, None)  # it may have ended well on a worker that was lost
            claiming.skipped.clear()
        if (obstacle := claiming.obstacle) is not None:
            others = f"; like all {count} episodes before it" if (count := claiming.num_skipped_in_a_row) else ""
            raise EnvFailedError(f"{obstacle.final_text}{others}", episode_index=obstacle.index)
        if self._plan.redundant:
            self._cancel_redundant()
        return bool(planned_claims)

    async def _next_delivery(self) -> Delivery | None:
        delivery = self._claims.next_pending()
        if delivery is None:
            return None
        try:
            buffer = await delivery.buffer.get()
        except WorkerLostError as error:
            lost, num_steps, cancellations = self._claims.lose_first_delivery()
            self._cancel(cancellations)
            for worker, count in num_steps.items():
                self._count_lost(worker, count)
            self._retry_delivery(lost, error)
            return None
        self._claims.delivered()
        self.sequence.held_steps[delivery.worker] -= delivery.num_steps
        messages = delivery.parcel.messages
        if self.sequence.placement.owner_of(delivery.parcel.start[0]) not in (None, delivery.worker):
            self.account.num_reassigned_episodes += sum(message.num_episodes for message in messages)
        return self._deliver(delivery.worker, messages, buffer)


class Prefetch(EpisodeCall):
    """The beginning of a call that may come. It delivers nothing, so that workers stop when their buffers are full.

    The call that comes continues its sequence, and only that call knows what it claims.
    """

    _claims_episodes = False

    @property
    def has_failed(self) -> bool:
        """Whether the sequence cannot be continued. A call has to find out the reason itself."""
        return self._failure is not None

    def _next_order(self, worker: int, handle: WorkerHandle) -> Order | None:
        # One at a time, so that a call or an update which comes waits for no more. Calls give workers what they lack.
        if self.in_flight[worker] or self._parts.versions.lacks(handle):
            return None
        return super()._next_order(worker, handle)
