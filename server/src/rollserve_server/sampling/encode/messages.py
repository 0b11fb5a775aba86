"""Encoded messages, ready to be written into a buffer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.sampling.protocol.orders import Message
from rollserve_wire.protobuf import size_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve_server.sampling.encode.fields import Part

__all__ = ["EncodedMessage", "new_array", "write_messages"]


@dataclass(frozen=True, eq=False)
class EncodedMessage:
    """A message whose columns are written where it is put.

    Attributes:
        parts: content of the message, in order.
        num_bytes: size of the message.
        num_raw_bytes: size that the message would have with all columns plain.
        num_steps: number of steps in it.
        num_episodes: number of episodes that end in it.
        dropped_infos: number of values of infos, by name, that the episodes or fragments which end in it lack.
        endings: ends of the episodes that end in it; see `Message`.
        moments: moments of the episodes or fragments that end in it; see `Message`.
        num_non_finite_steps: number of steps in it with a NaN or an infinity.
    """

    parts: Sequence[Part]
    num_bytes: int
    num_raw_bytes: int
    num_steps: int
    num_episodes: int
    dropped_infos: Mapping[str, int]
    endings: bytes
    moments: tuple[bytes, ...] = ()
    num_non_finite_steps: int = 0

    def place(self, offset: int) -> Message:
        """Return the message's position in a buffer, and its content."""
        return Message(
            offset,
            self.num_bytes,
            self.num_steps,
            self.num_episodes,
            self.dropped_infos,
            self.num_raw_bytes,
            self.endings,
            self.moments,
            self.num_non_finite_steps,
        )

    def write(self, buffer: NDArray[np.uint8]) -> None:
        """Write the message into a buffer of its size."""
        offset, view = 0, buffer.data
        for part in self.parts:
            end = offset + size_of(part)
            if isinstance(part, bytes):
                view[offset:end] = part
            else:
                part.write(buffer[offset:end])
            offset = end


def new_array(num_bytes: int) -> NDArray[np.uint8]:
    """Return a buffer for messages in memory of this process."""
    return np.empty(num_bytes, np.uint8)


def write_messages(
    messages: Sequence[EncodedMessage], new_buffer: Callable[[int], NDArray[np.uint8]]
) -> NDArray[np.uint8]:
    """Return a buffer, made by `new_buffer` for its number of bytes, with the messages, one behind the other."""
    buffer = new_buffer(sum(message.num_bytes for message in messages))
    offset = 0
    for message in messages:
        message.write(buffer[offset : offset + message.num_bytes])
        offset += message.num_bytes
    return buffer
