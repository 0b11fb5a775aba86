"""Memory of a server on the same machine that messages are read from."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import numpy as np

if sys.platform == "linux":
    import fcntl
    import mmap

if TYPE_CHECKING:
    from rollserve.v1.episode_batch_pb2 import SharedMemory, SharedMessage

__all__ = ["SharedRing"]

_NAME = "/memfd:rollserve (deleted)"
"""What the system calls a server's memory. No other file is ever opened, whatever a server says."""
_NUM_WORDS = 3
_NONCE, _ECHO, _NUM_RELEASED = range(_NUM_WORDS)


class SharedRing:
    """The memory that the messages of one stream go through."""

    def __init__(self, memory: np.ndarray) -> None:
        """Takes the memory, which has the right nonce, and tells the server that it is read."""
        self._memory = memory
        self._words = memory[: 8 * _NUM_WORDS].view("<u8")
        self._words[_ECHO] = self._words[_NONCE]

    @classmethod
    def attach(cls, offer: SharedMemory) -> SharedRing | None:
        """What a server offers; None if it cannot be had, because the server runs elsewhere or is somebody else's."""
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
            is_same = os.readlink(f"/proc/self/fd/{descriptor}") == _NAME  # it may have become another meanwhile
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
        """The bytes of a message, where they stand until it is released.

        Raises:
            ValueError: it is not there.
        """
        start, stop = message.offset, message.offset + message.size
        if not 8 * _NUM_WORDS <= start <= stop <= len(self._memory):
            raise ValueError(f"a message from {start} to {stop} came, in shared memory of {len(self._memory)} bytes")
        return self._memory[start:stop].data.toreadonly()

    def release(self) -> None:
        """Tells the server that the message which was read last, and all before, may be written over."""
        self._words[_NUM_RELEASED] += np.uint64(1)
