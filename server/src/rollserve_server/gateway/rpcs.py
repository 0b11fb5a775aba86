"""RPCs that are being answered: each can be ended from outside, and is if its client keeps it waiting for too long."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
from collections.abc import AsyncGenerator, Awaitable, Generator
from typing import Any

import grpc.aio

from rollserve import Reason
from rollserve_server.errors import ClientStalledError, DomainError, OverLimitError
from rollserve_server.futures import ignore_result
from rollserve_server.gateway.errors import abort, abort_unexpected

__all__ = ["OpenRpc", "OpenRpcs"]

_MOST_STUCK_BYTES = 256 << 20
"""Of messages that gRPC keeps for clients who do not take them although their calls have ended: it lets go of them only
with the connection."""

_GONE_SECONDS = 5.0
"""How long gRPC may take to cancel the call of a client that has left, once a message to it has failed."""


class OpenRpc:
    """An RPC that is being answered.

    Attributes:
        peer: whose connection it came through.
        stalled_since: since when it waits for its client (`time.monotonic`); None while it does not.
        num_stuck_bytes: of the message that its client has not taken.
    """

    def __init__(self, context: Any, stall_seconds: float) -> None:
        """Takes gRPC's side of it, and how long it may wait for its client at a time."""
        self.peer: str = context.peer()
        self.stalled_since: float | None = None
        self.num_stuck_bytes = 0
        self._context = context
        self._stall_seconds = stall_seconds
        self._scope = asyncio.timeout(None)
        self._is_open = False
        self._beginning: asyncio.Future[None] | None = None
        self._error: DomainError | None = None

    @contextlib.asynccontextmanager
    async def answering(self) -> AsyncGenerator[None, None]:
        """For as long as the block the RPC can be ended.

        Raises:
            DomainError: what it was ended with.
        """
        try:
            async with self._scope:
                self._is_open = True
                try:
                    yield
                finally:
                    self._is_open = False
        except TimeoutError:
            if not self._scope.expired():
                raise
            raise self._error or ClientStalledError(
                f"the client left the call waiting for {self._stall_seconds:g} s"
            ) from None

    def end(self, error: DomainError) -> None:
        """Ends it with an error, unless it has ended. May be called again."""
        if self._is_open and self._error is None and not self._scope.expired():
            self._error = error
            self._scope.reschedule(asyncio.get_running_loop().time())

    @contextlib.contextmanager
    def waiting(self) -> Generator[None, None, None]:
        """Tells that the block waits for the client."""
        self.stalled_since = time.monotonic()
        self._allow(self._stall_seconds)
        try:
            yield
        finally:
            self.stalled_since = None
            self._allow(None)

    async def read(self) -> Any:
        """What the client sends next."""
        with self.waiting():
            return await _unless_gone(self._context.read())

    async def write(self, message: bytes) -> None:
        """Sends a message, as soon as the client takes it."""
        self.num_stuck_bytes = len(message)
        with self.waiting():
            if self._beginning is None:
                self._beginning = asyncio.ensure_future(self._context.send_initial_metadata(()))
                self._beginning.add_done_callback(ignore_result)  # when the client leaves, nobody may await it any more
            await _unless_gone(asyncio.shield(self._beginning))
            await _unless_gone(self._context.write(message))
        self.num_stuck_bytes = 0

    async def begun(self) -> None:
        """Waits until what comes before the first message is on its way, if there is one.

        With the first message, or while it is sent, gRPC would send it again with the status of a call that is ended,
        and fail.
        """
        if self._beginning is not None:
            await asyncio.wait({self._beginning})

    def _allow(self, seconds: float | None) -> None:
        if self._error is None and self._is_open and not self._scope.expired():
            self._scope.reschedule(None if seconds is None else asyncio.get_running_loop().time() + seconds)


class OpenRpcs:
    """All RPCs that are being answered."""

    def __init__(self, stall_seconds: float) -> None:
        """Takes how long each may wait for its client at a time."""
        self._stall_seconds = stall_seconds
        self._rpcs: set[OpenRpc] = set()
        self._none_left = asyncio.Event()
        self._num_stuck_bytes = 0

    @contextlib.asynccontextmanager
    async def open(self, context: Any, *, is_awaited: bool = True) -> AsyncGenerator[OpenRpc, None]:
        """An RPC, for as long as the block. Its errors are made into statuses.

        Args:
            context: gRPC's side of it.
            is_awaited: whether a server that stops waits for its end, and ends it.
        """
        rpc = OpenRpc(context, self._stall_seconds)
        if is_awaited:
            self._rpcs.add(rpc)
        try:
            try:
                async with rpc.answering():
                    yield rpc
            except DomainError as error:
                with self._stuck(rpc):
                    await rpc.begun()
                    await abort(context, error)
            except Exception as error:  # nothing unforeseen may reach the client
                with self._stuck(rpc):
                    await rpc.begun()
                    await abort_unexpected(context, error)
        finally:
            self._rpcs.discard(rpc)
            if not self._rpcs:
                self._none_left.set()

    def end(self, error: DomainError) -> None:
        """Ends all that are awaited with an error."""
        for rpc in list(self._rpcs):
            rpc.end(copy.copy(error))

    async def wait_until_none(self, seconds: float) -> None:
        """Waits until there are none that are awaited, or for so long."""
        deadline = time.monotonic() + seconds
        while self._rpcs:
            self._none_left.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._none_left.wait(), max(deadline - time.monotonic(), 0))
            if time.monotonic() >= deadline:
                return

    def check_stuck(self) -> None:
        """Raises OverLimitError if clients leave so much to gRPC that no more streams may begin."""
        if self._num_stuck_bytes > _MOST_STUCK_BYTES:
            text = f"{self._num_stuck_bytes} bytes of calls that have ended wait for clients that do not take them"
            raise OverLimitError(
                f"{text}, {_MOST_STUCK_BYTES} at most were expected", reason=Reason.TOO_MANY_STALLED_CALLS
            )

    @contextlib.contextmanager
    def _stuck(self, rpc: OpenRpc) -> Generator[None, None, None]:
        """Counts what gRPC keeps for the client until it hears of the end."""
        self._num_stuck_bytes += rpc.num_stuck_bytes
        try:
            yield
        finally:
            self._num_stuck_bytes -= rpc.num_stuck_bytes


async def _unless_gone(operation: Awaitable[Any]) -> Any:
    """What an operation of gRPC's returns. If it fails because the client has left, gRPC cancels who awaits it."""
    try:
        return await operation
    except grpc.aio.InternalError:
        await asyncio.sleep(_GONE_SECONDS)
        raise
