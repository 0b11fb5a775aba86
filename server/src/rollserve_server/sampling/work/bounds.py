"""Bounds of work: the time of a slice, and the memory and disk that steps may take."""

from __future__ import annotations

import shutil
import tempfile
import time
from typing import TYPE_CHECKING, Any

from rollserve_server.machine import memory_bytes, num_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rollserve_server.sampling.collect.collector import EpisodeCollector
    from rollserve_server.sampling.collect.populations import PopulationCollector
    from rollserve_server.settings import WorkerSettings

__all__ = ["buffer_bytes", "run_slice", "spill_bytes"]

_MEMORY_SHARE = 16
"""Part of the machine's memory that the workers' buffers for one call may take: 1 in so many."""

_MIN_BYTES, _MAX_BYTES = 96 << 20, 1 << 30
"""Bounds for a worker's share of that part."""

_DISK_SHARE = 2
"""Part of the free disk that the workers' temporary files for one call may take: 1 in so many."""


def run_slice(
    collector: EpisodeCollector[Any] | PopulationCollector,
    begin: Callable[[], bool],
    seconds: float,
    is_stopped: Callable[[], bool],
    is_urgent: Callable[[], bool],
    *,
    ends_dry: bool = True,
) -> Iterator[Sequence[Any]]:
    """Yield what ends with each step, until the time is over, nothing runs, or rows become idle and nothing waits.

    Args:
        collector: steps the rows.
        begin: begins episodes that wait, before each step; returns whether there are rows to step.
        seconds: upper bound for the time; if anything runs, at least one step is made.
        is_stopped: called before each step; ends the slice when it returns True.
        is_urgent: called after each step; ends the slice when it returns True.
        ends_dry: whether the slice ends when rows become idle and nothing waits, because there may be more to begin.

    Raises:
        AgentFailedError: the agent failed.
    """
    until = time.perf_counter() + seconds
    had_waiting = ends_dry and collector.num_waiting > 0
    num_failures = collector.attempts.num_failures
    while not is_stopped():
        ended: Sequence[Any] = ()
        if begin():
            ended = collector.step()
        elif collector.attempts.num_failures == num_failures:  # else a reset failed, and the next may succeed
            return
        num_failures = collector.attempts.num_failures
        yield ended
        ran_dry = ended and had_waiting and not collector.num_waiting
        if ran_dry or time.perf_counter() >= until or is_urgent():
            return


def buffer_bytes(settings: WorkerSettings) -> int:
    """Return the bytes of steps that a worker may hold in memory for a call."""
    if settings.worker_buffer_bytes is not None:
        return settings.worker_buffer_bytes
    return min(max(memory_bytes() // (_MEMORY_SHARE * num_cores()), _MIN_BYTES), _MAX_BYTES)


def spill_bytes(settings: WorkerSettings) -> int:
    """Return the bytes of steps that a worker may write to temporary files for a call."""
    if settings.worker_spill_bytes is not None:
        return settings.worker_spill_bytes
    return shutil.disk_usage(tempfile.gettempdir()).free // (_DISK_SHARE * num_cores())
