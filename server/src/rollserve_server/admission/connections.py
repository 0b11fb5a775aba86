"""Admission by connection: a client that stalls holds up its own calls, and no others."""

from __future__ import annotations

import contextlib
from collections import Counter

from rollserve_server.admission.admission import Admission, Receiver

__all__ = ["ConnectionAdmission"]

_TICK_SECONDS = 1.0
_TICKS = 4
"""Least number of looks at stalled clients within the patience."""


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

    async def admit(self, stack: contextlib.AsyncExitStack, receiver: Receiver) -> None:
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
