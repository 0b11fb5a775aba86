"""Memory that clients on the same machine read messages from, instead of receiving them."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import mmap
import os
import secrets
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from rollserve.v1.episode_batch_pb2 import SharedMemory, SharedMessage

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Ring", "Rings"]

_NAME = "rollserve"
"""What clients know such memory by; see SharedMemory in `protos/rollserve/v1/episode_batch.proto`."""
_RING_BYTES = 32 << 20
"""Enough that neither side waits for the other, and little enough to stay in the caches of large processors."""
_HEAD_BYTES = mmap.PAGESIZE
_NONCE, _ECHO, _NUM_RELEASED = 0, 1, 2
"""Words of the head."""
_LEAST_BYTES = 64 << 10
"""Of a message: less is as well sent."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.02
"""Seconds between two looks at whether a client has made room."""


class Rings:
    """A ring for each stream that wants one, up to a limit. They are used again, because new memory is slow."""

    def __init__(self, max_bytes: int) -> None:
        """Begins without any.

        Args:
            max_bytes: how much memory they may have together; 0 for none at all.

        Raises:
            OSError: there is to be some, but this system has none of this kind.
        """
        if max_bytes and not hasattr(os, "memfd_create"):
            raise OSError(f"shared_memory_bytes: {max_bytes} came, but only Linux has such memory: 0 was expected")
        self._ring_bytes = min(_RING_BYTES, max_bytes)
        self._num_unmade = max_bytes // self._ring_bytes if max_bytes > _HEAD_BYTES else 0
        self._idle: list[Ring] = []

    @contextlib.contextmanager
    def lent(self, *, wanted: bool) -> Iterator[Ring | None]:
        """A ring for one stream, or None if it wants none or there are no more."""
        ring = self._take() if wanted else None
        try:
            yield ring
        finally:
            if ring is not None:
                self._idle.append(ring)

    def _take(self) -> Ring | None:
        # The one used last, unless its client is still reading, or will never be done because it has gone.
        ring = next((ring for ring in reversed(self._idle) if ring.is_free), None)
        if ring is not None:
            self._idle.remove(ring)
            ring.begin()
            return ring
        if self._num_unmade:
            self._num_unmade -= 1
        elif self._idle:
            self._idle.pop(0).close()  # who reads there may go on with that
        else:
            return None
        return Ring(self._ring_bytes)


class Ring:
    """Shared memory that one stream's messages go through. It has no name, and is gone with those who have it open.

    Attributes:
        num_message_bytes: how many bytes of messages went through it for this stream.
    """

    def __init__(self, num_bytes: int) -> None:
        self._descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.fchmod(self._descriptor, 0o600)
        os.ftruncate(self._descriptor, num_bytes)
        # A client would be killed if what it reads from were made shorter.
        fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self._memory = np.frombuffer(mmap.mmap(self._descriptor, num_bytes), np.uint8)
        self._words = self._memory[:_HEAD_BYTES].view("<u8")
        self.begin()

    def begin(self) -> None:
        """Begins with another stream."""
        self._words[_NONCE] = secrets.randbits(63) + 1
        self._words[_ECHO] = self._words[_NUM_RELEASED] = 0
        self._num_written = 0
        self._head = _HEAD_BYTES
        # Of what the client may be reading, in order: where it begins.
        self._starts: deque[int] = deque()
        self.num_message_bytes = 0

    def close(self) -> None:
        """Gives up the memory."""
        os.close(self._descriptor)
        del self._memory, self._words

    def offer(self) -> SharedMemory:
        """What tells a client where it is."""
        return SharedMemory(
            process_id=os.getpid(),
            file_descriptor=self._descriptor,
            size=len(self._memory),
            nonce=int(self._words[_NONCE]),
        )

    @property
    def is_free(self) -> bool:
        """Whether no client reads anything there."""
        return int(self._words[_NUM_RELEASED]) == self._num_written

    async def write(self, message: NDArray[np.uint8]) -> SharedMessage | None:
        """Writes a message as soon as there is room; returns where, or None if it is to be sent instead."""
        is_read = self._words[_ECHO] == self._words[_NONCE]
        size = len(message)
        # A third: wherever the one stands that a client is reading, the next one fits beside it.
        if not (is_read and _LEAST_BYTES <= size <= (len(self._memory) - _HEAD_BYTES) // 3):
            return None
        pause = _SHORTEST_PAUSE
        while (start := self._room(size)) is None:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        self._memory[start : start + size] = message
        self._starts.append(start)
        self._head = start + size
        self._num_written += 1
        self.num_message_bytes += size
        return SharedMessage(offset=start, size=size)

    def _room(self, size: int) -> int | None:
        """Where so many bytes are free, behind what was written last or at the beginning."""
        num_unreleased = max(self._num_written - int(self._words[_NUM_RELEASED]), 0)
        while len(self._starts) > num_unreleased:
            self._starts.popleft()
        if not self._starts:
            return _HEAD_BYTES
        first, stop = self._starts[0], len(self._memory)
        if self._head <= first:
            return self._head if first - self._head >= size else None
        if stop - self._head >= size:
            return self._head
        return _HEAD_BYTES if first - _HEAD_BYTES >= size else None
