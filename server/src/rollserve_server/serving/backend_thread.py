"""The thread that starts and ends the backend, and the watch for its loss."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from rollserve_server.pool import Backend

__all__ = ["BackendThread", "watch_backend"]

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")

_LAST_SECONDS = 5.0
"""How long the server may take to end in order once its backend is lost."""


class BackendThread:
    """A thread of its own for the backend: whatever Ray starts ends with the thread that started it.

    Ray's functions cannot be interrupted, and may wait long for a cluster that is gone or out of reach. The process
    need not wait for them: when it ends, everything that Ray started for it ends, too.
    """

    def __init__(self) -> None:
        self._executor = _new_executor()
        self._last: concurrent.futures.Future[Any] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a call has not returned yet."""
        return self._last is not None and not self._last.done()

    def call(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> asyncio.Future[_T]:
        """Call a function in the thread, after all earlier calls."""
        self._last = future = self._executor.submit(function, *args, **kwargs)
        return asyncio.wrap_future(future)

    def renew(self) -> None:
        """End the thread, with what Ray has started there, and use another one."""
        self._executor.shutdown(wait=False)
        self._executor = _new_executor()


def watch_backend(backend: Backend, on_lost: Callable[[], None]) -> asyncio.Future[str]:
    """Return a future whose result is the reason once the backend is lost. Cancel it when the server stops.

    The process ends soon after a loss in any case: calls of a lost backend may never return, also in this process.

    Args:
        backend: the backend.
        on_lost: called at once from any thread, because Ray may end the process.
    """
    loop = asyncio.get_running_loop()
    lost: asyncio.Future[str] = loop.create_future()

    def settle(reason: str) -> None:
        if not lost.done():
            lost.set_result(reason)

    def report(reason: str) -> None:
        if lost.cancelled():
            return
        on_lost()
        _log.error("backend lost", extra={"error": reason})
        timer = threading.Timer(_LAST_SECONDS, _end_at_once)
        timer.daemon = True
        timer.start()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, reason)

    backend.watch(report)
    return lost


def _new_executor() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="backend")


def _end_at_once() -> None:
    logging.shutdown()
    os._exit(1)
