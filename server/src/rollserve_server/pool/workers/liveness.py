"""Looks after workers: finds those that hang, and those that are gone before anybody needs them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollserve import Reason
from rollserve_server.activity import Phase
from rollserve_server.errors import WorkerLostError

if TYPE_CHECKING:
    from rollserve_server.activity import Heartbeat
    from rollserve_server.pool.backends.backend import WorkerHandle

__all__ = ["TimeLimits", "wait_for_loss"]

_LOOKS = 4
"""In the time of the shortest limit: what hangs is found when that time and a quarter more are over."""
_LONGEST_PAUSE_SECONDS = 15.0


@dataclass(frozen=True)
class TimeLimits:
    """How long pieces of a worker's work may take.

    Attributes:
        step_seconds: a step of a row, or of all rows that are stepped at once; an action of an agent.
        reset_seconds: everything else: a reset, making an environment or an agent, closing an environment.
    """

    step_seconds: float = 30.0
    reset_seconds: float = 300.0

    @property
    def longest_seconds(self) -> float:
        """The longest of them."""
        return max(self.step_seconds, self.reset_seconds)

    @property
    def pause_seconds(self) -> float:
        """How long to wait between two looks at a worker."""
        return min(self.step_seconds / _LOOKS, self.reset_seconds / _LOOKS, _LONGEST_PAUSE_SECONDS)

    def of(self, phase: Phase) -> float | None:
        """How long a piece of work of this kind may take; None for as long as it likes."""
        if phase is Phase.IDLE:
            return None
        return self.step_seconds if phase in (Phase.STEP, Phase.ACTION) else self.reset_seconds


async def wait_for_loss(index: int, worker: WorkerHandle, limits: TimeLimits) -> WorkerLostError:
    """Waits until a worker hangs or is gone; returns which, and what it was doing.

    One that works on, however slowly, is left alone: its activity changes. Time is counted in looks, so that a worker is
    not blamed for a time in which this process stood still itself.

    Args:
        index: the worker's number.
        worker: the worker, which has started.
        limits: how long a piece of work may take. No answer at all, because the process is stopped or code that hangs
            lets no other thread run, means that it hangs after the longest of them.
    """
    pause, last, still_seconds = limits.pause_seconds, None, 0.0
    while True:
        await asyncio.sleep(pause)
        try:
            heartbeat, silent_seconds = await _look(worker, pause, limits.longest_seconds)
        except WorkerLostError as error:
            return error
        if heartbeat is None:
            return _hung(index, f"it gave no sign of life for {limits.longest_seconds:g} s")
        still_seconds = still_seconds + pause + silent_seconds if heartbeat == last else 0.0
        last, limit = heartbeat, limits.of(heartbeat.phase)
        if limit is not None and still_seconds >= limit:
            return _hung(index, f"{heartbeat.text} took more than {limit:g} s")


async def _look(worker: WorkerHandle, pause: float, most_seconds: float) -> tuple[Heartbeat | None, float]:
    """What a worker is doing, or None if it does not tell for too long; and how long it took to tell."""
    asked = asyncio.ensure_future(worker.heartbeat())
    seconds = 0.0
    try:
        while not (await asyncio.wait({asked}, timeout=pause))[0]:
            seconds += pause
            if seconds >= most_seconds:
                return None, seconds
        return asked.result(), seconds
    finally:
        asked.cancel()


def _hung(index: int, text: str) -> WorkerLostError:
    return WorkerLostError(f"worker {index} hung: {text}", index, reason=Reason.WORKER_HUNG)
