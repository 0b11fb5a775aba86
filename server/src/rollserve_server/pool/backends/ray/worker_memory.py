"""The memory of a worker's own process: what it may take, and what happens between two looks at it."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from rollserve_server.machine import data_bytes, memory_bytes, num_cores

if TYPE_CHECKING:
    from rollserve_server.settings import WorkerSettings

__all__ = ["limit_allocations", "max_memory_bytes"]

_MIN_BYTES = 4 << 30
_ROOM_BYTES = 1 << 30
"""Room for memory that libraries with many threads reserve and do not use."""


def max_memory_bytes(settings: WorkerSettings) -> int:
    """Return the memory that a worker of this machine may take for itself; 0 for any."""
    if settings.worker_max_memory_bytes is not None:
        return settings.worker_max_memory_bytes
    return min(max(memory_bytes() // num_cores(), _MIN_BYTES), memory_bytes() // 4 * 3)


def limit_allocations(max_bytes: int) -> None:
    """Let allocations of this process fail that would take it far beyond its memory before the pool looks at it.

    Args:
        max_bytes: memory that the process may take; 0 for any.
    """
    # Only the soft limit: child processes have limits of their own, which may be higher.
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = data_bytes() + max_bytes + max_bytes // 4 + _ROOM_BYTES if max_bytes else hard
    resource.setrlimit(resource.RLIMIT_DATA, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
