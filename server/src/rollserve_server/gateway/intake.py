"""Receives requests, so that together they take no more memory than is allowed."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import grpc.aio

from rollserve_server.errors import InvalidValueError, OverLimitError
from rollserve_server.pool import Turns

if TYPE_CHECKING:
    from rollserve_server.gateway.open_rpcs import OpenRpc

__all__ = ["Intake"]

_SMALL_BYTES = 4 << 20
"""Of requests that bring neither agents nor environments."""
_MOST_SMALL, _SMALL_PATIENCE_SECONDS = 2, 5.0
"""How many of these are received at the same time, which takes no time, and how long others wait for one that does."""
_PATIENCE_SECONDS = 30.0
"""The same for those that do."""
_LOOK_SECONDS = 1.0
_MOST_WAITING = 1 << 20
"""There are fewer RPCs."""


class Intake:
    """Receives requests.

    gRPC tells how large a request is when all of it is there, and takes it into memory as soon as somebody reads. So a
    large one is read only when there is room for the largest that may come.
    """

    def __init__(self, max_request_bytes: int, max_pending_bytes: int) -> None:
        """Begins without requests.

        Args:
            max_request_bytes: the largest that can come.
            max_pending_bytes: how much they may take together: a third while they are received, a third for updates
                that are worked on, and a third for evaluations that run. Each third is enough for the largest.
        """
        self._share = max(max_pending_bytes // 3, max_request_bytes)
        self._receiving = _Receiving(self._share // max_request_bytes, _PATIENCE_SECONDS)
        self._receiving_small = _Receiving(_MOST_SMALL, _SMALL_PATIENCE_SECONDS)
        self._num_updating = 0
        self._num_evaluating = 0
        self._updated = asyncio.Condition()

    async def small(self, rpc: OpenRpc) -> bytes:
        """A request that brings neither agents nor environments.

        Raises:
            OverLimitError: it is larger than any of them needs to be.
            InvalidValueError: none comes.
        """
        async with contextlib.AsyncExitStack() as stack:
            await self._receiving_small.wait(stack, rpc)
            data = await _read(rpc)
        if len(data) > _SMALL_BYTES:
            text = f"a request of {len(data)} bytes came, {_SMALL_BYTES} at most were expected"
            raise OverLimitError(text, reason="REQUEST_TOO_LARGE")
        return data

    @contextlib.asynccontextmanager
    async def update(self, rpc: OpenRpc) -> AsyncGenerator[bytes, None]:
        """The request of an update, for as long as the block. Waits for others where they are too large.

        Raises:
            InvalidValueError: none comes.
        """
        async with contextlib.AsyncExitStack() as stack:
            await self._receiving.wait(stack, rpc)
            data = await _read(rpc)
            async with self._updated:
                await self._updated.wait_for(lambda: self._num_updating + len(data) <= self._share)
                self._num_updating += len(data)
        try:
            yield data
        finally:
            self._num_updating -= len(data)
            async with self._updated:
                self._updated.notify_all()

    @contextlib.asynccontextmanager
    async def evaluation(self, rpc: OpenRpc) -> AsyncGenerator[bytes, None]:
        """The request of an evaluation, for as long as the block.

        Raises:
            OverLimitError: those that run have taken what they may.
            InvalidValueError: none comes.
        """
        async with contextlib.AsyncExitStack() as stack:
            await self._receiving.wait(stack, rpc)
            data = await _read(rpc)
        if self._num_evaluating + len(data) > self._share:
            came = f"a request of {len(data)} bytes came while evaluations hold {self._num_evaluating}"
            text = f"{came}, {self._share} at most were expected: try again when some have ended"
            raise OverLimitError(text, reason="TOO_MANY_REQUEST_BYTES")
        self._num_evaluating += len(data)
        try:
            yield data
        finally:
            self._num_evaluating -= len(data)


class _Receiving:
    """Turns for requests to be received: one at a time of each connection.

    So those that do not come are waited for by what comes through the same connection, and seldom by others.
    """

    def __init__(self, num_turns: int, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._all = self._turns(num_turns)
        self._of_peers: dict[str, Turns] = {}
        self._num_rpcs: Counter[str] = Counter()

    async def wait(self, stack: contextlib.AsyncExitStack, rpc: OpenRpc) -> None:
        """Waits until it is an RPC's turn, which ends with the stack."""
        own = self._of_peers.setdefault(rpc.peer, self._turns(1))
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
        return Turns(num_turns, _LOOK_SECONDS, max_stalled=0, max_waiting=_MOST_WAITING, patience_seconds=patience)


async def _read(rpc: OpenRpc) -> bytes:
    data = await rpc.read()
    if data is grpc.aio.EOF:
        raise InvalidValueError("the call ended before a request came")
    assert isinstance(data, bytes)  # noqa: S101
    return data
