"""Admission: a bounded number of calls run at a time, the others queue in order of arrival."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from rollserve import Reason
from rollserve_server.errors import ClientStalledError, DomainError, OverLimitError

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

__all__ = ["NEVER_STALLED", "Admission", "Receiver"]


class Receiver(Protocol):
    """The reading side of a call: its client, as far as admission is concerned."""

    @property
    def stalled_since(self) -> float | None:
        """Time at which the client stopped reading ready data (`time.monotonic`), or None while it reads."""
        ...

    def end(self, error: DomainError) -> None:
        """End the call with an error. May be called more than once."""
        ...


class _NeverStalled:
    """A receiver that reads everything at once."""

    stalled_since = None

    def end(self, error: DomainError) -> None:
        """Do nothing: admission ends stalled receivers only."""


NEVER_STALLED: Receiver = _NeverStalled()


class Admission:
    """A bounded number of running calls, with a queue for the others.

    A call whose client stalls does not count as running: another one is admitted meanwhile. The stalled call keeps
    what it has and goes on as soon as its client reads again. The number of stalled calls is bounded, too: when one
    more has to be admitted, the call that has stalled longest is ended.
    """

    def __init__(
        self,
        max_running: int,
        tick_seconds: float,
        *,
        max_stalled: int,
        max_waiting: int,
        patience_seconds: float = 1.0,
    ) -> None:
        """Start without calls.

        Args:
            max_running: number of calls that run at a time.
            tick_seconds: how often a waiting call looks again whether somebody has stalled.
            max_stalled: number of stalled calls beside the running ones.
            max_waiting: length of the queue.
            patience_seconds: how long a client may leave data unread before its call counts as stalled.
        """
        self._max_running = max_running
        self._tick_seconds = tick_seconds
        self._max_stalled = max_stalled
        self._max_waiting = max_waiting
        self._patience_seconds = patience_seconds
        self._admitted: list[Receiver] = []
        self._queue: deque[_Ticket] = deque()
        self._refusal: DomainError | None = None

    def refuse(self, error: DomainError) -> None:
        """Fail all waiting calls, and every later one, with a copy of the error."""
        self._refusal = error
        while self._queue:
            self._queue.popleft().admitted.set_exception(copy.copy(error))

    @contextlib.asynccontextmanager
    async def admitting(
        self, stack: AsyncExitStack, receiver: Receiver
    ) -> AsyncGenerator[AsyncGenerator[None, None], None]:
        """Yield an iterator that ticks until the call is admitted. The call runs until the stack is closed.

        Raises:
            OverLimitError: the queue is full.
            DomainError: the error that was passed to `refuse`.
        """
        async with contextlib.aclosing(self._ticks(stack, receiver)) as ticks:
            yield ticks

    async def admit(self, stack: AsyncExitStack, receiver: Receiver) -> None:
        """Wait until the call is admitted; `admitting` for callers that do nothing between ticks."""
        async with self.admitting(stack, receiver) as ticks:
            async for _ in ticks:
                pass

    async def _ticks(self, stack: AsyncExitStack, receiver: Receiver) -> AsyncGenerator[None, None]:
        if self._refusal is not None:
            raise copy.copy(self._refusal)
        ticket = _Ticket(receiver)
        self._queue.append(ticket)
        stack.callback(self._leave, ticket)
        self._admit_waiting()
        if len(self._queue) > self._max_waiting:
            text = f"{len(self._admitted)} calls are running and {self._max_waiting} are waiting, which is the limit"
            raise OverLimitError(f"{text}: try again when some have ended", reason=Reason.TOO_MANY_CALLS)
        while not ticket.admitted.done():
            # A client that stops reading raises no event, so look again at each tick.
            if not (await asyncio.wait({ticket.admitted}, timeout=self._tick_seconds))[0]:
                self._admit_waiting()
                yield
        ticket.admitted.result()

    def _admit_waiting(self) -> None:
        while self._queue and self._has_room():
            ticket = self._queue.popleft()
            self._admitted.append(ticket.receiver)
            ticket.admitted.set_result(None)

    def _has_room(self) -> bool:
        """Whether another call may start. If the only obstacle is a stalled call, end the one that stalled longest."""
        num_admitted = len(self._admitted)
        if num_admitted < self._max_running:
            return True
        latest = time.monotonic() - self._patience_seconds
        since = [(receiver.stalled_since, receiver) for receiver in self._admitted]
        stalled = [(start, receiver) for start, receiver in since if start is not None and start < latest]
        if num_admitted - len(stalled) >= self._max_running:
            return False
        if num_admitted < self._max_running + self._max_stalled:
            return True
        start, longest = min(stalled, key=lambda item: item[0])
        text = f"the client has left data unread for {time.monotonic() - start:.0f} s, and another call needs its place"
        longest.end(ClientStalledError(text))
        return False

    def _leave(self, ticket: _Ticket) -> None:
        """Give up a ticket; if its call was running, admit the next one."""
        if ticket.admitted.cancel():
            self._queue.remove(ticket)
        elif ticket.admitted.exception() is None:
            self._admitted.remove(ticket.receiver)
            self._admit_waiting()


@dataclass(eq=False)
class _Ticket:
    """A call's place in the queue; `admitted` is done once the call may run."""

    receiver: Receiver
    admitted: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
