"""How much memory, and room on the disk, the steps of a call may take in a worker."""

from __future__ import annotations

import shutil
import tempfile
from typing import TYPE_CHECKING

from rollserve_server.machine import memory_bytes, num_cores

if TYPE_CHECKING:
    from rollserve_server.settings import WorkerSettings

__all__ = ["buffer_bytes", "spill_bytes"]

_MEMORY_SHARE = 16
"""Part of the machine's memory that the workers' buffers for one call may take: 1 in so many."""

_MIN_BYTES, _MAX_BYTES = 96 << 20, 1 << 30
"""Bounds for a worker's share of that part."""

_DISK_SHARE = 2
"""Part of the free disk that the workers' temporary files for one call may take: 1 in so many."""


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
