"""Sessions: a client acts in the rows, step by step, while what it does is recorded round by round."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import secrets
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rollserve_server.admission import NEVER_STALLED
from rollserve_server.errors import ClientStalledError, DomainError, InvalidValueError, NotReadyError, within
from rollserve_server.futures import failure_of, in_background
from rollserve_server.pool.accounts import Account
from rollserve_server.pool.calls.driven import DrivenCall
from rollserve_server.pool.calls.samplings import StreamSequence, in_spec, stream_round
from rollserve_server.pool.calls.session_rounds import SessionRounds
from rollserve_server.pool.calls.step_actions import ActionForm, check_info_size, driven_agents
from rollserve_server.pool.requests import ANY_VERSIONS, SampleRequest
from rollserve_server.pool.results import Delivery, DrivenStep, Progress, ShownRows, StreamRound
from rollserve_server.sampling import DrivenActions
from rollserve_wire.environments import EnvSpec
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Sequence

    from rollserve_server.admission import Receiver
    from rollserve_server.pool.calls.samplings import Samplings
    from rollserve_server.pool.calls.step_actions import StepActions
    from rollserve_server.pool.parts import PoolParts
    from rollserve_server.pool.requests import DriveRequest
    from rollserve_server.pool.results import Beginning, Recorded, Recorder
    from rollserve_server.sampling import DrivenRows, External

__all__ = ["Drive"]

_MAX_WAITING_ITEMS = 4
"""Items that may wait to be sent before a round pauses."""


class _Client:
    """The client of a session, who also stalls while it does not act, or is away.

    Attributes:
        receiver: its present stream, or the last one.
        is_away: whether no stream has the session.
        awaited_since: when actions became wanted that it has not sent, or when it left (`time.monotonic`); or None.
    """

    def __init__(self, leave: Callable[[], None]) -> None:
        """Begin without a stream; `leave` is called where a client is to end that is away."""
        self.receiver: Receiver = NEVER_STALLED
        self.is_away = False
        self.awaited_since: float | None = None
        self._leave = leave

    @property
    def peer(self) -> str:
        return self.receiver.peer

    @property
    def charged_to(self) -> tuple[str, ...]:
        return self.receiver.charged_to

    @property
    def stalled_since(self) -> float | None:
        return self.receiver.stalled_since if self.awaited_since is None else self.awaited_since

    def end(self, error: DomainError) -> None:
        if self.is_away:
            self._leave()
        else:
            self.receiver.end(error)


class Drive:
    """A session, from its request to its account. It may outlive the stream of its client.

    Attributes:
        account: what became of the steps; complete at the end.
        token: what takes the session up in another stream; empty for one that ends with its stream.
        owner: whom the session belongs to, who alone takes it up.
        recorder: what takes the rounds in place of the client; None for nothing.
        rounds: rounds for another client that reads them; None if the client itself gets them.
    """

    def __init__(
        self,
        parts: PoolParts,
        samplings: Samplings,
        request: DriveRequest,
        owner: Sequence[str],
        max_idle_seconds: float,
        recorder: Recorder | None,
        forget: Callable[[Drive], object],
    ) -> None:
        """Begin nothing yet.

        Args:
            parts: parts of the pool.
            samplings: runs the rounds.
            request: the request.
            owner: whom the session belongs to.
            max_idle_seconds: how long the client may take for the actions of a step.
            recorder: what takes the rounds in place of the client, and ends with the session; None for nothing.
            forget: is called when the session is over.
        """
        self.account = Account(0, 0, 0, 0, [])
        self.token = secrets.token_urlsafe(24) if request.lease_seconds else ""
        self.owner = owner
        self.recorder = recorder
        self.rounds = SessionRounds() if request.to_reader else None
        self._recorded: Recorded | None = None
        self._parts, self._samplings = parts, samplings
        self._request = request
        self._client = _Client(self._expire)
        self._max_idle_seconds = max_idle_seconds
        self._forget = forget
        self._stack = contextlib.AsyncExitStack()
        self._sequence: StreamSequence
        self._options = request.options
        self._call: DrivenCall | None = None
        self._external: External  # known once the session has begun, as what follows
        self._rows: _Rows | None = None
        self._beginning: Beginning | None = None
        # What is to be sent; and what was, beside steps, with the number of the step before it, until actions show that
        # it has arrived.
        self._ready: deque[Beginning | DrivenStep | Delivery | StreamRound | Progress] = deque()
        self._sent: deque[tuple[int, Delivery | StreamRound]] = deque()
        self._changed = asyncio.Event()
        self._fragment_end = 0  # with which of the steps of all workers a fragment is to end
        self._wants_end = self._is_over = False
        self._has_account = asyncio.Event()  # at the client
        self._failure: BaseException | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._lease_timer: asyncio.TimerHandle | None = None
        self._running: asyncio.Task[None] | None = None
        self._num_streams = self._num_readers = 0
        self._is_read = self._has_left = False  # whether there is a reader; and the client needs nothing more
        self._reader_timer: asyncio.TimerHandle | None = None
        self._began = time.monotonic()

    # What the client sends.

    def act(self, actions: StepActions) -> None:
        """Make a step of rows; one that is made already has no effect.

        Raises:
            InvalidValueError: the step is not the next one, or the actions have another form, or are not in the action
                space. No row has stepped then.
        """
        rows = self._rows
        if rows is None or actions.step >= rows.num_shown:
            expected = f"at most {rows.num_shown - 1}" if rows is not None and rows.num_shown else "none before a step"
            raise InvalidValueError.of("actions.step", expected=expected, got=actions.step)
        with within("actions"):
            taken = rows.take(actions)
        if taken:
            self._stop_idling()
        if self._sent:
            self._forget_sent(lambda step, _: step < actions.step)
        self._make_steps()
        self._end_round_if_wanted()

    def end_fragment(self) -> None:
        """End the present fragments with the last steps, unless they have ended by themselves there."""
        self._fragment_end = 0 if self._rows is None else self._rows.num_steps
        self._end_round_if_wanted()

    def end(self, *, has_account: bool = False) -> None:
        """End the session with the last steps; a client that `has_account` needs nothing more."""
        self._wants_end = True
        if has_account:
            self._has_account.set()
        self._end_round_if_wanted()

    def end_with_stream(self) -> None:
        """End the session because its client has ended its stream, unless it may have lost its connection."""
        if not self.token:
            self.end()

    def _make_steps(self) -> None:
        """Make the steps that wait for no actions any more, of workers that have steps left in the round."""
        if self._call is not None and self._rows is not None:
            if self._rows.await_nobody and not self._wants_end:
                self._rows.go_on()
            for worker, taken in self._rows.taken_for(self._call):
                self._stop_idling()
                self._call.act(worker, taken.actions, taken.policy_version)

    # What it gets.

    async def items(
        self, receiver: Receiver, num_rounds: int = 0
    ) -> AsyncGenerator[Beginning | DrivenStep | Delivery | StreamRound | Progress | Recorded | Account, None]:
        """Yield what is to be sent to a client; see `Pool.drive`.

        Args:
            receiver: the client, for turns.
            num_rounds: number of rounds that it has got before, in another stream.
        """
        self._num_streams += 1
        stream, is_complete = self._num_streams, False
        self._come_back(receiver)
        try:
            if self._running is None:
                with in_spec():
                    self._begin()
                self._running = asyncio.create_task(self._run())
            else:
                self._repeat(num_rounds)
            while True:
                while self._ready and stream == self._num_streams:
                    yield self._next_item()
                if stream != self._num_streams:
                    text = "the session goes on in another stream, which has taken it up"
                    raise NotReadyError(text, reason=Reason.SESSION_TAKEN)
                if self._failure is not None:
                    raise self._failure
                if self._is_over:
                    break
                self._notify()  # there is room
                if not await self._wait():
                    yield self._progress()
            await self._stack.aclose()  # others can have the rows, however late the client takes the account
            if self._recorded is not None:
                yield self._recorded
            yield self.account
            if self.token:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._has_account.wait(), self._request.lease_seconds)
            is_complete = True
        except Exception:
            is_complete = stream == self._num_streams  # the client gets to know the error
            raise
        finally:
            if stream == self._num_streams:
                await self._leave(is_complete=is_complete)

    async def read_items(
        self, num_rounds: int = 0
    ) -> AsyncGenerator[Beginning | Delivery | StreamRound | Progress | Account, None]:
        """Yield the beginning, the rounds and the account to a client that reads them, with progress between them.

        Args:
            num_rounds: number of rounds of the session that it has got before.
        """
        rounds = self.rounds
        assert rounds is not None and self._beginning is not None  # noqa: PT018, S101  # the client knows the token
        with within("reading"):
            rounds.begin(num_rounds)
        self._num_readers += 1
        reader, is_complete = self._num_readers, False
        self._is_read = True
        if self._reader_timer is not None:
            self._reader_timer.cancel()
        self._notify()  # another stream has lost the rounds
        try:
            yield self._beginning
            while True:
                while reader == self._num_readers and (item := rounds.next()) is not None:
                    yield item
                if reader != self._num_readers:
                    text = "the session's rounds go on in another stream, which has asked for them"
                    raise NotReadyError(text, reason=Reason.SESSION_TAKEN)
                if self._failure is not None:
                    raise copy.copy(self._failure)  # which the other client gets, too
                if self._is_over:
                    break
                if not await self._wait():
                    yield self._progress()
            yield self.account
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(rounds.has_all.wait(), self._request.lease_seconds)
            is_complete = True
        except Exception:
            is_complete = reader == self._num_readers  # the client gets to know the error
            raise
        finally:
            if reader == self._num_readers:
                self._is_read = False
                if is_complete:
                    rounds.has_all.set()
                self._forget_if_read()

    def _forget_if_read(self) -> None:
        """Forget a session that its client has left, once a reader has all or does not come within the lease."""
        if not self._has_left or self._is_read:
            return
        if self.rounds is None or self.rounds.has_all.is_set():
            self._forget(self)
        else:
            loop = asyncio.get_running_loop()
            self._reader_timer = loop.call_later(self._request.lease_seconds, self._forget, self)

    def _progress(self) -> Progress:
        waits = self.rounds is not None and not self.rounds.has_room
        account, waiting_for = self.account, "a reader of the session's rounds" if waits else ""
        return Progress(account.num_simulated_steps, num_rounds=account.num_rounds, waiting_for=waiting_for)

    def _come_back(self, receiver: Receiver) -> None:
        """Have a stream's client hold the session from now on."""
        self._client.receiver, self._client.is_away = receiver, False
        self._stop_idling()
        if self._lease_timer is not None:
            self._lease_timer.cancel()
        self._await_actions()
        self._notify()  # another stream has lost the session

    async def _leave(self, *, is_complete: bool) -> None:
        """End the session, or wait for its client until the lease is over."""
        if is_complete or not self.token:
            await self._finish()
            return
        self._stop_idling()
        self._client.is_away, self._client.awaited_since = True, time.monotonic()
        self._lease_timer = asyncio.get_running_loop().call_later(self._request.lease_seconds, self._expire)

    def _expire(self) -> None:
        if not self._is_over:
            text = "the client of the session did not come back within its lease"
            self._failure = self._failure or ClientStalledError(text)
        in_background(self._finish())

    async def _finish(self) -> None:
        """End the session, whose client needs nothing more."""
        await self._stop()
        self._has_left = True
        self._forget_if_read()

    async def close(self) -> None:
        """End the session at once, also for a reader. May be called more than once."""
        self._forget(self)
        await self._stop()

    async def _stop(self) -> None:
        """Stop sampling, with what was recorded until now."""
        self._stop_idling()
        if self._lease_timer is not None:
            self._lease_timer.cancel()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        if self.recorder is not None:
            await self.recorder.end(self._failure or asyncio.CancelledError())
        await self._stack.aclose()

    def _next_item(self) -> Beginning | DrivenStep | Delivery | StreamRound | Progress:
        item = self._ready.popleft()
        if self.token and self._rows is not None and isinstance(item, Delivery | StreamRound):
            self._sent.append((self._rows.num_shown - 1, item))
        return item

    def _repeat(self, num_rounds: int) -> None:
        """Have what a client may not have got sent again."""
        if self._beginning is None or self._rows is None:  # it is still to come
            return
        self._sent += [(-1, item) for item in self._ready if isinstance(item, Delivery | StreamRound)]
        self._forget_sent(lambda _, item: item.round_number < num_rounds)
        again = None if self._is_over else self._rows.awaited_again()
        recorded = (item for _, item in self._sent)
        self._ready = deque([self._beginning, *recorded, *([again] if again else [])])
        self._sent.clear()

    def _forget_sent(self, has_arrived: Callable[[int, StreamRound], bool]) -> None:
        """Forget the rounds that have arrived, given the number of the step that was sent before their ends."""
        kept: deque[tuple[int, Delivery | StreamRound]] = deque()
        for step, item in self._sent:
            kept.append((step, item))
            if isinstance(item, StreamRound) and has_arrived(step, item):
                kept.clear()
                assert self._beginning is not None  # noqa: S101  # of which this is a round
                self._beginning = dataclasses.replace(self._beginning, row_step_count=item.next_row_step_count)
        self._sent = kept

    def _begin(self) -> None:
        """Check the request, and begin the rows. They keep their environment."""
        parts, options, stack = self._parts, self._request.options, self._stack
        parts.check_run(options.run)
        env_version = parts.selection.choose_env(options)
        stack.enter_context(parts.versions.envs.using(env_version))
        stack.callback(parts.versions.evict)
        description = parts.versions.env_in_use(env_version).description
        num_rows = len(parts.workers.workforce) * description.num_rows
        self._external = driven_agents(self._request.external, description)
        check_info_size(self._external, num_rows)
        if len(self._external.agents) < len(description.agents):
            parts.selection.choose_policy(options)
        if self._request.min_ready > (0 if description.agents else num_rows):
            expected = "0 with many agents" if description.agents else f"at most {num_rows}, the number of all rows"
            raise InvalidValueError.of("min_ready_row_count", expected=expected, got=self._request.min_ready)
        self._options = dataclasses.replace(options, env_version=env_version, expected=ANY_VERSIONS, seed=None)
        self._sequence = StreamSequence(parts, self._request, stack)  # which has the seed

    async def _run(self) -> None:
        """Run round after round, until the client ends the session."""
        try:
            while not self._wants_end or (self._rows is not None and self._rows.has_taken):
                await self._run_round()
            if self.recorder is not None:
                self._recorded = await self.recorder.end()
            self._parts.row_sequences.dropped.report(self.account)
            self.account.elapsed_seconds = time.monotonic() - self._began
            self._is_over = True
        except BaseException as error:  # raised where items are awaited
            self._failure = self._failure or failure_of(error)
        finally:
            self._notify()

    async def _run_round(self) -> None:
        request, turn = self._request, self._samplings.admission.new_turn()
        version = 0 if self._rows is None else self._rows.policy_version
        async with contextlib.AsyncExitStack() as stack:
            await self._samplings.admit_round(stack, self._client, turn, has_begun=self._rows is not None)
            stack.callback(self._parts.versions.evict)
            wanted = SampleRequest(
                self._sequence.target(0),
                request.messages,
                self._options,
                num_workers=request.num_workers,
                external=self._external._replace(policy_version=version),  # as long as no actions say otherwise
            )
            with in_spec():
                call = await self._samplings.begin(wanted, stack, self._sequence)
            assert isinstance(call, DrivenCall)  # noqa: S101  # the request is a client's
            call.turn = turn
            if self._rows is None:
                self._rows = self._begun(call)
            rows = self._rows
            rows.begin_round()
            call.begin(self._show, continues=rows.has_stepped)
            try:
                async with self._samplings.running(call, self._sequence) as items:
                    self._call = call
                    self._make_steps()
                    self._end_round_if_wanted()
                    async for item in items:
                        if self.recorder is not None and isinstance(item, Delivery):
                            await self.recorder.add(item)
                            continue
                        await self._wait_for_room()
                        self._put(item)
            finally:
                self._call = None
                self.account.add_round(call.account, None)
            self._end_round(call)

    async def _wait_for_room(self) -> None:
        """Wait until the client, or whoever reads the rounds, has room for more of them."""
        rounds = self.rounds
        if rounds is None:
            while len(self._ready) >= _MAX_WAITING_ITEMS:
                await self._changed.wait()
            return
        while not rounds.has_room:
            self._client.awaited_since = self._client.awaited_since or time.monotonic()  # others may run meanwhile
            rounds.were_taken.clear()
            try:
                await asyncio.wait_for(rounds.were_taken.wait(), self._max_idle_seconds)
            except TimeoutError:
                text = f"no reader took rounds of the session for {self._max_idle_seconds:g} s, which waits for one"
                raise ClientStalledError(text) from None
            if not self._client.is_away:
                self._client.awaited_since = None

    def _put(self, item: Delivery | StreamRound | Progress) -> None:
        """Have a part of a round sent, or progress."""
        if self.rounds is None or isinstance(item, Progress):
            self._ready.append(item)
        else:
            self.rounds.add(item)
        self._notify()

    def _begun(self, call: DrivenCall) -> _Rows:
        """Have the beginning sent; return the rows."""
        env = self._parts.versions.env_in_use(call.account.env_version)
        first = env.specs[0]  # rows with many agents have the same
        beginning = dataclasses.replace(call.beginning(), session_token=self.token)
        if self._request.return_spaces:
            beginning = dataclasses.replace(
                beginning,
                spaces=self._samplings.spaces(call.account.env_version),
                agents=env.description.agents,
                in_turn=isinstance(first, EnvSpec) and first.multi_agent == "aec",
            )
        self._beginning = beginning
        self._ready.append(beginning)
        self._notify()
        size, form = beginning.num_rows // beginning.num_workers, ActionForm(self._external, env.description)
        return _Rows(form, beginning.num_workers, size, self._request.min_ready)

    def _end_round(self, call: DrivenCall) -> None:
        if not (call.account.num_steps or call.account.num_discarded_steps):
            return
        number, self.account.num_rounds = self.account.num_rounds, self.account.num_rounds + 1
        self._parts.counters.count_round(call.account, is_sent=True)
        if self._request.messages.columns is not None and self.recorder is None:
            self._put(stream_round(call, number, self._sequence.next_position(call)))

    def _show(self, worker: int, shown: DrivenRows) -> None:
        """Tell the client what a worker has to show, as soon as enough rows have something."""
        assert self._rows is not None and self._call is not None  # noqa: PT018, S101  # they have begun
        step = self._rows.show(worker, shown, is_last=self._call.is_idle)
        if step is not None:
            self._ready.append(step)
            self._notify()
        self._end_round_if_wanted()
        self._make_steps()  # in which none of the client's agents acts
        self._await_actions()

    def _await_actions(self) -> None:
        """Bound the time until the client acts, if nothing goes on without it."""
        is_awaited = self._call is not None and self._call.is_idle and not self._client.is_away
        if is_awaited and self._idle_timer is None and not (self._rows is not None and self._rows.has_taken):
            self._client.awaited_since = time.monotonic()
            self._idle_timer = asyncio.get_running_loop().call_later(self._max_idle_seconds, self._stall)

    def _end_round_if_wanted(self) -> None:
        """End the present round with the last steps, once they are shown, if the client wants it or acts otherwise."""
        if self._call is None or self._rows is None or not self._call.is_idle:
            return
        is_wanted = self._wants_end or self._fragment_end > self._rows.num_steps_before
        if is_wanted or self._rows.has_another_version(self._call.policy_version):
            self._stop_idling()
            self._call.end()

    def _stall(self) -> None:
        text = f"the client did not send actions for {self._max_idle_seconds:g} s, which all rows wait for"
        self._failure = ClientStalledError(text)
        self._notify()

    def _stop_idling(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if not self._client.is_away:
            self._client.awaited_since = None

    async def _wait(self) -> bool:
        """Wait until something has changed; return False if the time for progress comes before."""
        changed = self._changed
        try:
            async with asyncio.timeout(self._parts.settings.calls.progress_seconds):
                await changed.wait()
        except TimeoutError:
            return False
        return True

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class _Taken(NamedTuple):
    """The next actions of a worker's rows, and the version of the client's policy."""

    actions: DrivenActions
    policy_version: int


class _Rows:
    """The rows of a session: which of them wait for actions, and what the client has to get to know of them.

    The rows of a worker step together.

    Attributes:
        num_shown: number of steps that the client was told of.
        policy_version: version that the last actions came with.
    """

    def __init__(self, form: ActionForm, num_workers: int, worker_rows: int, min_ready: int) -> None:
        """Begin with rows that have made no step.

        Args:
            form: form of the actions.
            num_workers: number of workers.
            worker_rows: number of rows of a worker.
            min_ready: number of rows that are enough to tell the client of a step; 0 if all rows step together.
        """
        self._form, self._size, self._min_ready = form, worker_rows, min_ready
        # For each worker: steps whose actions have come; those among them of the rounds before; and of how many the
        # client was told, -1 for not even of the first observations.
        self._steps, self._before, self._shown = (np.full(num_workers, start, np.int64) for start in (0, 0, -1))
        # By worker, what was shown last, and the next actions in the order of their arrival; and the workers that the
        # client has not been told of.
        self._latest: dict[int, ShownRows] = {}
        self._taken: dict[int, _Taken] = {}
        self._news: list[int] = []
        # By worker, what followed steps in which none of the client's agents acted; and how many actions are wanted of
        # each kind of agents.
        self._outcomes = [b""] * num_workers
        self._wanted: list[tuple[int, ...]] = [()] * num_workers
        self.num_shown = self.policy_version = 0

    @property
    def num_steps(self) -> int:
        """Number of steps of all workers whose actions have come."""
        return int(self._steps.sum())

    @property
    def num_steps_before(self) -> int:
        """Number of steps of all workers in the rounds before the present one."""
        return int(self._before.sum())

    @property
    def has_stepped(self) -> bool:
        """Whether the client has acted."""
        return bool(self._steps.any())

    @property
    def has_taken(self) -> bool:
        """Whether actions have come that no round has got yet."""
        return bool(self._taken)

    @property
    def await_nobody(self) -> bool:
        """Whether all rows can make their next steps without the client, none of whose agents acts in them."""
        return not any(map(any, self._wanted)) and bool((self._shown == self._steps).all())

    def has_another_version(self, policy_version: int | None) -> bool:
        """Whether actions have come with another version than a round's; None for a round without steps."""
        versions = {taken.policy_version for taken in self._taken.values()}
        return policy_version is not None and bool(versions - {policy_version})

    def go_on(self) -> None:
        """Have the rows make their next steps without the client."""
        self._take_all([DrivenActions((), ())] * len(self._wanted), self.policy_version)

    def begin_round(self) -> None:
        """Count the steps of a round from now on."""
        self._before[:] = self._steps
        self._before[list(self._taken)] -= 1

    def show(self, worker: int, rows: DrivenRows, *, is_last: bool) -> DrivenStep | None:
        """Take what a worker has to show, unless it is known; return what the client gets to know, if that is enough.

        Args:
            worker: index of the worker.
            rows: what it has to show.
            is_last: whether no other worker will show anything before the client acts.
        """
        num_steps = int(self._before[worker]) + rows.step
        if self._shown[worker] >= num_steps:  # a lost worker's rows, or where the round before has ended
            return None
        self._shown[worker], self._wanted[worker] = num_steps, rows.wanted
        self._outcomes[worker] += rows.outcome
        numbers = range(worker * self._size, (worker + 1) * self._size) if self._min_ready else None
        self._latest[worker] = ShownRows(numbers, num_steps, rows.observations + self._outcomes[worker])
        if worker not in self._news:
            self._news.append(worker)
        is_enough = self._min_ready and len(self._news) * self._size >= self._min_ready
        return self._step() if is_enough or (is_last and not self.await_nobody) else None

    def awaited_again(self) -> DrivenStep | None:
        """Return what the client gets to know of all rows that wait for actions; None if there are none."""
        awaited = self._shown == self._steps
        self._news = np.flatnonzero(awaited).tolist()
        return self._step() if self._news and (self._min_ready or awaited.all()) else None

    def take(self, actions: StepActions) -> bool:
        """Take actions; return whether there are any new ones. Raises InvalidValueError, and takes none then."""
        version = self.policy_version if actions.policy_version is None else actions.policy_version
        if not self._min_ready:
            if actions.step < self._steps[0]:
                return False
            self._take_all(self._form.divided(actions, self._wanted), version)
            return True
        taken = self._form.of_rows(actions, self._steps, self._shown, self._size)
        if not taken:
            return False
        self.policy_version = version
        self._taken |= {worker: _Taken(its, version) for worker, its in taken.items()}
        self._steps[list(taken)] += 1
        return True

    def taken_for(self, call: DrivenCall) -> Iterator[tuple[int, _Taken]]:
        """Yield the workers that take actions now and have some, and these: up to those that end the call's round."""
        for worker, taken in list(self._taken.items()):
            if call.policy_version not in (None, taken.policy_version):
                return
            if call.takes_actions(worker):
                del self._taken[worker]
                yield worker, taken

    def _take_all(self, workers: Sequence[DrivenActions], version: int) -> None:
        """Take the actions of all rows."""
        self.policy_version = version
        self._taken = {worker: _Taken(its, version) for worker, its in enumerate(workers)}
        self._steps += 1

    def _step(self) -> DrivenStep:
        number = self.num_shown if self._min_ready else int(self._steps[0])
        self.num_shown, news, self._news = number + 1, self._news, []
        for worker in news:
            self._outcomes[worker] = b""
        return DrivenStep(number, [self._latest[worker] for worker in (news if self._min_ready else sorted(news))])
