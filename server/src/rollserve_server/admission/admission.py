"""Turns of calls."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from rollserve_server.errors import ClientStalledError, DomainError, OverLimitError

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

__all__ = ["ATTENTIVE", "Receiver", "Turns"]


class Receiver(Protocol):
    """Who takes what a call gives."""

    @property
    def waiting_since(self) -> float | None:
        """Since when something is there for it that it does not take (`time.monotonic`); None while it takes."""
        ...

    def end(self, error: DomainError) -> None:
        """Ends its call. May be called again."""
        ...


class _Attentive:
    """Takes everything at once."""

    waiting_since = None

    def end(self, error: DomainError) -> None:
        """Is not called: it never keeps anything waiting."""


ATTENTIVE: Receiver = _Attentive()


class Turns:
    """So many calls have a turn at a time; more wait in the order of their arrival.

    A call whose client leaves what is there for it is not counted, so that another one has its turn meanwhile. It keeps
    what it has, and goes on as soon as the client does. Of such calls there are so many at the most: then the one that
    has been left for longest is ended to make room.
    """

    def __init__(
        self,
        num_turns: int,
        progress_seconds: float,
        *,
        max_stalled: int,
        max_waiting: int,
        patience_seconds: float = 1.0,
    ) -> None:
        """Begins without calls.

        Args:
            num_turns: how many calls have a turn at a time.
            progress_seconds: how often those that wait are to tell of it.
            max_stalled: how many more there may be whose clients do not take.
            max_waiting: how many may wait.
            patience_seconds: how long a client may leave what is there for it before it is one of those.
        """
        self._num_turns = num_turns
        self._progress_seconds = progress_seconds
        self._max_stalled = max_stalled
        self._max_waiting = max_waiting
        self._patience_seconds = patience_seconds
        self._holders: list[Receiver] = []
        self._queue: deque[_Place] = deque()
        self._refusal: DomainError | None = None

    def refuse(self, error: DomainError) -> None:
        """Ends the waiting of all calls with an error, also of those that come from now on."""
        self._refusal = error
        while self._queue:
            self._queue.popleft().turn.set_exception(copy.copy(error))

    @contextlib.asynccontextmanager
    async def waiting(
        self, stack: AsyncExitStack, receiver: Receiver
    ) -> AsyncGenerator[AsyncGenerator[None, None], None]:
        """Gives signs of life until it is a call's turn, which ends with the stack.

        Raises:
            OverLimitError: too many calls wait.
            DomainError: see `refuse`.
        """
        async with contextlib.aclosing(self._wait(stack, receiver)) as signs:
            yield signs

    async def wait(self, stack: AsyncExitStack, receiver: Receiver) -> None:
        """The same for a call that gives no signs."""
        async with self.waiting(stack, receiver) as signs:
            async for _ in signs:
                pass

    async def _wait(self, stack: AsyncExitStack, receiver: Receiver) -> AsyncGenerator[None, None]:
        if self._refusal is not None:
            raise copy.copy(self._refusal)
        place = _Place(receiver)
        self._queue.append(place)
        stack.callback(self._leave, place)
        self._grant()
        if len(self._queue) > self._max_waiting:
            text = f"{len(self._holders)} calls have their turn and {self._max_waiting} are waiting, which is the most"
            raise OverLimitError(f"{text}: try again when some have ended", reason="TOO_MANY_CALLS")
        while not place.turn.done():
            # Nobody tells when a client stops to take.
            if not (await asyncio.wait({place.turn}, timeout=self._progress_seconds))[0]:
                self._grant()
                yield
        place.turn.result()

    def _grant(self) -> None:
        while self._queue and self._has_room():
            place = self._queue.popleft()
            self._holders.append(place.receiver)
            place.turn.set_result(None)

    def _has_room(self) -> bool:
        """Whether another call may begin. If it is only one too many that hinders it, sees to it that that one ends."""
        num_holders = len(self._holders)
        if num_holders < self._num_turns:
            return True
        before = time.monotonic() - self._patience_seconds
        waiting = [(holder.waiting_since, holder) for holder in self._holders]
        stalled = [(since, holder) for since, holder in waiting if since is not None and since < before]
        if num_holders - len(stalled) >= self._num_turns:
            return False
        if num_holders < self._num_turns + self._max_stalled:
            return True
        since, longest = min(stalled, key=lambda item: item[0])
        seconds = time.monotonic() - since
        text = f"the client has left the call waiting for {seconds:.0f} s, and another one needs its place"
        longest.end(ClientStalledError(text))
        return False

    def _leave(self, place: _Place) -> None:
        """Lets the next call have the turn, if this one has had its own."""
        if place.turn.cancel():
            self._queue.remove(place)
        elif place.turn.exception() is None:
            self._holders.remove(place.receiver)
            self._grant()


@dataclass(eq=False)
class _Place:
    """Where a call waits.

    Attributes:
        receiver: who takes what it gives.
        turn: done when it has its turn.
    """

    receiver: Receiver
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
