"""Bytes of a file at many places, read with few calls."""

from __future__ import annotations

import io
import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FileBytes", "FileRegion"]

_MAX_REGION_BYTES = 1 << 27
_MAX_GAP = 32
"""How many times as many bytes as asked for are read at once, rather than one by one."""


class FileBytes:
    """File whose bytes are read, and not mapped: a mapped file that somebody cuts off would end the process.

    Attributes:
        size: number of bytes when it was opened.
        close: closes the file.

    Raises:
        OSError: no such file.
    """

    def __init__(self, path: Path) -> None:
        self._file = io.FileIO(path)
        self.close = weakref.finalize(self, self._file.close)
        self.size = os.fstat(self._file.fileno()).st_size

    def read_into(self, array: NDArray[np.uint8], place: int) -> None:
        """Fill an array with the bytes at a place; raise ValueError if the file ends before."""
        self._file.seek(place)
        done = 0
        while done < len(array):
            count = self._file.readinto(array[done:].data)
            if not count:
                raise ValueError(mismatch(f"a file of {self.size} bytes", "one that is cut off"))
            done += count


class FileRegion:
    """Parts of a file that are read at once; bytes at other places are read one by one.

    Args:
        file: the file.
        starts: (N,), where parts begin, ascending.
        ends: (N,), where they end; parts that overlap end where the next begins. What is beyond 128 MiB in all is left
            out.

    Attributes:
        file: the file.
    """

    def __init__(self, file: FileBytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        self.file = file
        ends = np.append(np.minimum(ends[:-1], starts[1:]), ends[-1:])
        begins = np.flatnonzero(np.append(len(starts) > 0, starts[1:] != ends[:-1]))  # parts that touch are one
        lasts = np.append(begins[1:], len(ends))[: len(begins)] - 1
        starts, ends = starts[begins], ends[lasts]
        sizes = np.diff(np.minimum(np.cumsum(ends - starts), _MAX_REGION_BYTES), prepend=0)
        self._starts, self._sizes, self._offsets = starts, sizes, np.cumsum(sizes) - sizes
        self._content = np.empty(int(sizes.sum()), np.uint8)
        for start, size, offset in zip(starts.tolist(), sizes.tolist(), self._offsets.tolist(), strict=True):
            file.read_into(self._content[offset : offset + size], start)

    def rows(self, places: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
        """Return `size` bytes at each place of the file, (N, size); zeros for places that are not in it."""
        offsets = self.offsets(places, np.full(len(places), size))
        rows = np.zeros((len(places), size), np.uint8)
        is_here = offsets >= 0
        if is_here.any():
            windows = np.lib.stride_tricks.sliding_window_view(self._content, size)
            rows[is_here] = windows[offsets[is_here]]
        others = np.flatnonzero(~is_here & (places >= 0) & (places <= self.file.size - size))
        if len(others) > 1:
            first, last = int(places[others].min()), int(places[others].max())
            if last + size - first <= min(_MAX_GAP * size * len(others), _MAX_REGION_BYTES):
                near = FileRegion(self.file, np.array([first]), np.array([last + size]))
                rows[others] = near.rows(places[others], size)
                return rows
        for row in others.tolist():
            self.file.read_into(rows[row], int(places[row]))
        return rows

    def offsets(self, places: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where bytes of the file are in the region, an offset for each place; -1 where not all of them are."""
        if not len(self._starts):
            return np.full(places.shape, -1)
        parts = np.maximum(np.searchsorted(self._starts, places, side="right") - 1, 0)
        within = places - self._starts[parts]
        is_here = (within >= 0) & (sizes >= 0) & (sizes <= self._sizes[parts] - within)
        offsets: NDArray[np.int64] = np.where(is_here, self._offsets[parts] + within, -1)
        return offsets

    def array(self, place: int, size: int, offset: int) -> NDArray[np.uint8]:
        """Return bytes of the file, given their offset in the region: a view of it, or new ones if this is -1.

        Raises:
            ValueError: the file was cut off.
        """
        if offset >= 0:
            return self._content[offset : offset + size]
        array = np.empty(size, np.uint8)
        self.file.read_into(array, place)
        return array
