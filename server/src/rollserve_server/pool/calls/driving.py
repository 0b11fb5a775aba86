"""Sessions: a client acts in the rows, step by step, while what it does is recorded round by round."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections import deque
from typing import TYPE_CHECKING

from rollserve_server.errors import (
    ClientStalledError,
    DomainError,
    InvalidValueError,
    within,
)
from rollserve_server.futures import failure_of
from rollserve_server.pool.accounts import Account
from rollserve_server.pool.calls.driven import DrivenCall
from rollserve_server.pool.calls.samplings import StreamSequence, in_spec, stream_round
from rollserve_server.pool.calls.step_actions import ActionForm, check_info_size
from rollserve_server.pool.requests import ANY_VERSIONS, SampleRequest
from rollserve_server.pool.results import DrivenStep, Progress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from contextlib import AsyncExitStack

    from rollserve_server.admission import Receiver
    from rollserve_server.pool.calls.samplings import Samplings
    from rollserve_server.pool.calls.step_actions import StepActions
    from rollserve_server.pool.parts import PoolParts
    from rollserve_server.pool.requests import DriveRequest
    from rollserve_server.pool.results import Beginning, Delivery, StreamRound
    from rollserve_server.sampling import DrivenActions, DrivenRows

__all__ = ["Drive"]

_MAX_WAITING_ITEMS = 4
"""Items that may wait to be sent before a round pauses."""


class _Client:
    """The client of a session, who also stalls while it does not act.

    Attributes:
        awaited_since: when actions became wanted that it has not sent (`time.monotonic`), or None.
    """

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self.awaited_since: float | None = None

    @property
    def peer(self) -> str:
        return self._receiver.peer

    @property
    def charged_to(self) -> tuple[str, ...]:
        return self._receiver.charged_to

    @property
    def stalled_since(self) -> float | None:
        return self._receiver.stalled_since if self.awaited_since is None else self.awaited_since

    def end(self, error: DomainError) -> None:
        self._receiver.end(error)


class Drive:
    """A session, from its request to its account.

    Attributes:
        account: what became of the steps; complete at the end.
    """

    def __init__(
        self,
        parts: PoolParts,
        samplings: Samplings,
        request: DriveRequest,
        receiver: Receiver,
        max_idle_seconds: float,
    ) -> None:
        """Begin nothing yet.

        Args:
            parts: parts of the pool.
            samplings: runs the rounds.
            request: the request.
            receiver: the client, for turns.
            max_idle_seconds: how long the client may take for the actions of a step.
        """
        self.account = Account(0, 0, 0, 0, [])
        self._parts, self._samplings = parts, samplings
        self._request, self._client = request, _Client(receiver)
        self._max_idle_seconds = max_idle_seconds
        self._sequence: StreamSequence
        self._options = request.options
        self._call: DrivenCall | None = None
        self._form: ActionForm | None = None  # known once the session has begun
        self._ready: deque[Beginning | DrivenStep | Delivery | StreamRound | Progress] = deque()
        self._changed = asyncio.Event()
        # The next step; whether the round waits for its actions; and the last step that the client was told of.
        self._step, self._is_awaited, self._num_shown = 0, False, -1
        self._actions: Sequence[DrivenActions] | None = None  # that came while a round ended
        self._outcomes: Sequence[bytes | None] = ()  # of the last step of a round that has ended
        self._wants_end_of_fragment = self._wants_end = self._is_over = False
        self._failure: BaseException | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._began = time.monotonic()

    # What the client sends.

    def act(self, actions: StepActions) -> None:
        """Make a step; one that is made already has no effect.

        Raises:
            InvalidValueError: the step is not the next one, or the actions have another form, or are not in the action
                space. No row has stepped then.
        """
        if actions.step < self._step:
            return
        if actions.step > self._num_shown or self._form is None:
            expected = f"{self._step}, once it is asked for"
            raise InvalidValueError.of("actions.step", expected=expected, got=actions.step)
        with within("actions"):
            self._actions = self._form.divided(actions)
        self._make_step_if_awaited()

    def end_fragment(self) -> None:
        """End the present fragments with the last step."""
        self._wants_end_of_fragment = True
        self._end_round_if_wanted()

    def end(self) -> None:
        """End the session with the last step."""
        self._wants_end = True
        self._end_round_if_wanted()

    def _make_step_if_awaited(self) -> None:
        if self._is_awaited and self._actions is not None and self._call is not None:
            self._stop_idling()
            actions, self._actions = self._actions, None
            self._step += 1
            self._call.act(actions)

    # What it gets.

    async def items(self) -> AsyncGenerator[Beginning | DrivenStep | Delivery | StreamRound | Progress | Account, None]:
        """Yield what is to be sent; see `Pool.drive`."""
        async with contextlib.AsyncExitStack() as stack:
            with in_spec():
                self._begin(stack)
            rounds = asyncio.create_task(self._run())
            try:
                while True:
                    while self._ready:
                        yield self._ready.popleft()
                    if self._failure is not None:
                        raise self._failure
                    if self._is_over:
                        break
                    self._notify()  # there is room
                    if not await self._wait():
                        yield Progress(self.account.num_simulated_steps, num_rounds=self.account.num_rounds)
            finally:
                self._stop_idling()
                rounds.cancel()
                await asyncio.gather(rounds, return_exceptions=True)
        self._parts.row_sequences.dropped.report(self.account)
        self.account.elapsed_seconds = time.monotonic() - self._began
        yield self.account

    def _begin(self, stack: AsyncExitStack) -> None:
        """Check the request, and begin the rows, until the stack is closed. They keep their environment."""
        parts, options = self._parts, self._request.options
        parts.check_run(options.run)
        env_version = parts.selection.choose_env(options)
        stack.enter_context(parts.versions.envs.using(env_version))
        stack.callback(parts.versions.evict)
        num_rows = len(parts.workers.workforce) * parts.versions.env_in_use(env_version).description.num_rows
        check_info_size(self._request.external.infos, num_rows)
        self._options = dataclasses.replace(options, env_version=env_version, expected=ANY_VERSIONS, seed=None)
        self._sequence = StreamSequence(parts, self._request, stack)  # which has the seed

    async def _run(self) -> None:
        """Run round after round, until the client ends the session."""
        try:
            while not self._wants_end:
                await self._run_round()
            self._is_over = True
        except BaseException as error:  # raised where items are awaited
            self._failure = failure_of(error)
        finally:
            self._notify()

    async def _run_round(self) -> None:
        request, turn = self._request, self._samplings.admission.new_turn()
        async with contextlib.AsyncExitStack() as stack:
            await self._samplings.admit_round(stack, self._client, turn, has_begun=self._form is not None)
            stack.callback(self._parts.versions.evict)
            wanted = SampleRequest(
                self._sequence.target(0),
                request.messages,
                self._options,
                num_workers=request.num_workers,
                external=request.external,
            )
            with in_spec():
                call = await self._samplings.begin(wanted, stack, self._sequence)
            assert isinstance(call, DrivenCall)  # noqa: S101  # the request is a client's
            call.turn = turn
            call.begin(self._show, continues=self._step > 0)
            if self._form is None:
                beginning, spaces = call.beginning(), self._samplings.spaces(call.account.env_version)
                self._form = ActionForm(spaces[1], request.external.infos, beginning.num_rows, beginning.num_workers)
                given = spaces if request.return_spaces else None
                self._ready.append(dataclasses.replace(beginning, spaces=given))
                self._notify()
            self._call = call
            self._wants_end_of_fragment = False
            try:
                async with self._samplings.running(call, self._sequence) as items:
                    async for item in items:
                        while len(self._ready) >= _MAX_WAITING_ITEMS:
                            await self._changed.wait()
                        self._ready.append(item)
                        self._notify()
            finally:
                self._call = None
                self.account.add_round(call.account, None)
            self._end_round(call)

    def _end_round(self, call: DrivenCall) -> None:
        if not (call.account.num_steps or call.account.num_discarded_steps):
            return
        number, self.account.num_rounds = self.account.num_rounds, self.account.num_rounds + 1
        self._parts.counters.count_round(call.account, is_sent=True)
        if self._request.messages.columns is not None:
            self._ready.append(stream_round(call, number, self._sequence.next_position(call)))
            self._notify()

    def _show(self, workers: Sequence[DrivenRows]) -> None:
        """Tell the client what all workers have to show."""
        outcomes = [rows.outcome for rows in workers]
        if any(rows.observations is None for rows in workers):  # the round has ended: its next one has them
            self._outcomes = outcomes
            return
        before, self._outcomes = self._outcomes or outcomes, ()
        shown = [(rows.observations or b"") + (outcome or b"") for rows, outcome in zip(workers, before, strict=True)]
        self._is_awaited = True
        if self._num_shown < self._step:  # else a round has ended in between, and there is nothing new
            self._num_shown = self._step
            self._ready.append(DrivenStep(self._step, shown))
        self._client.awaited_since = time.monotonic()
        self._idle_timer = asyncio.get_running_loop().call_later(self._max_idle_seconds, self._stall)
        self._notify()
        self._end_round_if_wanted()
        self._make_step_if_awaited()

    def _end_round_if_wanted(self) -> None:
        """End the present round with its last step, once that is shown, if the client wants it."""
        if self._call is not None and self._is_awaited and (self._wants_end or self._wants_end_of_fragment):
            if not (self._wants_end or self._call.num_steps):
                self._wants_end_of_fragment = False  # there is nothing in them yet
                return
            self._stop_idling()
            self._call.end()

    def _stall(self) -> None:
        text = f"the client did not send the actions of step {self._step} for {self._max_idle_seconds:g} s"
        self._failure = ClientStalledError(text)
        self._notify()

    def _stop_idling(self) -> None:
        self._is_awaited, self._client.awaited_since = False, None
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

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
