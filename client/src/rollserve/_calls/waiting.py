"""Waiting of calls that block; `async_waiting` has the same names for asyncio."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue as Queue
from time import sleep
from typing import Any

import grpc

from rollserve._calls.watchdog import Watchdog
from rollserve_wire.errors import closed_error

__all__ = ["Queue", "Waiting", "answer_of", "sleep"]


def answer_of(method: Callable[..., Any], request: object, seconds: float | None) -> Any:
    """Call a method and return its answer."""
    return method(request, timeout=seconds)


class Waiting:
    """Waiting of a stream. Another thread may close it."""

    def __init__(self, timeout: float, owner: str = "stream") -> None:
        """Start without a call.

        Args:
            timeout: seconds to wait for a message.
            owner: what errors say was closed.
        """
        self._owner = owner
        self._closed = threading.Event()
        self._watchdog = Watchdog(timeout)

    @property
    def is_closed(self) -> bool:
        """Whether the stream was closed."""
        return self._closed.is_set()

    def message(self, call: Any) -> Any:
        """Return the next message of a call, or None after its last one.

        Raises:
            TimeoutError: there was none for the timeout.
            CancelledError: the stream was closed.
            grpc.RpcError: the call failed.
        """
        try:
            with self._watchdog.over(call):
                return next(call, None)
        except grpc.RpcError as error:
            if self._watchdog.expired:
                raise TimeoutError from None
            if self.is_closed and error.code() is grpc.StatusCode.CANCELLED:
                raise closed_error(self._owner) from None
            raise

    def pause(self, seconds: float) -> None:
        """Wait before the next call; raise CancelledError as soon as the stream is closed."""
        if self._closed.wait(seconds):
            raise closed_error(self._owner) from None

    def start(self, receive: Callable[[], None]) -> None:
        """Run a function beside its caller: in a thread."""
        threading.Thread(target=receive, name="rollserve-stream", daemon=True).start()

    def close(self, call: Any) -> None:
        """Cancel a call unless it is over, and what waits for it."""
        self._closed.set()
        call.cancel()

    def from_any_thread(self, function: Callable[[], object]) -> None:
        """Call a function, for an object that any thread may collect."""
        function()
