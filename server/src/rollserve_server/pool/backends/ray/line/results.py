"""Memory for results, which the server reads where the worker has written them."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rollserve_server.pool.backends.ray.line.frames import Place

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["INLINE_BYTES", "ResultMemory"]

INLINE_BYTES = 64 << 10
"""Size up to which a result travels on the line itself: copying it costs less than mapping memory."""

_NAME = "rollserve-results"
_MIN_REGION_BYTES = 1 << 20


class ResultMemory:
    """Regions of memory that a worker writes results into, one in each, and again once the server has read them.

    They have no path, and exist until the last process closes them.
    """

    def __init__(self, *, keeps: bool) -> None:
        """Start without regions; `keeps` says whether regions are kept for later results."""
        self._keeps = keeps
        self._num_regions = 0
        self._idle: list[_Region] = []
        self._lent: dict[int, _Region] = {}
        # The last buffer, and its region, which nobody has sent yet.
        self._written: tuple[NDArray[np.uint8], _Region] | None = None

    def new_buffer(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return an array of `num_bytes` bytes to write a result into, in a region if the result is large."""
        if num_bytes <= INLINE_BYTES:
            return np.empty(num_bytes, np.uint8)
        if self._written is not None:  # an error came between
            self._idle.append(self._written[1])
        region = self._take(num_bytes)
        self._written = region.memory[:num_bytes], region
        return self._written[0]

    def lend(self, buffer: NDArray[np.uint8]) -> tuple[Place, int | None] | None:
        """Lend the region of a buffer to the server.

        Returns:
            The place, and the region's file descriptor if the server does not know it yet, which the caller closes;
            None for a small buffer.
        """
        if self._written is None or self._written[0] is not buffer:
            return None
        (_, region), self._written = self._written, None
        self._lent[region.number] = region._replace(descriptor=None)
        return Place(region.number, len(buffer), self._keeps), region.descriptor

    def release(self, number: int) -> None:
        """Record that the server has read a region."""
        self._idle.append(self._lent.pop(number))

    def drop(self, number: int) -> None:
        """Free a region that the server has read."""
        del self._lent[number]

    def _take(self, num_bytes: int) -> _Region:
        """Return the smallest idle region of this size, or a new one."""
        fitting = [region for region in self._idle if len(region.memory) >= num_bytes]
        if fitting:
            region = min(fitting, key=lambda region: len(region.memory))
            self._idle.remove(region)
            return region
        num_region_bytes = _region_bytes(num_bytes)
        descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        os.ftruncate(descriptor, num_region_bytes)
        self._num_regions += 1
        memory = np.frombuffer(mmap.mmap(descriptor, num_region_bytes), np.uint8)
        return _Region(self._num_regions, memory, descriptor)


def _region_bytes(num_bytes: int) -> int:
    """Return the size of a region for a result: up to half as large again, so that regions fit other results."""
    unit = max(1 << (num_bytes - 1).bit_length() - 2, _MIN_REGION_BYTES)
    return -(-num_bytes // unit) * unit


class _Region(NamedTuple):
    """A region; its file descriptor is None once the server has it."""

    number: int
    memory: NDArray[np.uint8]
    descriptor: int | None
