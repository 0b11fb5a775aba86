"""Turns of calls, so many of each connection: what one client keeps waiting, another one need not wait for."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING

from rollserve_server.pool import Turns

if TYPE_CHECKING:
    from rollserve_server.gateway.rpcs import OpenRpc

__all__ = ["ConnectionTurns"]

_LOOK_SECONDS = 1.0
_LOOKS = 4
"""How often those that wait look at least, within the patience, whether a client keeps them waiting."""


class ConnectionTurns:
    """So many calls of a connection, and so many of all, have a turn at a time; more wait.

    A call whose client keeps it waiting for longer than the patience is ended when others wait.
    """

    def __init__(self, num_turns: int, num_of_connection: int, patience_seconds: float, *, max_waiting: int) -> None:
        """Begins without calls.

        Args:
            num_turns: how many have a turn.
            num_of_connection: how many of the same connection.
            patience_seconds: how long a client may leave what is there for it, or not send what it began to.
            max_waiting: how many may wait: of each connection, and of all connections.
        """
        self._num_of_connection = num_of_connection
        self._patience_seconds = patience_seconds
        self._max_waiting = max_waiting
        self._all = self._turns(num_turns)
        self._of_peers: dict[str, Turns] = {}
        self._num_rpcs: Counter[str] = Counter()

    async def wait(self, stack: contextlib.AsyncExitStack, rpc: OpenRpc) -> None:
        """Waits until it is an RPC's turn, which ends with the stack.

        Raises:
            OverLimitError: too many wait.
        """
        own = self._of_peers.setdefault(rpc.peer, self._turns(self._num_of_connection))
        self._num_rpcs[rpc.peer] += 1
        stack.callback(self._leave, rpc.peer)
        await own.wait(stack, rpc)
        await self._all.wait(stack, rpc)

    def _leave(self, peer: str) -> None:
        self._num_rpcs[peer] -= 1
        if not self._num_rpcs[peer]:
            del self._num_rpcs[peer], self._of_peers[peer]

    def _turns(self, num_turns: int) -> Turns:
        patience = self._patience_seconds
        look_seconds = min(patience / _LOOKS, _LOOK_SECONDS)
        return Turns(num_turns, look_seconds, max_stalled=0, max_waiting=self._max_waiting, patience_seconds=patience)
