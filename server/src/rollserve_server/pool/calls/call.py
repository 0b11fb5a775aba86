"""The base of all calls: keeps each worker busy, and yields what is to be sent to the client, in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

from rollserve_server.admission import Turn
from rollserve_server.errors import CallTooLongError, OverLimitError, WorkerLostError
from rollserve_server.futures import failure_of
from rollserve_server.pool.accounts import DeliveredMoments
from rollserve_server.pool.episode_log import CallKind, Origin
from rollserve_server.pool.requests import Exactly, Fragments, SampleRequest
from rollserve_server.pool.results import Beginning, Delivery, Progress
from rollserve_server.pool.sequences.open_work import InFlight, submit
from rollserve_server.tracing import child_span
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import AsyncGenerator, Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from rollserve_server.pool.accounts import Account
    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.pool.parts import PoolParts
    from rollserve_server.pool.plan.units import Suspects
    from rollserve_server.pool.requests import EvaluationRequest, PopulationRequest
    from rollserve_server.pool.state.versions import EnvVersion
    from rollserve_server.pool.workers.slots import Workforce
    from rollserve_server.sampling import FragmentReport, Message, PopulationReport, Report
    from rollserve_server.spans import Span
    from rollserve_wire.environments import Reproducibility

__all__ = ["Call"]

_log = logging.getLogger(__name__)

_O = TypeVar("_O")
_R = TypeVar("_R", bound="Report | FragmentReport | PopulationReport")

_ORDERS_IN_FLIGHT = 2
"""Orders that a worker has at a time: while it works on one, the next is already there."""
_SLICE_SECONDS = 0.02
"""How long a worker works on an order: it reports as often, and calls at the same time take turns as often."""
_SOLO_FACTOR = 4
"""Factor on the slice where no other call runs: an order costs a millisecond or two in all."""
_SILENCE_FACTOR = 5
"""Factor on the seconds between two reports of progress: after a silence this long, clients learn what is missing."""
_MAX_ORDERS = 1000
"""Orders of a call with spans of their own, so that a long call makes no trace that nobody can look at."""
_UNENDED_ROW_SHARE = 0.03
"""Share of the allowed steps that each row has at least: with the default, 30,000 steps, as long as a game of Atari."""
_UNENDED_LIMIT_FACTOR = 2
"""Factor on an episode's limit, for the steps that each row has at least while no episode ends."""
_UNENDED_TARGET_FACTOR = 100
"""Factor on the steps that a call asks for, for the steps that it has at least while no episode ends."""
_UNENDED_WARNING_SHARE = 0.1
"""Share of the steps that a call has while no episode ends, after which its client is warned."""


