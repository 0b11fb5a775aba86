"""Admission: a bounded number of calls run at a time, in turns of their clients; the others queue."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from rollserve_server.errors import CallTooLongError, ClientStalledError, DomainError, OverLimitError
from rollserve_wire.reasons import Reason

__all__ = ["NEVER_STALLED", "Admission", "ConnectionAdmission", "Receiver", "Turn"]

_TICK_SECONDS = 1.0
_TICKS = 4
"""Least number of looks at stalled clients within the patience."""


class Turn:
    """The turns of one call, which runs from its admission on, except while it is paused.

    Attributes:
        is_paused: whether the call has to wait for its next turn.
        num_steps: number of steps that the call has made in its present turn.
        paused_seconds: how long the call has been paused, up to its present turn.
        num_pauses: number of pauses so far.
        weight: how much longer the workers work for the call at a time than for one of the client with most calls.
    """

    def __init__(self, look: Callable[[], None] = lambda: None, max_steps: int = 1) -> None:
        """Start a turn.

        Args:
            look: looks for a call that should run instead of another one.
            max_steps: number of steps after which the turn may end.
        """
        self.look = look
        self.is_paused = False
        self.num_steps = 0
        self.paused_seconds = 0.0
        self.num_pauses = 0
        self.weight = 1.0
        self._paused_at = 0.0
        self._max_steps = max_steps
        self._may_run = asyncio.Event()
        self._may_run.set()

    @property
    def is_over(self) -> bool:
        """Whether the call has made all steps of its turn, so that another client's call may run instead."""
        return self.num_steps >= self._max_steps

    def count(self, num_steps: int) -> None:
        """Record steps."""
        self.num_steps += num_steps
        if self.is_over:
            self.look()

    def pause(self) -> None:
        """End the turn."""
        self.num_pauses += 1
        self._paused_at = time.monotonic()
        self.is_paused = True
        self._may_run.clear()

    def resume(self) -> None:
        """Start the next turn."""
        self.num_steps = 0
        self.paused_seconds += time.monotonic() - self._paused_at
        self.is_paused = False
        self._may_run.set()

    async def begun(self) -> None:
        """Wait until the call may run."""
        await self._may_run.wait()


class Receiver(Protocol):
    """The reading side of a call: its client, as far as admission is concerned."""

    @property
    def peer(self) -> str:
        """The client, whom the call is charged to: its connection, as gRPC names it."""
        ...

    @property
    def charged_to(self) -> tuple[str, ...]:
        """Names that the call is charged to, which clients may share; the first is the client's address."""
        ...

    @property
    def stalled_since(self) -> float | None:
        """Time at which the client stopped reading ready data (`time.monotonic`), or None while it reads."""
        ...

    def end(self, error: DomainError) -> None:
        """End the call with an error. May be called more than once."""
        ...


class _NeverStalled:
    """A receiver that reads everything at once."""

    peer = ""
    charged_to = ("",)
    stalled_since = None

    def end(self, error: DomainError) -> None:
        """Do nothing: admission ends stalled receivers only."""


NEVER_STALLED: Receiver = _NeverStalled()


