"""Streams: sample round after round, each an ordinary call, beside sending what is sampled."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollserve_server.errors import DomainError, InvalidValueError
from rollserve_server.futures import failure_of, in_task, while_running
from rollserve_server.pool.accounts import Account
from rollserve_server.pool.calls.fragments import FragmentCall
from rollserve_server.pool.calls.samplings import (
    StreamSequence,
    check_num_steps,
    check_num_workers,
    in_spec,
    stream_round,
)
from rollserve_server.pool.plan.rounds import Pause, RoundPlan
from rollserve_server.pool.requests import MAX_STREAMS, ApplyUpdate, AtLeast, Expectation, SampleRequest
from rollserve_server.pool.results import Delivery, Progress, StreamRound

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
    from contextlib import AsyncExitStack

    from rollserve_server.admission import Receiver
    from rollserve_server.pool.calls.episodes import EpisodeCall
    from rollserve_server.pool.calls.samplings import Samplings
    from rollserve_server.pool.parts import PoolParts
    from rollserve_server.pool.plan.rounds import PlannedRound
    from rollserve_server.pool.requests import AgentUpdate, StreamClient, StreamRequest
    from rollserve_server.pool.results import AgentUpdated, Beginning


__all__ = ["Streams"]

_DEFAULT_AHEAD_BYTES = 64 << 20
_NUM_LAGS = 16
"""Length of the histogram of lags; larger ones count as the last."""


@dataclass(eq=False)
class _Round:
    """A round that has begun.

    Attributes:
        plan: what the plan knows of it.
        call: the call that samples it.
        deliveries: messages that are sampled and not sent.
        fate: attribute of the account that counts its steps if it is discarded; None if it is not.
        next_position: steps of each row, and index of the next episode, behind it.
    """

    plan: PlannedRound
    call: EpisodeCall | FragmentCall
    deliveries: deque[Delivery] = field(default_factory=deque)
    fate: str | None = None
    next_position: tuple[int, int] = (0, 0)


class Stream:
    """A stream, from its request to its account.

    One task samples: whenever the plan allows it, a round is admitted as a call, begun with the version that is current
    then, and run; its messages wait here. Whoever iterates sends them. So workers sample while the client learns, and
    nothing but messages and accounts is passed between the two.

    Attributes:
        account: what became of the rounds that were sent or discarded; complete at the end.
    """

    def __init__(
        self, parts: PoolParts, samplings: Samplings, request: StreamRequest, client: StreamClient, receiver: Receiver
    ) -> None:
        self.account = Account(0, 0, 0, 0, [])
        self._parts, self._samplings = parts, samplings
        self._request, self._client, self._receiver = request, client, receiver
        self._plan: RoundPlan
        self._rounds: dict[PlannedRound, _Round] = {}
        self._running: _Round | None = None
        self._changed = asyncio.Event()
        self._pause: Pause | None = None
        self._waiting_for = self._warning = ""
        self._failure: BaseException | None = None
        self._end: DomainError | None = None
        self._options = request.options
        self._env_version = 0
        self._sequence: StreamSequence
        self._has_begun = False
        self._began = self._sent_at = time.monotonic()

    def end(self, error: DomainError) -> None:
        """End the stream with an error, behind the round that is being sent."""
        self._end = error
        self._notify()

    async def items(
        self,
    ) -> AsyncGenerator[AgentUpdated | Beginning | Delivery | StreamRound | Progress | Account, None]:
        """Yield what is to be sent; see `Pool.stream`."""
        async with contextlib.AsyncExitStack() as stack:
            with self._in_spec():
                self._begin(stack)
            if self._request.agent_update is not None:
                async with in_task(self._update_agent(self._request.agent_update)) as updating:
                    async for _ in while_running(updating, self._parts.settings.calls.progress_seconds):
                        yield Progress(0)
                yield updating.result()
            with self._in_spec():
                self._parts.selection.choose_policy(self._options)
            async with self._tasks(), contextlib.aclosing(self._sent()) as sent:
                async for item in sent:
                    self._sent_at = time.monotonic()
                    yield item
            self._complete_account()
        yield self.account

    async def _update_agent(self, update: AgentUpdate) -> AgentUpdated:
        with self._in_spec():
            updated = await self._samplings.update_first(self._round_request(), update, self._receiver)
        self._options = dataclasses.replace(self._options, expected=self._lasting_expectation())
        return updated

    def _begin(self, stack: AsyncExitStack) -> None:
        """Check the request, and begin the sequence, until the stack is closed."""
        parts, request = self._parts, self._request
        parts.check_run(self._options.run)
        check_num_workers(request.num_workers, len(parts.workers.workforce))
        if request.num_workers is not None:
            stack.enter_context(parts.number_uses.using())
        self._env_version = parts.selection.choose_env(self._options)
        stack.enter_context(parts.versions.envs.using(self._env_version))
        stack.callback(parts.versions.evict)
        self._sequence = StreamSequence(parts, request, stack)
        check_num_steps(self._sequence.target(self._num_rows), parts.settings.calls.max_call_steps)
        self._check_bounds(self._sequence.num_steps(self._num_rows))
        self._plan = RoundPlan(request.bounds, self._max_ahead_bytes(), request.first_number)

    @contextlib.contextmanager
    def _in_spec(self) -> Iterator[None]:
        """Have errors of the block that name a field name it as a part of the spec."""
        try:
            with in_spec():
                yield
        except DomainError as error:
            if error.field == "spec.step_count":
                is_whole = isinstance(self._request.rounds, AtLeast)
                error.field = "spec.episodes.step_count" if is_whole else "spec.fragments.fragment_length"
            raise

    def _check_bounds(self, num_steps: int) -> None:
        """Raise InvalidValueError if a round does not fit into the stream's bounds."""
        bounds = self._request.bounds
        for name in ("max_ahead_steps", "max_steps_per_version"):
            value = getattr(bounds, name)
            if value is not None and value < num_steps:
                expected = f"at least {num_steps}, the number of steps of a round"
                raise InvalidValueError.of(name, expected=expected, got=value)

    def _max_ahead_bytes(self) -> int:
        """Return the number of bytes that may wait to be sent; raise InvalidValueError if the request has too many."""
        most = max(self._parts.settings.calls.gateway_buffer_bytes // MAX_STREAMS, 1)
        wanted = self._request.bounds.max_ahead_bytes
        if wanted is not None and wanted > most:
            expected = f"at most {most}, a stream's share of --gateway-buffer-bytes"
            raise InvalidValueError.of("max_ahead_bytes", expected=expected, got=wanted)
        return min(most, _DEFAULT_AHEAD_BYTES) if wanted is None else wanted

    @property
    def _num_rows(self) -> int:
        """Number of rows of all workers that a round would begin with now."""
        parts = self._parts
        return len(parts.workers.workforce) * parts.versions.env_in_use(self._env_version).description.num_rows

    @property
    def _version(self) -> int:
        return self._parts.versions.agents.number

    # Sampling.

    @contextlib.asynccontextmanager
    async def _tasks(self) -> AsyncGenerator[None, None]:
        """Sample, and listen to what changes, for the duration of the block."""
        tasks = [
            asyncio.create_task(self._keep(work)) for work in (self._sample, self._watch_agent, self._watch_client)
        ]
        try:
            yield
        except BaseException:
            self._sequence.break_off()  # the client may ask for the rounds again that it has not received
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._discard(self._plan.rounds, "num_unsent_steps")

    async def _keep(self, work: Callable[[], AsyncGenerator[None, None]]) -> None:
        """Run a task, whose error ends the stream; wake up whoever waits after each of its steps."""
        try:
            async with contextlib.aclosing(work()) as steps:
                async for _ in steps:
                    self._notify()
        except BaseException as error:
            self._failure = failure_of(error)
            self._notify()

    async def _watch_agent(self) -> AsyncGenerator[None, None]:
        """Heed updates of the agent: discard rounds that are too old, and cut the one that runs if that is wanted."""
        while True:
            await self._samplings.agent_changed.wait()
            call = self._running and self._running.call
            if self._request.apply_update is ApplyUpdate.NEXT_STEP and isinstance(call, FragmentCall):
                call.cut()
            yield

    async def _watch_client(self) -> AsyncGenerator[None, None]:
        while True:
            await self._client.changed.wait()
            self._client.changed.clear()
            yield

    async def _sample(self) -> AsyncGenerator[None, None]:
        while True:
            paused_at = time.monotonic()
            while (pause := self._next_pause()) is not None:
                self._pause = pause
                yield
                await self._changed.wait()
                self._count_pause(pause, paused_at)
                paused_at = time.monotonic()
            self._pause = None
            await self._sample_round()
            yield

    def _next_pause(self) -> Pause | None:
        """Return why no round begins now, or None; discard rounds that make room for the next one."""
        version, num_steps = self._version, self._sequence.num_steps(self._num_rows)
        self._discard(self._plan.take_stale(version), "num_stale_steps")
        self._discard(self._plan.take_overflow(version, num_steps), "num_overflow_steps")
        return self._plan.pause(version, num_steps)

    def _count_pause(self, pause: Pause, since: float) -> None:
        seconds = time.monotonic() - since
        if pause is Pause.UPDATE:
            self.account.update_waiting_seconds += seconds
        elif pause is Pause.CLIENT:
            self.account.client_waiting_seconds += seconds

    async def _sample_round(self) -> None:
        began = time.monotonic()
        turn = self._samplings.admission.new_turn()
        async with contextlib.AsyncExitStack() as stack:
            await self._samplings.admit_round(stack, self._receiver, turn, has_begun=self._has_begun)
            queued_seconds = time.monotonic() - began
            stack.callback(self._parts.versions.evict)
            with self._in_spec():
                call = await self._samplings.begin(self._round_request(), stack, self._sequence)
            self._options = dataclasses.replace(
                self._request.options, env_version=self._env_version, expected=self._lasting_expectation(), run=None
            )
            call.turn = turn
            if isinstance(call, FragmentCall):  # nobody sees a part of a round, but an update may have to cut it
                call.is_patient = self._request.apply_update is not ApplyUpdate.NEXT_STEP
            call.account.queued_seconds = queued_seconds
            planned = self._plan.begin(call.account.policy_version, self._sequence.num_steps(self._num_rows))
            sampled = self._running = self._rounds[planned] = _Round(planned, call)
            if not self._has_begun:
                self._begin_account(call)
            try:
                with self._in_spec():
                    async with self._samplings.running(call, self._sequence) as items:
                        async for item in items:
                            await self._take(sampled, item)
            except BaseException:
                self._drop_unfinished(sampled)
                raise
            finally:
                self._running = None
            sampled.next_position = self._sequence.next_position(call)
            self._plan.finish(planned, call.account.num_steps)
            self._count_work(call.account, time.monotonic() - began - queued_seconds)
            if sampled.fate is not None:
                self._settle(sampled)

    def _round_request(self) -> SampleRequest:
        request = self._request
        return SampleRequest(
            self._sequence.target(self._num_rows),
            request.messages,
            dataclasses.replace(self._options, seed=None),  # the sequence has it
            observation_moments=request.observation_moments,
            return_discount=request.return_discount,
        )

    def _lasting_expectation(self) -> Expectation:
        """Return what every round expects: that the agent is the client's own, if the client has said who it is."""
        expected = self._request.options.expected
        return Expectation(expected.policy_version, None, expected.client_id) if expected.client_id else Expectation()

    async def _take(self, sampled: _Round, item: Delivery | Progress) -> None:
        """Take what the running round yields, once there is room for it."""
        if isinstance(item, Progress):
            self._warning = item.warning or self._warning
            self._waiting_for = item.waiting_for
        elif sampled.fate is None:
            sampled.deliveries.append(item)
            self._plan.add(sampled.plan, _size_of(item))
        self._notify()
        started = time.monotonic()
        while not self._plan.has_room(sampled.plan):
            await self._changed.wait()
        self.account.client_waiting_seconds += time.monotonic() - started

    def _count_work(self, account: Account, num_seconds: float) -> None:
        """Count for how long workers had nothing to do in a round."""
        worked = sum(share.sampling_seconds + share.encoding_seconds for share in account.workers)
        active = num_seconds - account.sending_seconds - account.paused_seconds
        self.account.worker_idle_seconds += max(active * len(account.workers) - worked, 0.0)

    # Sending.

    async def _sent(self) -> AsyncGenerator[Beginning | Delivery | StreamRound | Progress, None]:
        """Yield the beginning, the rounds that are sent, and progress between them."""
        has_begun = False
        while not self._plan.is_complete:
            if not has_begun and self._has_begun:
                has_begun = True
                yield self._beginning
            self._discard(self._plan.take_stale(self._version), "num_stale_steps")
            planned = self._plan.send_next(self._version, self._client.num_taken) if has_begun else None
            if planned is not None and not (self._client.has_ended or self._end):
                async with contextlib.aclosing(self._sent_round(self._rounds[planned])) as round_items:
                    async for item in round_items:
                        yield item
                continue
            if self._failure is not None:
                raise self._failure
            if self._end is not None:
                raise self._end
            if self._client.has_ended and has_begun:
                return
            if not await self._wait():
                yield self._progress()

    async def _sent_round(self, sent: _Round) -> AsyncGenerator[Delivery | StreamRound | Progress, None]:
        """Yield all of a round, also while it is being sampled."""
        planned = sent.plan
        while sent.deliveries or not planned.is_sampled:
            if sent.deliveries:
                delivery = sent.deliveries.popleft()
                yield delivery
                self._plan.sent_bytes(planned, _size_of(delivery))
                self._notify()
            elif self._failure is not None:
                raise self._failure
            elif not await self._wait():
                yield self._progress()
        self._plan.sent(planned)
        account = self.account
        account.num_rounds += 1
        lag = min(planned.lag, _NUM_LAGS - 1)
        account.lag_step_counts += [0] * (lag + 1 - len(account.lag_step_counts))
        account.lag_step_counts[lag] += planned.num_steps
        self._settle(sent)
        self._notify()
        yield stream_round(sent.call, planned.number, sent.next_position, planned.lag)

    async def _wait(self) -> bool:
        """Wait until something has changed; return False if the time for progress comes before."""
        changed, silent_seconds = self._changed, time.monotonic() - self._sent_at
        try:
            async with asyncio.timeout(self._parts.settings.calls.progress_seconds - silent_seconds):
                await changed.wait()
        except TimeoutError:
            return False
        return True

    def _progress(self) -> Progress:
        account, plan = self.account, self._plan
        running = self._running
        num_steps = account.num_simulated_steps + (running.call.account.num_simulated_steps if running else 0)
        waiting_for = self._waiting_for if self._pause is None else self._pause.value
        warning, self._warning = self._warning, ""
        return Progress(
            num_steps,
            warning=warning,
            waiting_for=waiting_for,
            num_rounds=account.num_rounds,
            num_stale_steps=account.num_stale_steps,
            num_overflow_steps=account.num_overflow_steps,
            num_ahead_steps=plan.num_ahead_steps,
            ahead_bytes=plan.num_ahead_bytes,
            lag_step_counts=tuple(account.lag_step_counts),
            worker_idle_seconds=account.worker_idle_seconds,
        )

    # Accounting.

    def _begin_account(self, call: EpisodeCall | FragmentCall) -> None:
        request = self._request
        self._beginning = dataclasses.replace(
            call.beginning(),
            agent_updated=request.agent_update is not None,
            spaces=self._samplings.spaces(self._env_version) if request.return_spaces else None,
        )
        self.account.first_episode_index = call.account.first_episode_index
        self.account.row_step_count = call.account.row_step_count
        self._has_begun = True

    def _discard(self, planned: Sequence[PlannedRound], fate: str) -> None:
        """Discard rounds; their steps are counted as what became of them, once they are sampled."""
        for each in tuple(planned):
            discarded = self._rounds[each]
            discarded.fate = fate
            discarded.deliveries.clear()
            if each.is_sampled:
                self._settle(discarded)

    def _settle(self, ended: _Round) -> None:
        """Add a round to the account, once it is sent or discarded."""
        del self._rounds[ended.plan]
        self.account.add_round(ended.call.account, ended.fate)
        self._parts.counters.count_round(ended.call.account, is_sent=ended.fate is None)

    def _drop_unfinished(self, dropped: _Round) -> None:
        """Count the steps of a round that ended early which its own call takes for delivered."""
        num_steps = dropped.call.account.num_steps
        self.account.num_carried_steps += num_steps
        self.account.num_unsent_steps += num_steps
        self._rounds.pop(dropped.plan, None)
        if dropped.plan in self._plan.rounds:
            self._plan.rounds.remove(dropped.plan)

    def _complete_account(self) -> None:
        account = self.account
        self._parts.sequences.report_dropped(account)
        self._parts.row_sequences.dropped.report(account)
        account.elapsed_seconds = time.monotonic() - self._began

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _size_of(delivery: Delivery) -> int:
    return sum(message.size for message in delivery.messages)


class Streams:
    """The streams of a sampler."""

    def __init__(self, parts: PoolParts, samplings: Samplings) -> None:
        self._parts, self._samplings = parts, samplings
        self._open: set[Stream] = set()
        self._refusal: DomainError | None = None

    async def stream(
        self, request: StreamRequest, client: StreamClient, receiver: Receiver
    ) -> AsyncGenerator[AgentUpdated | Beginning | Delivery | StreamRound | Progress | Account, None]:
        """Run a stream; see `Pool.stream`."""
        if self._refusal is not None:
            raise copy.copy(self._refusal)
        self._parts.workers.check_enough()
        stream = Stream(self._parts, self._samplings, request, client, receiver)
        self._open.add(stream)
        try:
            async with contextlib.aclosing(stream.items()) as items:
                async for item in items:
                    yield item
        finally:
            self._open.discard(stream)

    def refuse(self, error: DomainError) -> None:
        """End all streams behind the rounds that they are sending, and every later one, with a copy of the error."""
        self._refusal = error
        for stream in self._open:
            stream.end(copy.copy(error))