class Call(ABC, Generic[_O, _R]):
    """A call: a driver for each worker, and the deliveries in order.

    Attributes:
        account: what became of the steps so far; complete at the end.
        reproducibility: which unit of the call's work the same seed gives again.
        in_flight: for each worker, orders that are not answered.
        turn: when the call may give orders; always, unless it is replaced before the start.
    """

    def __init__(
        self,
        parts: PoolParts,
        request: SampleRequest | EvaluationRequest | PopulationRequest,
        workforce: Workforce,
        account: Account,
        reproducibility: Reproducibility,
        in_flight: Sequence[deque[InFlight[_O, _R]]],
    ) -> None:
        self.account = account
        self.in_flight = in_flight
        columns = request.messages.columns
        if columns is not None and columns.moments:
            account.moments = DeliveredMoments(columns.moments)
        self.reproducibility = reproducibility
        self.turn = Turn()
        self._parts = parts
        self._settings = parts.settings.calls
        self._request = request
        self._workforce, self._slots = workforce, workforce.slots
        self._kind = _kind_of(request)
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._warning = ""  # for the client, with the next progress
        # Steps that rows have made since an episode last ended; and after how many the call fails, 0 for never.
        self._num_unended_steps = self._max_unended_steps = 0
        self._has_warned_of_steps = False
        self._trace: _CallTrace | None = None
        self._has_answered = [False] * len(self._slots)
        self._num_losses = [0] * len(self._slots)
        self._started = time.monotonic()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[AsyncGenerator[Delivery | Progress, None], None]:
        """Start the workers, and yield an iterator of what is to be sent. The account is complete after the block.

        Raises:
            EnvFailedError: an environment raised errors in every attempt at an episode.
            AgentFailedError: an agent raised an error, or returned something invalid.
            OverLimitError: a step does not fit into a message, the call is too large for a worker, no episode ends, or
                the call makes more steps than it may.
            CallTooLongError: the call has run for as long as it may.
            WorkerLostError: workers are lost again and again, or for long.
        """
        with child_span("call") as span:
            if span is not None:
                self._trace = _CallTrace(span, self._kind)
            self.start()
            self._parts.num_calls += 1
            try:
                async with contextlib.aclosing(self._items()) as items:
                    yield items
            finally:
                self._parts.num_calls -= 1
                self.stop()
                self._end()
                self._workforce.count_simulated(self.account)
                account = self.account
                account.elapsed_seconds = time.monotonic() - self._started
                account.paused_seconds, account.num_pauses = self.turn.paused_seconds, self.turn.num_pauses
                account.waiting_seconds = account.elapsed_seconds - account.sending_seconds
                if self._trace is not None:
                    self._trace.describe(account)

    def beginning(self) -> Beginning:
        """Return the inputs that determine the call's episodes."""
        account = self.account
        return Beginning(
            account.seed,
            account.first_episode_index,
            account.policy_version,
            account.env_version,
            self.reproducibility,
            self._parts.run,
            row_step_count=account.row_step_count,
            num_workers=len(account.workers),
        )

    # What each kind of call decides.

    @abstractmethod
    async def _next_handle(self, worker: int) -> WorkerHandle | None:
        """Wait for the worker in a slot; None if the slot needs none for now.

        Raises:
            WorkerLostError: there is none, and the call cannot go on without it.
        """

    @abstractmethod
    def _next_order(self, worker: int, handle: WorkerHandle) -> _O | None:
        """Return what a worker does next, or None if there is nothing now."""

    @abstractmethod
    def _take_report(self, worker: int, sent: InFlight[_O, _R], report: _R) -> None:
        """Record what a worker did."""

    @abstractmethod
    def _lose(self, worker: int, handle: WorkerHandle, error: WorkerLostError) -> None:
        """Record that a worker is gone, with all that it had not written."""

    @abstractmethod
    def _is_complete(self) -> bool:
        """Whether everything is delivered."""

    @abstractmethod
    def _end(self) -> None:
        """Complete the account's steps."""

    async def _idle(self, worker: int) -> None:
        """Wait until there may be something to do for a worker that has no order."""
        await self._wait()

    async def _next_delivery(self) -> Delivery | None:
        """Return what can be delivered now, or None."""
        return None

    def _num_ended_episodes(self) -> int:
        """Return how many episodes have ended so far."""
        return self.account.num_episodes + self.account.num_discarded_episodes

    def _uses(self, worker: int, handle: WorkerHandle) -> bool:
        """Whether a worker is still the one that the call gives orders to."""
        return True

    def _is_abandoned(self, worker: int) -> bool:
        """Whether the call goes on without a worker, whatever it reports."""
        return False

    async def _prepare(self, worker: int, handle: WorkerHandle) -> None:
        """Give a worker what it needs before an order."""

    # What all kinds of calls share.

    def start(self) -> None:
        """Start to give orders."""
        self._drivers = [asyncio.create_task(self._drive(worker)) for worker in range(len(self._slots))]

    def stop(self) -> None:
        """Give no more orders; reports to come are for whoever continues. May be called more than once."""
        for driver in self._drivers:
            driver.cancel()  # it does nothing more, so nobody has to wait for its end

    async def _drive(self, worker: int) -> None:
        """Keep whoever is in a slot busy, for as long as the call runs."""
        try:
            while not self._is_abandoned(worker):
                handle = await self._next_handle(worker)
                if handle is None:
                    continue
                try:
                    await self._drive_handle(worker, handle)
                except WorkerLostError as error:
                    self._parts.workers.lose(worker, handle, error)
                    self._num_losses[worker] += 1
                    self._lose(worker, handle, error)
        except BaseException as error:  # raised where the call is awaited
            self._failure = failure_of(error)
            self._notify()

    async def _drive_handle(self, worker: int, handle: WorkerHandle) -> None:
        """Keep a worker busy until it is lost, or the call has no use for it."""
        in_flight, step_rate = self.in_flight[worker], self._parts.step_rate
        await self._parts.versions.complete(self._slots[worker].index, handle)
        while in_flight or self._uses(worker, handle):
            while (
                not self.turn.is_paused
                and not (step_rate and step_rate.is_exhausted)
                and len(in_flight) < _ORDERS_IN_FLIGHT
                and (order := self._next_order(worker, handle))
            ):
                await self._prepare(worker, handle)
                self._submit(worker, handle, order)
            if not in_flight:
                if self.turn.is_paused:
                    await self.turn.begun()
                elif step_rate and step_rate.is_exhausted:
                    await step_rate.paid()
                else:
                    await self._idle(worker)
                continue
            sent = in_flight[0]
            # If the call ends meanwhile, the report is the next call's.
            try:
                report = await asyncio.shield(sent.report)
            except WorkerLostError as error:
                if self._trace is not None:
                    self._trace.add_loss(self._slots[worker].index, sent.sent, error)
                raise
            was_lost = not in_flight or in_flight[0] is not sent  # found when what it had written was fetched
            if was_lost or self._is_abandoned(worker):
                return
            self._take(worker, sent, report)

    def _submit(self, worker: int, handle: WorkerHandle, order: _O) -> InFlight[_O, _R]:
        """Send an order to a worker."""
        sent: InFlight[_O, _R] = submit(handle, order)  # type: ignore[arg-type]  # each _O is an order for an _R
        self.in_flight[worker].append(sent)
        self._parts.workers.load.add(self._slots[worker], sent.report)
        return sent

    def _take(self, worker: int, sent: InFlight[_O, _R], report: _R) -> None:
        """Take the report of a worker's oldest order in flight."""
        self.in_flight[worker].popleft()
        self.turn.count(report.num_simulated_steps)
        if self._parts.step_rate is not None:
            self._parts.step_rate.count(report.num_simulated_steps)
        if self._trace is not None:
            self._trace.add_report(self._slots[worker].index, sent.sent, report)
        self._count_work(worker, report)
        self._take_report(worker, sent, report)

    async def _ready(self, worker: int) -> WorkerHandle:
        """Wait for the worker in a slot, as long as others can do its work."""
        while True:
            try:
                return await self._parts.workers.available(self._slots[worker])
            except WorkerLostError:
                if self._parts.workers.is_closed or not self._workforce.can_do_without(worker):
                    raise

    async def _items(self) -> AsyncGenerator[Delivery | Progress, None]:
        reported_at, reported_steps, told = time.monotonic(), 0, ""
        progress_seconds = self._settings.progress_seconds
        while not self._is_complete():
            self._check_time()
            delivery = await self._next_delivery()
            if delivery is not None:
                if delivery.messages:
                    started = time.monotonic()
                    try:
                        yield delivery
                    finally:  # the client takes this time
                        reported_at = time.monotonic()
                        self.account.sending_seconds += reported_at - started
                self._notify()
                continue
            if self._failure is not None:
                raise self._failure
            await self._wait(progress_seconds)
            num_steps = self.account.num_simulated_steps
            self._check_steps(num_steps)
            silent_seconds = time.monotonic() - reported_at
            if self.turn.is_paused:
                self.turn.look()
            step_rate = self._parts.step_rate
            is_delayed = self.turn.is_paused or bool(step_rate and step_rate.is_exhausted)
            # A worker with an order is at work, maybe in one long reset: it is lost if it takes longer than it may.
            is_going_on = num_steps > reported_steps or is_delayed or any(self.in_flight)
            is_due = is_going_on and silent_seconds >= progress_seconds
            waiting_for = self._missing_worker() if silent_seconds >= _SILENCE_FACTOR * progress_seconds else told
            if is_due or self._warning or waiting_for != told:
                warning, self._warning = self._warning, ""
                waits_for = waiting_for if waiting_for != told else ""
                yield Progress(num_steps, self._num_ended_episodes(), warning, waits_for)
                reported_at, reported_steps, told = time.monotonic(), num_steps, waiting_for

    def _check_time(self) -> None:
        """Raise CallTooLongError if the call has run for as long as it may."""
        max_seconds = self._settings.max_call_seconds
        if not max_seconds or self.turn.is_paused:
            return
        num_seconds = time.monotonic() - self._started - self.account.sending_seconds - self.turn.paused_seconds
        if num_seconds > max_seconds:
            text = f"expected at most {max_seconds:g} s for a call (--max-call-seconds), which are over"
            raise CallTooLongError(f"{text}: ask for the rest in another call")

    def _check_steps(self, num_steps: int) -> None:
        """Raise OverLimitError if a call for episodes has made more steps than it may."""
        max_steps = self._settings.max_call_steps
        asks_for_episodes = self._kind in (CallKind.EXACT_EPISODES, CallKind.EVALUATION)
        if asks_for_episodes and max_steps and num_steps > max_steps:
            raise OverLimitError.of(
                "",
                expected=f"episodes with at most {max_steps} steps in all (--max-call-steps)",
                got=f"{num_steps} steps so far",
                hint="ask for fewer at a time",
                reason=Reason.CALL_TOO_LARGE,
            )

    def _missing_worker(self) -> str:
        """Return the first worker that is missing, and why; empty if none is."""
        return next((f"worker {slot.index}: {slot.last_failure}" for slot in self._slots if not slot.healthy), "")

    def _watch_ends(self, env: EnvVersion, max_episode_length: int | None, num_target_steps: int = 0) -> None:
        """Let the call fail once no episode has ended for long, unless `max_episode_length` ends them.

        Long is what the settings allow, or 3 % of that for each row, or twice an episode's limit for each row, or 100
        times the steps that the call asks for.
        """
        allowed_steps = self._settings.max_unended_steps
        if allowed_steps and max_episode_length is None:
            for_row = max(
                round(_UNENDED_ROW_SHARE * allowed_steps),
                _UNENDED_LIMIT_FACTOR * (env.description.max_episode_steps or 0),
            )
            for_rows = for_row * env.description.num_rows * len(self._slots)
            self._max_unended_steps = max(allowed_steps, for_rows, _UNENDED_TARGET_FACTOR * num_target_steps)

    def _count_ends(self, num_steps: int, num_ended: int) -> None:
        """Count steps, and the episodes that ended or failed with them; warn, or raise OverLimitError, if none end."""
        self._num_unended_steps = num_steps = 0 if num_ended else self._num_unended_steps + num_steps
        max_steps = self._max_unended_steps
        if not max_steps or num_steps < _UNENDED_WARNING_SHARE * max_steps:
            return
        if num_steps >= max_steps:
            raise OverLimitError.of(
                "options.max_episode_length",
                expected=f"a limit, because no episode has ended in the last {num_steps} steps of the call",
                got="none",
                hint="set it here or as --max-episode-length, or allow more steps with --max-unended-steps",
                reason=Reason.NO_EPISODE_ENDED,
            )
        if not self._has_warned_of_steps:
            self._has_warned_of_steps = True
            _log.warning("no episode ends", extra={"steps": num_steps, "allowed": max_steps})
            self._warning = (
                f"no episode has ended in the last {num_steps} steps of the call, which fails after {max_steps}: "
                "does the environment need max_episode_length?"
            )
            self._notify()

    def _has_other_cause(self, error: WorkerLostError) -> bool:
        """Whether a worker was lost in a broadcast, such as making environments, which counts as the cause."""
        return self._slots[error.worker_index].lost_in_broadcast

    def _check_suspects(self, suspects: Suspects | None, error: WorkerLostError, name_of: Callable[[int], str]) -> None:
        """Raise the error if a work unit has turned out to be the reason why workers are lost.

        Args:
            suspects: the units that may be; None for none.
            error: why the last worker was lost.
            name_of: returns the name of a unit, for messages.
        """
        if suspects is not None and (culprit := suspects.culprit) is not None:
            before = f"{culprit.num_losses - 1} workers were lost with before"
            raise self._convicted(error.again(f"{error.text}; it ran {name_of(culprit.unit)}, which {before}"))

    def _convicted(self, error: WorkerLostError) -> WorkerLostError:
        """Return the error of a call that takes its workers down; their restarts are excused."""
        for worker, slot in enumerate(self._slots):
            slot.restarts.excuse(self._num_losses[worker])
            if slot.healthy and self.in_flight[worker]:
                slot.is_excused = True
        return error

    def _deliver(self, worker: int, messages: Sequence[Message], buffer: NDArray[np.uint8]) -> Delivery:
        """Return what is to be sent of a worker's messages, and enter it into the account."""
        account, share = self.account, self.account.workers[worker]
        is_wanted, endings = self._request.messages.columns is not None, b""
        for message in messages:
            endings += message.endings
            if not is_wanted:
                account.num_discarded_steps += message.num_steps
                account.num_discarded_episodes += message.num_episodes
                continue
            share.num_steps += message.num_steps
            share.num_episodes += message.num_episodes
            account.message_bytes += message.size
            account.raw_bytes += message.raw_size
            account.num_non_finite_steps += message.num_non_finite_steps
            account.dropped_infos.update(message.dropped_infos)
            if account.moments is not None:
                account.moments.add(message.moments)
        if endings:
            origin = Origin(self._kind, is_wanted, account.policy_version, account.env_version)
            self._parts.episode_log.add(endings, self._slots[worker].index, origin)
        return Delivery(buffer, messages if is_wanted else ())

    def _slice_seconds(self, worker: int, *, may_be_last: bool = False) -> float:
        """Return how long a worker works on an order, so that one gateway hears of many workers as often as of few.

        The first answer of a worker should come soon, unless it may be the last one, too. Workers carry out the orders
        of calls in turn, so that calls share a worker by their weights.
        """
        seconds = _SLICE_SECONDS * max(1.0, len(self._slots) / 8) * self.turn.weight
        may_be_late = self._has_answered[worker] or may_be_last
        if may_be_late and self._parts.num_calls == 1:
            seconds *= _SOLO_FACTOR
        if (step_rate := self._parts.step_rate) is not None:
            share = self.account.workers[worker]
            speed = share.num_simulated_steps / share.sampling_seconds if share.sampling_seconds else 0.0
            seconds = step_rate.slice_seconds(seconds, len(self._slots), speed)
        return seconds

    def _count_work(self, worker: int, report: _R) -> None:
        """Add what a worker did for an order to the account."""
        share = self.account.workers[worker]
        share.sampling_seconds += report.sampling_seconds
        share.encoding_seconds += report.encoding_seconds
        share.environment_seconds += report.environment_seconds
        share.policy_seconds += report.policy_seconds
        share.num_simulated_steps += report.num_simulated_steps

    async def _wait(self, seconds: float | None = None) -> None:
        """Wait until something has changed, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _kind_of(request: SampleRequest | EvaluationRequest | PopulationRequest) -> CallKind:
    if not isinstance(request, SampleRequest):
        return CallKind.EVALUATION
    kinds = {Exactly: CallKind.EXACT_EPISODES, Fragments: CallKind.FRAGMENTS}
    return kinds.get(type(request.target), CallKind.SAMPLES)


class _CallTrace:
    """The span of a call that is traced.

    The span `order` is from the sending of an order to its report, and within it `work` the time in which the worker
    worked on it: before, it finished the previous order. Workers do not know of traces: `work` is as long as the report
    says, and taken to end when the report arrives.
    """

    def __init__(self, span: Span, kind: CallKind) -> None:
        """Trace a call of some kind, which begins now."""
        self._span = span
        self._began = time.monotonic()
        self._num_orders = 0
        span.set({"call_kind": kind.name.lower()})

    def add_report(self, worker: int, sent: float, report: Report | FragmentReport | PopulationReport) -> None:
        """Add the spans of an order that is answered.

        Args:
            worker: index of the worker.
            sent: when the order was sent (`time.monotonic`).
            report: the answer.
        """
        self._num_orders += 1
        if self._num_orders > _MAX_ORDERS:
            return
        # A previous call may have sent it.
        sent, now = max(sent, self._began), time.monotonic()
        sampling, encoding = report.sampling_seconds, report.encoding_seconds
        environment, policy = report.environment_seconds, report.policy_seconds
        order = self._span.child("order", sent)
        order.set({"worker": worker, "steps": report.num_simulated_steps})
        work = order.child("work", max(now - sampling - encoding, sent))
        seconds = {
            "environment_seconds": environment,
            "policy_seconds": policy,
            "recording_seconds": max(sampling - environment - policy, 0.0),
            "encoding_seconds": encoding,
        }
        work.set(seconds)
        if report.failure is not None:
            order.fail(report.failure)
        for span in (work, order):
            span.end(now)

    def add_loss(self, worker: int, sent: float, error: WorkerLostError) -> None:
        """Add the span of an order whose worker is lost."""
        self._num_orders += 1
        if self._num_orders <= _MAX_ORDERS:
            order = self._span.child("order", max(sent, self._began))
            order.set({"worker": worker})
            order.fail(error)
            order.end()

    def describe(self, account: Account) -> None:
        """Add what became of the call."""
        counts = {
            "policy_version": account.policy_version,
            "environment_version": account.env_version,
            "workers": len(account.workers),
            "orders": self._num_orders,
            "simulated_steps": account.num_simulated_steps,
            "delivered_steps": account.num_steps,
            "delivered_episodes": account.num_episodes,
            "delivered_bytes": account.message_bytes,
            "retried_episodes": account.num_retried_episodes,
            "sending_seconds": account.sending_seconds,
            "paused_seconds": account.paused_seconds,
        }
        self._span.set(counts)
