"""Watchdog that cancels calls from which nothing arrives for too long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

__all__ = ["Watchdog"]


class _Call(Protocol):
    def cancel(self) -> object: ...


class Watchdog:
    """Watchdog of one stream: cancels its call as soon as a block takes longer than `timeout` seconds.

    One thread watches the blocks of all watchdogs, because starting one for each would take longer than a short call.
    The thread refers to a call only while a block runs, so that an abandoned stream can be garbage-collected, and ends
    when there is nothing to watch.

    Attributes:
        expired: whether the watchdog has cancelled a call.
    """

    def __init__(self, timeout: float) -> None:
        self.expired = False
        self._timeout = timeout

    @contextmanager
    def over(self, call: _Call) -> Iterator[None]:
        """Watch a block that waits for a call."""
        if self._timeout > threading.TIMEOUT_MAX:
            yield
            return
        _watch.add(self, call, time.monotonic() + self._timeout)
        try:
            yield
        finally:
            _watch.remove(self)


class _Watch:
    """Blocks that are running, and the thread that watches them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._blocks: dict[Watchdog, tuple[_Call, float]] = {}
        self._thread: threading.Thread | None = None
        self._wakes_at = 0.0

    def add(self, watchdog: Watchdog, call: _Call, until: float) -> None:
        with self._changed:
            self._blocks[watchdog] = call, until
            if self._thread is None or not self._thread.is_alive():
                self._wakes_at = until
                self._thread = threading.Thread(target=self._run, name="rollserve-watchdog", daemon=True)
                self._thread.start()
            elif until < self._wakes_at:
                self._changed.notify()

    def remove(self, watchdog: Watchdog) -> None:
        with self._changed:
            self._blocks.pop(watchdog, None)

    def _run(self) -> None:
        while True:
            self._cancel_late()
            with self._changed:
                if not self._blocks:
                    self._thread = None
                    return
                self._wakes_at = min(until for _, until in self._blocks.values())
                self._changed.wait(max(self._wakes_at - time.monotonic(), 0))

    def _cancel_late(self) -> None:
        with self._changed:
            now = time.monotonic()
            late = [(watchdog, call) for watchdog, (call, until) in self._blocks.items() if until <= now]
            for watchdog, _ in late:
                watchdog.expired = True
                del self._blocks[watchdog]
        for _, call in late:
            with suppress(Exception):  # whatever it is: the thread watches other calls, too
                call.cancel()


_watch = _Watch()