class Admission:
    """A bounded number of running calls, with a queue for the others.

    Clients share the places: of the queue, the call of the client with the fewest running calls is admitted next, and a
    call that can pause does so for the call of a client that has less than its share. Calls that run beside each other
    have weights, so that clients share the workers' time, whatever the number of their calls.

    A call whose client stalls does not count as running: another one is admitted meanwhile. The stalled call keeps
    what it has and goes on as soon as its client reads again. The number of stalled and paused calls is bounded, too:
    when one more has to be admitted, the call that has stalled longest is ended.
    """

    def __init__(
        self,
        max_running: int,
        tick_seconds: float,
        *,
        max_stalled: int,
        max_waiting: int,
        max_of_client: int | None = None,
        patience_seconds: float = 1.0,
        turn_steps: int = 1,
    ) -> None:
        """Start without calls.

        Args:
            max_running: number of calls that run at a time.
            tick_seconds: how often a waiting call looks again whether somebody has stalled.
            max_stalled: number of stalled and paused calls beside the running ones.
            max_waiting: length of the queue.
            max_of_client: number of running calls of a client; None for no bound.
            patience_seconds: how long a client may leave data unread before its call counts as stalled.
            turn_steps: number of steps that a call may make before it pauses for a client with one running call less.
        """
        self._max_running, self._max_of_client = max_running, max_of_client or max_running
        self._tick_seconds = tick_seconds
        self._max_admitted = max_running + max_stalled
        self._max_waiting = max_waiting
        self._patience_seconds = patience_seconds
        self._turn_steps = turn_steps
        self._admitted: list[_Ticket] = []  # running, stalled and paused
        self._queue: list[_Ticket] = []  # not admitted yet, or paused
        self._refusal: DomainError | None = None

    @property
    def num_running(self) -> int:
        """Number of calls that run, stalled ones included."""
        return sum(not ticket.turn.is_paused for ticket in self._admitted)

    @property
    def num_queued(self) -> int:
        """Number of calls that queue or are paused."""
        return len(self._queue)

    def limit(self, max_running: int, *, max_stalled: int, max_waiting: int, turn_steps: int) -> None:
        """Change the limits, as of the constructor, for calls that are not admitted yet."""
        self._max_running = self._max_of_client = max_running
        self._max_admitted = max_running + max_stalled
        self._max_waiting = max_waiting
        self._turn_steps = turn_steps
        self._admit_waiting()

    def new_turn(self) -> Turn:
        """Return the turn of a call that can pause."""
        return Turn(self._admit_waiting, self._turn_steps)

    def refuse(self, error: DomainError) -> None:
        """Fail all calls that are not admitted yet, and every later one, with a copy of the error."""
        self._refusal = error
        for ticket in self._waiting():
            self._queue.remove(ticket)
            ticket.admitted.set_exception(copy.copy(error))

    def admitting(
        self, stack: contextlib.AsyncExitStack | contextlib.ExitStack, receiver: Receiver, turn: Turn | None = None
    ) -> AbstractAsyncContextManager[AsyncGenerator[None, None]]:
        """Yield an iterator that ticks until the call is admitted. The call runs until the stack is closed.

        With a turn, it runs except while that is paused.

        Raises:
            OverLimitError: the queue is full.
            DomainError: the error that was passed to `refuse`.
        """
        return contextlib.aclosing(self._ticks(stack, _Ticket(receiver, turn)))

    async def admit(self, stack: contextlib.AsyncExitStack | contextlib.ExitStack, receiver: Receiver) -> None:
        """Wait until the call is admitted; `admitting` for callers that do nothing between ticks."""
        async with self.admitting(stack, receiver) as ticks:
            async for _ in ticks:
                pass

    async def _ticks(
        self, stack: contextlib.AsyncExitStack | contextlib.ExitStack, ticket: _Ticket
    ) -> AsyncGenerator[None, None]:
        if self._refusal is not None:
            raise copy.copy(self._refusal)
        self._queue.append(ticket)
        stack.callback(self._leave, ticket)
        self._admit_waiting()
        if len(self._queue) > self._max_waiting:
            self._shorten_queue()
        while not ticket.admitted.done():
            # A client that stops reading raises no event, so look again at each tick.
            if not (await asyncio.wait({ticket.admitted}, timeout=self._tick_seconds))[0]:
                self._admit_waiting()
                yield
        ticket.admitted.result()

    def _shorten_queue(self) -> None:
        """Refuse a call if the queue is too long: the last one of the client, and then the address, with the most."""
        waiting = self._waiting()
        if len(waiting) <= self._max_waiting:
            return
        of_client = Counter(ticket.peer for ticket in waiting)
        of_address = Counter(ticket.address for ticket in waiting)
        # The newest call comes first, which is refused unless another client or address has more.
        last = max(reversed(waiting), key=lambda ticket: (of_client[ticket.peer], of_address[ticket.address]))
        self._queue.remove(last)
        text = f"{len(self._admitted)} calls are running and {self._max_waiting} are waiting, which is the limit"
        last.admitted.set_exception(
            OverLimitError(f"{text}: try again when some have ended", reason=Reason.TOO_MANY_CALLS)
        )

    def _admit_waiting(self) -> None:
        while self._queue and self._start_next():
            pass

    def _start_next(self) -> bool:
        """Start a call of the queue, also in place of another one; return false if none may start."""
        latest = time.monotonic() - self._patience_seconds
        stalled: dict[_Ticket, float] = {}
        running: list[_Ticket] = []
        num_running: Counter[str] = Counter()
        for ticket in self._admitted:
            since = ticket.receiver.stalled_since
            if since is not None and since < latest:
                stalled[ticket] = since
            elif not ticket.turn.is_paused:
                running.append(ticket)
                num_running[ticket.peer] += 1
        is_full = len(running) >= self._max_running
        pausable = [ticket for ticket in running if ticket.can_pause] if is_full else []
        if is_full and not pausable:
            return False
        for ticket in sorted(self._queue, key=lambda ticket: num_running[ticket.peer]):
            if num_running[ticket.peer] >= self._max_of_client:
                return False
            loser = _most_served(pausable, num_running, ticket.peer, heeds_turns=True) if is_full else None
            if is_full and loser is None:
                return False  # clients of later tickets have at least as many running calls
            if ticket.turn.is_paused or self._has_room(stalled, ticket.peer):
                if loser is not None:
                    self._pause(loser)
                self._start(ticket)
                return True
        return False

    def _has_room(self, stalled: dict[_Ticket, float], peer: str) -> bool:
        """Whether a client's call may be admitted beside the stalled and paused ones; if not, make room for later."""
        if len(self._admitted) < self._max_admitted:
            return True
        if stalled:
            longest = min(stalled, key=lambda ticket: stalled[ticket])
            text = f"the client has left data unread for {time.monotonic() - stalled[longest]:.0f} s"
            longest.receiver.end(ClientStalledError(f"{text}, and another call needs its place"))
            return False
        num_admitted = Counter(ticket.peer for ticket in self._admitted)
        loser = _most_served([ticket for ticket in self._queue if ticket.turn.is_paused], num_admitted, peer)
        if loser is not None:
            text = "the call is paused, and its place is needed by a client with fewer calls"
            loser.receiver.end(CallTooLongError(f"{text}: ask for the rest in another call"))
        return False

    def _start(self, ticket: _Ticket) -> None:
        self._queue.remove(ticket)
        if ticket.admitted.done():
            ticket.turn.resume()
        else:
            self._admitted.append(ticket)
            ticket.admitted.set_result(None)
        self._weigh()

    def _pause(self, ticket: _Ticket) -> None:
        """Pause a call. Its client, which has had a turn, is last in the queue, with its paused calls before others."""
        ticket.turn.pause()
        own = [queued for queued in self._queue if queued.peer == ticket.peer]
        others = [queued for queued in self._queue if queued.peer != ticket.peer]
        self._queue = others + sorted([*own, ticket], key=lambda queued: not queued.turn.is_paused)
        self._weigh()

    def _weigh(self) -> None:
        """Give the running calls weights whose sum is the same for each client."""
        num_running: Counter[str] = Counter()
        for ticket in self._admitted:
            num_running[ticket.peer] += not ticket.turn.is_paused
        for ticket in self._admitted:
            if not ticket.turn.is_paused:
                ticket.turn.weight = max(num_running.values()) / num_running[ticket.peer]

    def _waiting(self) -> list[_Ticket]:
        """Return the calls that are not admitted yet, in order of arrival."""
        return [ticket for ticket in self._queue if not ticket.turn.is_paused]

    def _leave(self, ticket: _Ticket) -> None:
        """Give up a ticket; if its call was admitted, admit the next one."""
        if ticket in self._queue:
            self._queue.remove(ticket)
        if not ticket.admitted.cancel() and ticket.admitted.exception() is None:
            self._admitted.remove(ticket)
            self._weigh()
            self._admit_waiting()


