"""Fields of episode batches, in parts that refer to numpy arrays.

Each column is copied once: from where its steps were recorded to where the message is written.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollserve_wire.protobuf import keys_of, length_delimited, text_field, varint_field
from rollserve_wire.tensors import dtype_to_proto, named_tensor, tensor
from rollserve_wire.v1.episode_batch_pb2 import FrameStack

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve_wire.v1.tensor_pb2 import Compression

__all__ = [
    "CompressedRows",
    "Gathered",
    "Part",
    "Rows",
    "array_field",
    "frame_stack_field",
    "named_tensor_field",
    "non_finite_rows",
    "tensor_field",
]

_BLOCK_BYTES = 128 << 10
"""Bytes of rows that are copied to be looked at: a block stays in the processor's cache."""
_NO_POSITIONS = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class Rows:
    """Arrays that are written one after the other along their first axis.

    Attributes:
        pieces: arrays of shape (rows, *shape) each.
        dtype: dtype of the written elements, in little-endian order.
        shape: shape of one row.
    """

    pieces: Sequence[np.ndarray]
    dtype: np.dtype
    shape: tuple[int, ...]

    @functools.cached_property
    def num_rows(self) -> int:
        """Number of rows of all pieces."""
        return sum(map(len, self.pieces))

    @functools.cached_property
    def num_bytes(self) -> int:
        """Size of all rows in bytes."""
        return self.num_rows * math.prod(self.shape) * self.dtype.itemsize

    @classmethod
    def of(cls, array: np.ndarray) -> Rows:
        """Return the rows of one array."""
        return cls([array], array.dtype, array.shape[1:])

    def contiguous(self) -> NDArray[np.uint8]:
        """Return the bytes in one array, which is a view if they are contiguous already."""
        if len(self.pieces) == 1:
            (piece,) = self.pieces
            if piece.dtype == self.dtype.newbyteorder("<") and piece.flags.c_contiguous:
                return piece.reshape(-1).view(np.uint8)
        buffer = np.empty(self.num_bytes, np.uint8)
        self.write(buffer)
        return buffer

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield the rows in arrays (rows, *shape), in order: large pieces as they are, small ones copied together."""
        per_block = max(1, _BLOCK_BYTES * len(self.pieces) // max(self.num_bytes, 1))
        for start in range(0, len(self.pieces), per_block):
            pieces = self.pieces[start : start + per_block]
            yield pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def write(self, buffer: NDArray[np.uint8]) -> None:
        """Copy the rows into a buffer of their size."""
        if buffer.size:
            out = buffer.view(self.dtype.newbyteorder("<")).reshape(-1, *self.shape)
            np.concatenate(self.pieces, out=out, casting="same_kind")


@dataclass(frozen=True, eq=False)
class Gathered:
    """Rows of arrays that are written one after the other, from any positions.

    Attributes:
        parts: contiguous arrays of shape (all rows, *shape), each with the indices (rows,) of the rows to write.
    """

    parts: Sequence[tuple[np.ndarray, NDArray[np.int64]]]

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the written elements, in little-endian order."""
        return self.parts[0][0].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return self.parts[0][0].shape[1:]

    @functools.cached_property
    def num_rows(self) -> int:
        """Number of rows to write."""
        return sum(len(places) for _, places in self.parts)

    @functools.cached_property
    def num_bytes(self) -> int:
        """Size of these rows in bytes."""
        return self.num_rows * math.prod(self.shape) * self.dtype.itemsize

    def contiguous(self) -> NDArray[np.uint8]:
        """Return the bytes in one array."""
        buffer = np.empty(self.num_bytes, np.uint8)
        self.write(buffer)
        return buffer

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield the rows in arrays (rows, *shape), in order, as copies."""
        per_block = max(1, _BLOCK_BYTES * self.num_rows // max(self.num_bytes, 1))
        for source, places in self.parts:
            for start in range(0, len(places), per_block):
                yield np.take(source, places[start : start + per_block], axis=0, mode="clip")

    def write(self, buffer: NDArray[np.uint8]) -> None:
        """Copy the rows into a buffer of their size."""
        if not buffer.size:
            return
        rows, stop = buffer.reshape(self.num_rows, -1), 0
        for source, places in self.parts:
            start, stop = stop, stop + len(places)
            little = source.astype(self.dtype.newbyteorder("<"), copy=False).reshape(len(source), -1)
            # As bytes, because the buffer may be unaligned; with a mode, because numpy otherwise copies twice.
            np.take(little.view(np.uint8), places, axis=0, out=rows[start:stop], mode="clip")


@dataclass(frozen=True, eq=False)
class CompressedRows:
    """Rows after compression.

    Attributes:
        rows: the rows before compression.
        compression: codec that compressed them.
        data: the compressed bytes.
    """

    rows: Rows | Gathered
    compression: Compression.ValueType
    data: bytes


Part = bytes | Rows | Gathered
"""Part of a message."""

_STACK_NAME, _FRAMES = (keys_of(FrameStack.DESCRIPTOR)[name] for name in ("name", "frames"))


def non_finite_rows(rows: Rows | Gathered) -> NDArray[np.int64]:
    """Return the positions of the rows that have a NaN or an infinity."""
    found, start = [_NO_POSITIONS], 0
    for block in rows.blocks() if rows.dtype.kind == "f" else ():
        # The sum of squares takes a third of the time, and is not finite either; nor is it for very large numbers.
        if not math.isfinite(np.vdot(block, block)):
            found.append(start + np.flatnonzero(~np.isfinite(block).reshape(len(block), -1).all(axis=1)))
        start += len(block)
    return np.concatenate(found) if len(found) > 1 else _NO_POSITIONS


def array_field(key: int, array: np.ndarray) -> list[Part]:
    """Return a field of packed little-endian numbers, or of truth values; nothing for an empty array.

    The array is copied into the field, because it is small: it has an element for each segment.
    """
    return [*length_delimited(key, [array.tobytes()])] if len(array) else []


def tensor_field(key: int, rows: Rows | Gathered | CompressedRows) -> list[Part]:
    """Return a field that holds a Tensor."""
    return length_delimited(key, _tensor(rows))


def named_tensor_field(key: int, name: str, rows: Rows | Gathered | CompressedRows) -> list[Part]:
    """Return a field that holds a NamedTensor."""
    return length_delimited(key, named_tensor(name or None, _tensor(rows)))


def frame_stack_field(key: int, name: str, frame_count: int, frames: Rows | Gathered | CompressedRows) -> list[Part]:
    """Return a field that holds a FrameStack."""
    head = text_field(_STACK_NAME, name) if name else b""
    count = varint_field(FrameStack.FRAME_COUNT_FIELD_NUMBER, frame_count)
    return length_delimited(key, [head + count, *length_delimited(_FRAMES, _tensor(frames))])


def _tensor(column: Rows | Gathered | CompressedRows) -> list[Part]:
    rows = column.rows if isinstance(column, CompressedRows) else column
    data_type, shape = dtype_to_proto(rows.dtype), (rows.num_rows, *rows.shape)
    if isinstance(column, CompressedRows):
        return [*tensor(data_type, shape, column.data, column.compression)]
    return [*tensor(data_type, shape, column)]
