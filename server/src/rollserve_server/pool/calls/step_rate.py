"""Limit of a pool's steps per second: calls that would be faster wait before their next orders."""

from __future__ import annotations

import asyncio
import time

__all__ = ["StepRate"]

_MAX_BURST_SECONDS = 0.25
"""Time whose steps may be made at once: orders are as short as that asks for, and unused time counts no longer."""
_MIN_SLICE_SECONDS = 0.0005


class StepRate:
    """A token bucket over the steps of all calls of a pool.

    Steps are counted when a worker has reported them. Orders wait until the steps so far are paid for, so the mean rate
    is kept, and single orders may exceed it.

    Attributes:
        is_limited: whether there is a limit.
    """

    def __init__(self, steps_per_second: float) -> None:
        """Start with all steps paid for.

        Args:
            steps_per_second: the limit; 0 for none.
        """
        self.is_limited = steps_per_second > 0
        self._steps_per_second = steps_per_second
        self._paid_at = 0.0

    @property
    def is_exhausted(self) -> bool:
        """Whether orders have to wait."""
        return self.is_limited and self._paid_at > time.monotonic()

    def count(self, num_steps: int) -> None:
        """Record steps."""
        if self.is_limited:
            start = max(self._paid_at, time.monotonic() - _MAX_BURST_SECONDS)
            self._paid_at = start + num_steps / self._steps_per_second

    async def paid(self) -> None:
        """Wait until an order may be given, unless other orders exceed the rate meanwhile."""
        await asyncio.sleep(max(self._paid_at - time.monotonic(), 0.0))

    def slice_seconds(self, seconds: float, num_workers: int, worker_steps_per_second: float) -> float:
        """Return how long an order may take.

        Args:
            seconds: time without a limit.
            num_workers: number of workers that have orders at the same time.
            worker_steps_per_second: speed of the worker; 0 if it is not known.
        """
        if not self.is_limited:
            return seconds
        share = self._steps_per_second * _MAX_BURST_SECONDS / num_workers
        allowed = share / worker_steps_per_second if worker_steps_per_second else 0.0
        return min(seconds, max(allowed, _MIN_SLICE_SECONDS))