class _Ticket:
    """A call's place in the queue; `admitted` is done once the call may run."""

    def __init__(self, receiver: Receiver, turn: Turn | None) -> None:
        self.receiver = receiver
        self.peer, self.address = receiver.peer, receiver.charged_to[0]
        self.can_pause = turn is not None
        self.turn = turn or Turn()
        self.admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()


def _most_served(
    tickets: list[_Ticket], num_calls: Counter[str], peer: str, *, heeds_turns: bool = False
) -> _Ticket | None:
    """Return the call to pause or end for a client: of the client with the most calls, the one with the most steps.

    That client must have two calls more, or, if turns are heeded, one more and a turn that is over. None if there is no
    such call.
    """

    def excess(ticket: _Ticket) -> int:
        return num_calls[ticket.peer] - num_calls[peer]

    eligible = [ticket for ticket in tickets if excess(ticket) > (0 if heeds_turns and ticket.turn.is_over else 1)]
    return max(eligible, key=lambda ticket: (excess(ticket), ticket.turn.num_steps), default=None)


class ConnectionAdmission:
    """A bounded number of running calls for each connection, and for all together.

    A call whose client stalls for longer than the patience is ended as soon as others wait.
    """

    def __init__(self, max_running: int, max_per_connection: int, patience_seconds: float, *, max_waiting: int) -> None:
        """Start without calls.

        Args:
            max_running: number of calls that run at a time.
            max_per_connection: number of running calls of one connection.
            patience_seconds: how long a client may leave data unread, or not send what it began to.
            max_waiting: length of the queue of each connection, and of the queue of all connections.
        """
        self._max_per_connection = max_per_connection
        self._patience_seconds = patience_seconds
        self._max_waiting = max_waiting
        self._all = self._new_admission(max_running)
        self._by_peer: dict[str, Admission] = {}
        self._num_calls: Counter[str] = Counter()

    async def admit(self, stack: contextlib.AsyncExitStack | contextlib.ExitStack, receiver: Receiver) -> None:
        """Wait until the call is admitted; it runs until the stack is closed.

        Raises:
            OverLimitError: a queue is full.
        """
        peer = receiver.peer
        own = self._by_peer.setdefault(peer, self._new_admission(self._max_per_connection))
        self._num_calls[peer] += 1
        stack.callback(self._leave, peer)
        await own.admit(stack, receiver)
        await self._all.admit(stack, receiver)

    def _leave(self, peer: str) -> None:
        self._num_calls[peer] -= 1
        if not self._num_calls[peer]:
            del self._num_calls[peer], self._by_peer[peer]

    def _new_admission(self, max_running: int) -> Admission:
        patience = self._patience_seconds
        tick_seconds = min(patience / _TICKS, _TICK_SECONDS)
        return Admission(
            max_running, tick_seconds, max_stalled=0, max_waiting=self._max_waiting, patience_seconds=patience
        )
