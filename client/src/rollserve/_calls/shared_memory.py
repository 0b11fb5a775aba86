"""Messages in memory that a server on the same machine shares."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import numpy as np

from rollserve_wire.errors import mismatch

if sys.platform == "linux":
    import fcntl
    import mmap

if TYPE_CHECKING:
    from rollserve_wire.v1.episode_batch_pb2 import SharedMemory, SharedMessage

__all__ = ["SharedRing"]

# The link of a server's memory in /proc. No other file is ever opened, whatever a server offers.
_NAME = "/memfd:rollserve (deleted)"
_NUM_WORDS = 3
_NONCE, _ECHO, _NUM_RELEASED = range(_NUM_WORDS)


class SharedRing:
    """Memory that holds the messages of one stream."""

    def __init__(self, memory: np.ndarray) -> None:
        """Accept memory that has the right nonce, which tells the server that the client reads it."""
        self._memory = memory
        self._words = memory[: 8 * _NUM_WORDS].view("<u8")
        self._words[_ECHO] = self._words[_NONCE]

    @classmethod
    def attach(cls, offer: SharedMemory) -> SharedRing | None:
        """Map the memory that a server offers; None if the server runs elsewhere or belongs to another user."""
        if sys.platform != "linux":
            return None
        path = f"/proc/{offer.process_id}/fd/{offer.file_descriptor}"
        try:
            if os.readlink(path) != _NAME:
                return None
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            is_same = os.readlink(f"/proc/self/fd/{descriptor}") == _NAME  # the link may have changed before `open`
            is_sealed = is_same and fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
            if not is_sealed or os.fstat(descriptor).st_size != offer.size or offer.size < 8 * _NUM_WORDS:
                return None
            memory = np.frombuffer(mmap.mmap(descriptor, offer.size), np.uint8)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return cls(memory) if memory[:8].view("<u8")[_NONCE] == offer.nonce else None

    def read(self, message: SharedMessage) -> memoryview:
        """Return a view of a message, which is valid until `release`.

        Raises:
            ValueError: a message beyond the memory.
        """
        start, stop = message.offset, message.offset + message.size
        if not 8 * _NUM_WORDS <= start <= stop <= len(self._memory):
            expected = f"a message in shared memory of {len(self._memory)} bytes"
            raise ValueError(f"shared: {mismatch(expected, f'one from {start} to {stop}')}")
        return self._memory[start:stop].data.toreadonly()

    def release(self) -> None:
        """Allow the server to overwrite the message that was read last, and all messages before it."""
        self._words[_NUM_RELEASED] += np.uint64(1)
