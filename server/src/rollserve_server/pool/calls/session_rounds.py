"""Rounds of a session that another client reads: each is kept until that client has it."""

from __future__ import annotations

import asyncio
from collections import deque

from rollserve_server.errors import InvalidValueError
from rollserve_server.pool.results import Delivery, StreamRound

__all__ = ["SessionRounds"]

_MAX_ROUNDS = 2
"""Whole rounds that may wait for the reader before the session does."""


class SessionRounds:
    """Rounds of a session on their way to a reader, who may lose its connection and come back.

    Attributes:
        were_taken: set when the reader has got further rounds; whoever waits clears it.
        has_all: set once the reader has all of them, and the account.
    """

    def __init__(self) -> None:
        self.were_taken, self.has_all = asyncio.Event(), asyncio.Event()
        # Each with the number of its round. The first ones of them were sent in the reader's present stream.
        self._items: deque[tuple[int, Delivery | StreamRound]] = deque()
        self._num_sent = 0
        self._num_whole = self._num_taken = 0

    @property
    def has_room(self) -> bool:
        """Whether the session may go on with its rounds."""
        return self._num_whole - self._num_taken < _MAX_ROUNDS

    def add(self, item: Delivery | StreamRound) -> None:
        """Keep a delivery of a round, or the end of the round."""
        self._items.append((self._num_whole, item))
        self._num_whole += isinstance(item, StreamRound)

    def begin(self, num_taken: int) -> None:
        """Have all sent again that the reader has not got, in another stream; raises as `take`."""
        self.take(num_taken)
        self._num_sent = 0

    def take(self, num_rounds: int) -> None:
        """Forget the rounds that the reader has got; raise InvalidValueError for more than there are."""
        if num_rounds > self._num_whole:
            raise InvalidValueError.of("round_count", expected=f"at most {self._num_whole}", got=num_rounds)
        while self._items and self._items[0][0] < num_rounds:
            self._items.popleft()
            self._num_sent = max(self._num_sent - 1, 0)
        self._num_taken = max(num_rounds, self._num_taken)
        self.were_taken.set()

    def next(self) -> Delivery | StreamRound | None:
        """Return what is to be sent next in the present stream; None if there is nothing yet."""
        if self._num_sent == len(self._items):
            return None
        self._num_sent += 1
        return self._items[self._num_sent - 1][1]
