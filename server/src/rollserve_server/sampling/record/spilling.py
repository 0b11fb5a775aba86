"""Full buffers of a fragment call: in memory up to a bound, beyond it in temporary files."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve_server.sampling.record.columns import ColumnBuffer

__all__ = ["Spill", "SpillError"]

_FILE_BYTES = 256 << 20
"""Size of a temporary file, as far as buffers are not larger: each takes a file descriptor, and is freed as a whole."""

_ALIGNMENT = 64


class SpillError(Exception):
    """A temporary file cannot be written."""


class Spill:
    """Keeps full buffers in memory up to a bound, and moves others to temporary files.

    The files have no names: nothing is left of them when the process ends, however it does. They are written by system
    calls, so that a full disk is an error, and read through memory maps.
    """

    def __init__(self, memory_bytes: int) -> None:
        """Start without buffers; those in memory may take `memory_bytes`."""
        self._memory_bytes = memory_bytes
        self._held_bytes = 0
        self._file: _File | None = None

    def begin_call(self) -> None:
        """Begin another file for the next call: a file is freed with the last buffer in it."""
        self._file = None

    def keep(self, buffer: ColumnBuffer, num_steps: int) -> None:
        """Keep the first `num_steps` steps of a buffer, which does not change any more, where there is room for them.

        Raises:
            SpillError: the buffer has to move to a file, which cannot be written.
        """
        num_bytes = buffer.num_bytes(num_steps)
        if self._held_bytes + num_bytes <= self._memory_bytes:
            self._held_bytes += num_bytes
            weakref.finalize(buffer, self._free, num_bytes)
            return
        try:
            buffer.move(num_steps, self._write)
        except OSError as error:
            raise SpillError(f"{tempfile.gettempdir()}: {error.strerror}") from error

    def _free(self, num_bytes: int) -> None:
        self._held_bytes -= num_bytes

    def _write(self, array: np.ndarray) -> np.ndarray:
        if self._file is None or not self._file.has_room(array.nbytes):
            self._file = _File(max(array.nbytes, _FILE_BYTES))
        return self._file.append(array)


class _File:
    """A temporary file of a fixed size; only what is written occupies the disk."""

    def __init__(self, num_bytes: int) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # closed by the next line
        weakref.finalize(self, self._file.close)
        self._file.truncate(num_bytes)
        self._memory = mmap.mmap(self._file.fileno(), num_bytes, access=mmap.ACCESS_READ)
        self._stop, self._num_bytes = 0, num_bytes

    def has_room(self, num_bytes: int) -> bool:
        return self._stop + num_bytes <= self._num_bytes

    def append(self, array: np.ndarray) -> np.ndarray:
        """Write an array behind the others, and return it as it is in the file."""
        start = self._stop
        # Parts, so that only small ones are copied to be contiguous.
        for part in [array] if array.flags.c_contiguous else array:
            self._write(np.ascontiguousarray(part).reshape(-1).view(np.uint8))
        self._stop += -self._stop % _ALIGNMENT
        return np.ndarray(array.shape, array.dtype, self._memory, start)

    def _write(self, data: NDArray[np.uint8]) -> None:
        view = data.data
        while len(view):
            num_written = os.pwrite(self._file.fileno(), view, self._stop)
            view, self._stop = view[num_written:], self._stop + num_written
