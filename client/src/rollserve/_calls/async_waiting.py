"""Waiting of calls under asyncio; `waiting` has the same names for calls that block."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import Queue, sleep
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import grpc.aio

from rollserve._calls.time_limits import countable
from rollserve_wire.errors import closed_error

__all__ = ["Queue", "Waiting", "answer_of", "sleep"]


async def answer_of(method: Callable[..., Any], request: object, seconds: float | None) -> Any:
    """Call a method and return its answer; raise CancelledError if the connection was closed meanwhile."""
    with _closed_unless_task_cancelled("sampler"):
        return await method(request, timeout=seconds)


class Waiting:
    """Waiting of a stream, in the event loop that runs when it is made."""

    def __init__(self, timeout: float, owner: str = "stream") -> None:
        """Start without a call.

        Args:
            timeout: seconds to wait for a message.
            owner: what errors say was closed.
        """
        self._timeout, self._owner = timeout, owner
        self._closed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_closed(self) -> bool:
        """Whether the stream was closed."""
        return self._closed.is_set()

    async def message(self, call: Any) -> Any:
        """Return the next message of a call, or None after its last one.

        Raises:
            TimeoutError: there was none for the timeout.
            CancelledError: the stream, or the connection, was closed.
            grpc.RpcError: the call failed.
        """
        with _closed_unless_task_cancelled(self._owner):
            message = await asyncio.wait_for(call.read(), countable(self._timeout))
        return None if message is grpc.aio.EOF else message

    async def pause(self, seconds: float) -> None:
        """Wait before the next call; raise CancelledError as soon as the stream is closed."""
        try:
            await asyncio.wait_for(self._closed.wait(), seconds)
        except TimeoutError:
            return
        raise closed_error(self._owner) from None

    def start(self, receive: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a function beside its caller: in a task."""
        self._task = self._loop.create_task(receive())

    def close(self, call: Any) -> None:
        """Cancel a call unless it is over, and what waits for it."""
        self._closed.set()
        call.cancel()

    def from_any_thread(self, function: Callable[[], object]) -> None:
        """Have a function called in the event loop, for an object that any thread may collect."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function)


@contextlib.contextmanager
def _closed_unless_task_cancelled(owner: str) -> Iterator[None]:
    """Turn asyncio's CancelledError into the error of a closed owner, unless it is this task that was cancelled.

    gRPC raises asyncio's CancelledError, too, where a call was cancelled.
    """
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling() > 0:
            raise
        raise closed_error(owner) from None
