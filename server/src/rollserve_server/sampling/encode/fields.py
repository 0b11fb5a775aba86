"""The wire format of protocol buffers, as far as episode batches need it, with numpy arrays where bytes would be.

A message is written by hand so that each column is copied once, from where its steps were recorded to where the message
stands. See https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollserve._codec.protobuf import varint
from rollserve._codec.tensors import dtype_to_proto
from rollserve.v1.episode_batch_pb2 import FrameStack
from rollserve.v1.tensor_pb2 import NamedTensor, Tensor

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from numpy.typing import NDArray

    from rollserve.v1.tensor_pb2 import Compression

__all__ = [
    "CompressedRows",
    "FragmentAssignment",
    "Gathered",
    "Rows",
    "array_field",
    "field_number",
    "frame_stack_field",
    "message_field",
    "named_tensor_field",
    "size_of",
    "tensor_field",
]

_VARINT, _LENGTH_DELIMITED = 0, 2
_SHORT_BYTES = 256
"""Up to here bytes are joined to those before them: parts cost more than to copy so few."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Arrays that are to stand one after the other along their first axis.

    Attributes:
        pieces: each (rows, *shape).
        dtype: what they are to be written as.
        shape: of one row.
    """

    pieces: Sequence[np.ndarray]
    dtype: np.dtype
    shape: tuple[int, ...]

    @functools.cached_property
    def num_rows(self) -> int:
        """How many rows the pieces have together."""
        return sum(map(len, self.pieces))

    @functools.cached_property
    def num_bytes(self) -> int:
        """How many bytes they take."""
        return self.num_rows * math.prod(self.shape) * self.dtype.itemsize

    @classmethod
    def of(cls, array: np.ndarray) -> Rows:
        """The rows of one array."""
        return cls([array], array.dtype, array.shape[1:])

    def contiguous(self) -> NDArray[np.uint8]:
        """Their bytes in one array; a view where they are together anyway."""
        if len(self.pieces) == 1:
            (piece,) = self.pieces
            if piece.dtype == self.dtype.newbyteorder("<") and piece.flags.c_contiguous:
                return piece.reshape(-1).view(np.uint8)
        buffer = np.empty(self.num_bytes, np.uint8)
        self.write(buffer)
        return buffer

    def write(self, buffer: NDArray[np.uint8]) -> None:
        """Copies the rows into the buffer, which has their size."""
        if buffer.size:
            out = buffer.view(self.dtype.newbyteorder("<")).reshape(-1, *self.shape)
            np.concatenate(self.pieces, out=out, casting="same_kind")


@dataclass(frozen=True, eq=False)
class Gathered:
    """Rows of an array that are to stand one after the other, from wherever they are.

    Attributes:
        source: (all rows, *shape), contiguous.
        places: (rows,), which of them.
    """

    source: np.ndarray
    places: NDArray[np.int64]

    @property
    def dtype(self) -> np.dtype:
        """What they are to be written as."""
        return self.source.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one row."""
        return self.source.shape[1:]

    @property
    def num_rows(self) -> int:
        """How many rows they are."""
        return len(self.places)

    @property
    def num_bytes(self) -> int:
        """How many bytes they take."""
        return self.num_rows * math.prod(self.shape) * self.dtype.itemsize

    def contiguous(self) -> NDArray[np.uint8]:
        """Their bytes in one array."""
        buffer = np.empty(self.num_bytes, np.uint8)
        self.write(buffer)
        return buffer

    def write(self, buffer: NDArray[np.uint8]) -> None:
        """Copies the rows into the buffer, which has their size."""
        if buffer.size:
            source = self.source.astype(self.dtype.newbyteorder("<"), copy=False).reshape(len(self.source), -1)
            # As bytes, which may stand anywhere; a mode, because numpy else takes them by way of another buffer.
            out = buffer.reshape(self.num_rows, -1)
            np.take(source.view(np.uint8), self.places, axis=0, out=out, mode="clip")


