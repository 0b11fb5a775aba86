"""The server's side of a read's child process; see `reading`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from rollserve_server.datasets.child import Child
from rollserve_server.futures import in_background
from rollserve_server.machine import memory_bytes

__all__ = ["DatasetReader", "DrawnBatch", "max_read_bytes"]

_MIN_READ_BYTES, _MAX_READ_BYTES = 1 << 30, 4 << 30


def max_read_bytes() -> int:
    """Return the memory of a read's process beside code: a sixteenth of the machine's, from 1 to 4 GiB."""
    return min(max(memory_bytes() // 16, _MIN_READ_BYTES), _MAX_READ_BYTES)


@dataclass(frozen=True)
class DrawnBatch:
    """A batch that was drawn.

    Attributes:
        source: position of its source.
        is_live: whether the source is live episodes, which the caller samples.
        positions: (epoch, chunk, segment) of each source behind the batch.
        num_drawn: number of batches that were drawn.
        continuing: positions of messages whose first segment continues the last one of the message before.
        messages: serialized responses.
    """

    source: int
    is_live: bool
    positions: Sequence[Sequence[int]]
    num_drawn: int
    continuing: Sequence[int]
    messages: Sequence[bytes]


class DatasetReader:
    """A process that reads the files of one request, one batch ahead.

    Attributes:
        contents: what the files of each source hold, as messages.
    """

    def __init__(self, child: Child, contents: Sequence[bytes]) -> None:
        self._child = child
        self.contents = contents
        self._next = in_background(child.ask({}, field="sources"))

    @classmethod
    async def start(cls, request: Mapping[str, Any]) -> Self:
        """Open the files.

        Raises:
            DomainError: the files cannot be read, or do not fit the request.
        """
        child = await Child.start("reading")
        try:
            _, contents = await child.ask(request, field="sources")
        except BaseException:
            child.kill()
            raise
        return cls(child, contents)

    async def wait(self, seconds: float) -> bool:
        """Wait for the next batch for so many seconds; return whether it is there."""
        await asyncio.wait({self._next}, timeout=seconds)
        return self._next.done()

    async def next(self) -> DrawnBatch | None:
        """Return the next batch, or None after the last one.

        Raises:
            DomainError: the files cannot be read.
        """
        answer, messages = await self._next
        if answer["source"] is None:
            return None
        self._next = in_background(self._child.ask({}, field="sources"))
        return DrawnBatch(**answer, messages=messages)

    def close(self) -> None:
        """End the process."""
        self._next.cancel()
        self._child.kill()
