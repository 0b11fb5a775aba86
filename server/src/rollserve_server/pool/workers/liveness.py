"""Liveness: finds workers that hang or take too much memory, and ones that are gone before anybody needs them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rollserve_server.activity import Phase
from rollserve_server.errors import WorkerLostError, describe
from rollserve_wire.errors import mismatch
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from rollserve_server.activity import Heartbeat
    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.settings import HealthSettings


__all__ = ["wait_for_loss"]

_LOOKS = 4
"""Looks within the shorter limit: a worker that hangs is found after at most 1.25 times its limit."""
_MAX_PAUSE_SECONDS = 15.0


async def wait_for_loss(index: int, worker: WorkerHandle, health: HealthSettings) -> WorkerLostError:
    """Wait until a worker hangs, takes too much memory, or is gone; return the error that says what it was doing.

    A worker that makes progress, however slowly, is left alone: its heartbeats differ. Time is counted in looks, so
    that a worker is not blamed for a time in which this process itself stood still.

    Args:
        index: index of the worker.
        worker: the worker, which has started.
        health: limits for a piece of work. A worker that does not answer at all, because its process is stopped or
            native code lets no other thread run, hangs after the longest of them.
    """
    max_seconds = max(health.step_seconds, health.reset_seconds)
    pause = min(health.step_seconds / _LOOKS, health.reset_seconds / _LOOKS, _MAX_PAUSE_SECONDS)
    last, still_seconds = None, 0.0
    while True:
        await asyncio.sleep(pause)
        try:
            heartbeat, silent_seconds = await _look(worker, pause, max_seconds)
        except WorkerLostError as error:
            return error
        except Exception as error:  # whatever it is: nobody else would find a worker that cannot be watched
            return WorkerLostError(f"worker {index} is lost: it cannot be watched: {describe(error)}", index)
        if heartbeat is None:
            return _hung(index, f"it gave no sign of life for {max_seconds:g} s")
        if heartbeat.takes_too_much_memory:
            return _too_large(index, heartbeat)
        still_seconds = still_seconds + pause + silent_seconds if heartbeat == last else 0.0
        last, limit = heartbeat, _limit(health, heartbeat.phase)
        if limit is not None and still_seconds >= limit:
            return _hung(index, f"{heartbeat.text} took more than {limit:g} s", heartbeat.episode)


def _limit(health: HealthSettings, phase: Phase) -> float | None:
    """Return how long a piece of work of this kind may take; None for any time."""
    if phase is Phase.IDLE:
        return None
    return health.step_seconds if phase in (Phase.STEP, Phase.ACTION) else health.reset_seconds


async def _look(worker: WorkerHandle, pause: float, max_seconds: float) -> tuple[Heartbeat | None, float]:
    """Return the worker's heartbeat, or None if it does not answer in time; and how long the answer took."""
    asked = asyncio.ensure_future(worker.heartbeat())
    seconds = 0.0
    try:
        while not (await asyncio.wait({asked}, timeout=pause))[0]:
            seconds += pause
            if seconds >= max_seconds:
                return None, seconds
        return asked.result(), seconds
    finally:
        asked.cancel()


def _too_large(index: int, heartbeat: Heartbeat) -> WorkerLostError:
    expected = f"at most {heartbeat.max_memory_bytes} bytes of its own (--worker-max-memory-bytes)"
    got = f"{heartbeat.memory_bytes} in {heartbeat.text}"
    text = f"worker {index} took too much memory: {mismatch(expected, got)}"
    return WorkerLostError(text, index, reason=Reason.WORKER_OUT_OF_MEMORY)


def _hung(index: int, text: str, episode: int | None = None) -> WorkerLostError:
    return WorkerLostError(f"worker {index} hung: {text}", index, reason=Reason.WORKER_HUNG, episode_index=episode)
