"""Memory from which clients on the same machine read messages, instead of receiving them."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import mmap
import os
import secrets
from collections import deque
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from rollserve_wire.errors import mismatch
from rollserve_wire.v1.episode_batch_pb2 import SharedMemory, SharedMessage

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Ring", "Rings", "SamplerRings"]

_NAME = "rollserve"
"""Name that clients know the memory by; see SharedMemory in `protos/rollserve/v1/episode_batch.proto`."""
_RING_BYTES = 32 << 20
"""Size of a ring: large enough that neither side waits for the other, small enough for the caches of large
processors."""
_HEAD_BYTES = mmap.PAGESIZE
_NONCE, _ECHO, _NUM_RELEASED = 0, 1, 2  # words of the head
_MIN_MESSAGE_BYTES = 64 << 10
"""Least size of a message in shared memory. Sending a smaller one takes no longer."""
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.0005, 0.02
"""Pauses between two checks whether the client has made room."""


class Rings:
    """A ring for each stream that requests one, up to a limit.

    The streams of one borrower use a ring again, because new memory is slow. Another borrower gets new memory: it finds
    nothing of the previous one there, which may still have the old memory open and sees nothing of the next one.
    """

    def __init__(self, max_bytes: int) -> None:
        """Start without rings.

        Args:
            max_bytes: size of all rings together; 0 for no rings.

        Raises:
            OSError: rings are requested, and the system has no memory of this kind.
        """
        if max_bytes and not hasattr(os, "memfd_create"):
            text = mismatch("0 on this system", max_bytes, "only Linux has such shared memory")
            raise OSError(f"shared_memory_bytes: {text}")
        self._ring_bytes = min(_RING_BYTES, max_bytes)
        self._num_unmade = max_bytes // self._ring_bytes if max_bytes > _HEAD_BYTES else 0
        self._idle: list[tuple[Hashable, Ring]] = []
        self._is_closed = False

    @contextlib.contextmanager
    def lend(self, borrower: Hashable | None) -> Iterator[Ring | None]:
        """Yield a ring for one stream, or None if all rings are in use.

        Args:
            borrower: whoever reads the stream; None if the stream requests no ring.
        """
        ring = None if borrower is None else self._acquire(borrower)
        try:
            yield ring
        finally:
            if ring is not None and self._is_closed:
                ring.close()
            elif ring is not None:
                self._idle.append((borrower, ring))

    def close(self) -> None:
        """Give up the rings that no stream uses; the others when their streams have ended."""
        self._is_closed = True
        while self._idle:
            _, ring = self._idle.pop()
            ring.close()

    def _acquire(self, borrower: Hashable) -> Ring | None:
        # Prefer the ring used last. Skip rings whose client is still reading, or has left and will never be done.
        for place in reversed(range(len(self._idle))):
            previous, ring = self._idle[place]
            if previous == borrower and ring.is_free:
                del self._idle[place]
                ring.reset()
                return ring
        if self._num_unmade:
            self._num_unmade -= 1
        elif self._idle:
            _, oldest = self._idle.pop(0)
            oldest.close()  # a client that reads there may go on with that
        else:
            return None
        return Ring(self._ring_bytes)


class SamplerRings:
    """Rings of all samplers. No sampler uses the rings of another."""

    def __init__(self, max_bytes: int, max_samplers: int) -> None:
        """Start without rings.

        Args:
            max_bytes: size of all rings together; 0 for no rings.
            max_samplers: number of samplers that share it.

        Raises:
            OSError: as of `Rings`.
        """
        self._share = max_bytes // max_samplers
        self._rings: dict[str, Rings] = {}
        Rings(self._share)  # so that errors come at the start

    def of(self, sampler: str) -> Rings:
        """Return the rings of the sampler with a name."""
        if sampler not in self._rings:
            self._rings[sampler] = Rings(self._share)
        return self._rings[sampler]

    def forget(self, sampler: str) -> None:
        """Give up the rings of a sampler that does not exist any more."""
        if rings := self._rings.pop(sampler, None):
            rings.close()


class Ring:
    """Shared memory for the messages of one stream. It has no path, and exists until the last process closes it.

    Attributes:
        num_message_bytes: size of all messages that went through the ring for this stream.
    """

    def __init__(self, num_bytes: int) -> None:
        self._descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.fchmod(self._descriptor, 0o600)
        os.ftruncate(self._descriptor, num_bytes)
        # The system would kill a client that reads from memory which was made shorter.
        fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self._memory = np.frombuffer(mmap.mmap(self._descriptor, num_bytes), np.uint8)
        self._words = self._memory[:_HEAD_BYTES].view("<u8")
        self.reset()

    def reset(self) -> None:
        """Prepare the ring for another stream."""
        self._words[_NONCE] = secrets.randbits(63) + 1
        self._words[_ECHO] = self._words[_NUM_RELEASED] = 0
        self._num_written = 0
        self._head = _HEAD_BYTES
        # Starts of the messages that the client may be reading, in order.
        self._starts: deque[int] = deque()
        self.num_message_bytes = 0

    def close(self) -> None:
        """Give up the memory."""
        os.close(self._descriptor)
        del self._memory, self._words

    def offer(self) -> SharedMemory:
        """Return the message that tells a client where the memory is."""
        return SharedMemory(
            process_id=os.getpid(),
            file_descriptor=self._descriptor,
            size=len(self._memory),
            nonce=int(self._words[_NONCE]),
        )

    @property
    def is_free(self) -> bool:
        """Whether the client has released all messages."""
        return int(self._words[_NUM_RELEASED]) == self._num_written

    async def write(self, message: NDArray[np.uint8]) -> SharedMessage | None:
        """Write a message as soon as there is room.

        Args:
            message: the serialized message, of shape (num_bytes,).

        Returns:
            Where the message is; None if it has to be sent, because the client does not read the memory, or because
            the message is too small or too large.
        """
        is_read = self._words[_ECHO] == self._words[_NONCE]
        size = len(message)
        # A third of the ring at most: then the next message fits, wherever the one is that the client is reading.
        if not (is_read and _MIN_MESSAGE_BYTES <= size <= (len(self._memory) - _HEAD_BYTES) // 3):
            return None
        pause = _MIN_PAUSE_SECONDS
        while (start := self._room(size)) is None:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)
        self._memory[start : start + size] = message
        self._starts.append(start)
        self._head = start + size
        self._num_written += 1
        self.num_message_bytes += size
        return SharedMessage(offset=start, size=size)

    def _room(self, size: int) -> int | None:
        """Return where so many bytes are free: behind the last message, or else at the start; None if nowhere."""
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