@dataclass(frozen=True, eq=False)
class CompressedRows:
    """Rows that were compressed.

    Attributes:
        rows: what was.
        compression: how.
        data: what came of it.
    """

    rows: Rows | Gathered
    compression: Compression.ValueType
    data: bytes


FragmentAssignment = bytes | Rows | Gathered
"""What a message is put together from."""


def field_number(message: Descriptor, name: str) -> int:
    """The number of a field."""
    return message.fields_by_name[name].number


def message_field(number: int, parts: Sequence[FragmentAssignment]) -> list[FragmentAssignment]:
    """A field that is a message, or packed numbers, of the given content."""
    merged: list[FragmentAssignment] = [_key(number, _LENGTH_DELIMITED) + varint(sum(map(size_of, parts)))]
    for part in parts:
        last = merged[-1]
        if isinstance(part, bytes) and isinstance(last, bytes) and len(part) <= _SHORT_BYTES:
            merged[-1] = last + part
        else:
            merged.append(part)
    return merged


def size_of(part: FragmentAssignment) -> int:
    """How many bytes a part takes."""
    return len(part) if isinstance(part, bytes) else part.num_bytes


def array_field(number: int, array: np.ndarray) -> list[FragmentAssignment]:
    """A field of packed numbers of fixed width, or of truth values."""
    return message_field(number, [Rows.of(array)]) if len(array) else []


def tensor_field(number: int, rows: Rows | Gathered | CompressedRows) -> list[FragmentAssignment]:
    """A field that is a Tensor."""
    return message_field(number, _tensor(rows))


def named_tensor_field(number: int, name: str, rows: Rows | Gathered | CompressedRows) -> list[FragmentAssignment]:
    """A field that is a NamedTensor."""
    return message_field(number, [*_text(_NAME, name), *message_field(_TENSOR, _tensor(rows))])


def frame_stack_field(
    number: int, name: str, frame_count: int, frames: Rows | Gathered | CompressedRows
) -> list[FragmentAssignment]:
    """A field that is a FrameStack."""
    count = _key(_FRAME_COUNT, _VARINT) + varint(frame_count)
    return message_field(number, [*_text(_STACK_NAME, name), count, *message_field(_FRAMES, _tensor(frames))])


def _text(number: int, text: str) -> list[FragmentAssignment]:
    encoded = text.encode()
    return [_key(number, _LENGTH_DELIMITED) + varint(len(encoded)) + encoded] if encoded else []


def _tensor(column: Rows | Gathered | CompressedRows) -> list[FragmentAssignment]:
    if isinstance(column, CompressedRows):
        compression = _key(_COMPRESSION, _VARINT) + varint(int(column.compression))
        return [_tensor_head(column.rows), *message_field(_DATA, [column.data]), compression]
    return [_tensor_head(column), *message_field(_DATA, [column])]


def _tensor_head(rows: Rows | Gathered) -> bytes:
    shape = b"".join(map(varint, (rows.num_rows, *rows.shape)))
    data_type = varint(int(dtype_to_proto(rows.dtype)))
    return _key(_DATA_TYPE, _VARINT) + data_type + _key(_SHAPE, _LENGTH_DELIMITED) + varint(len(shape)) + shape


def _key(number: int, wire_type: int) -> bytes:
    return varint(number << 3 | wire_type)


_NAME, _TENSOR = (field_number(NamedTensor.DESCRIPTOR, name) for name in ("name", "tensor"))
_DATA_TYPE, _SHAPE, _DATA, _COMPRESSION = (
    field_number(Tensor.DESCRIPTOR, name) for name in ("data_type", "shape", "data", "compression")
)
_STACK_NAME, _FRAME_COUNT, _FRAMES = (
    field_number(FrameStack.DESCRIPTOR, name) for name in ("name", "frame_count", "frames")
)
