"""The wire format of protocol buffers, as far as episode batches need it, with numpy arrays where bytes would be.

A message is written by hand so that each column is copied once, from where its steps were recorded to where the message
stands. See https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollserve.tensors import dtype_to_proto
from rollserve.v1.tensor_pb2 import NamedTensor, Tensor

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from numpy.typing import NDArray

__all__ = [
    "Part",
    "Rows",
    "array_field",
    "field_number",
    "message_field",
    "named_tensor_field",
    "tensor_field",
]

_VARINT, _LENGTH_DELIMITED = 0, 2


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

    @property
    def num_rows(self) -> int:
        """How many rows the pieces have together."""
        return sum(map(len, self.pieces))

    @property
    def num_bytes(self) -> int:
        """How many bytes they take."""
        return self.num_rows * math.prod(self.shape) * self.dtype.itemsize

    @classmethod
    def of(cls, array: np.ndarray) -> Rows:
        """The rows of one array."""
        return cls([array], array.dtype, array.shape[1:])

    def write(self, buffer: NDArray[np.uint8]) -> None:
        """Copies the rows into the buffer, which has their size."""
        if buffer.size:
            out = buffer.view(self.dtype.newbyteorder("<")).reshape(-1, *self.shape)
            np.concatenate(self.pieces, out=out, casting="same_kind")


Part = bytes | Rows
"""What a message is put together from."""


def field_number(message: Descriptor, name: str) -> int:
    """The number of a field."""
    return message.fields_by_name[name].number


def message_field(number: int, parts: Sequence[Part]) -> list[Part]:
    """A field that is a message, or packed numbers, of the given content."""
    size = sum(len(part) if isinstance(part, bytes) else part.num_bytes for part in parts)
    return [_key(number, _LENGTH_DELIMITED) + _varint(size), *parts]


def array_field(number: int, array: np.ndarray) -> list[Part]:
    """A field of packed numbers of fixed width, or of truth values."""
    return message_field(number, [Rows.of(array)]) if len(array) else []


def tensor_field(number: int, rows: Rows) -> list[Part]:
    """A field that is a Tensor."""
    return message_field(number, _tensor(rows))


def named_tensor_field(number: int, name: str, rows: Rows) -> list[Part]:
    """A field that is a NamedTensor."""
    encoded = name.encode()
    prefix: list[Part] = []
    if encoded:
        prefix = [_key(_NAME, _LENGTH_DELIMITED) + _varint(len(encoded)) + encoded]
    return message_field(number, [*prefix, *message_field(_TENSOR, _tensor(rows))])


def _tensor(rows: Rows) -> list[Part]:
    shape = b"".join(map(_varint, (rows.num_rows, *rows.shape)))
    data_type = _varint(int(dtype_to_proto(rows.dtype)))
    head = _key(_DATA_TYPE, _VARINT) + data_type + _key(_SHAPE, _LENGTH_DELIMITED) + _varint(len(shape)) + shape
    return [head, *message_field(_DATA, [rows])]


def _key(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(value: int) -> bytes:
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


_NAME, _TENSOR = (field_number(NamedTensor.DESCRIPTOR, name) for name in ("name", "tensor"))
_DATA_TYPE, _SHAPE, _DATA = (field_number(Tensor.DESCRIPTOR, name) for name in ("data_type", "shape", "data"))
