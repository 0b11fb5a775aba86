"""Tensors in serialized messages, read where their bytes are and written without intermediate copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from rollserve._codec.field_errors import in_named
from rollserve._codec.protobuf import (
    ArrayPart,
    UnusualError,
    fields,
    keys_of,
    length_delimited,
    text_field,
    varint,
    varint_field,
)
from rollserve._codec.tensors import array_from_tensor, dtype_to_proto
from rollserve.errors import mismatch
from rollserve.v1.tensor_pb2 import NamedTensor, Tensor

if TYPE_CHECKING:
    from rollserve.v1.tensor_pb2 import Compression, DataType

__all__ = ["NO_TENSOR", "add_named_tensor", "named_tensor", "plain_tensor", "read_tensor", "tensor"]

NO_TENSOR = Tensor()

_NAME, _TENSOR = (keys_of(NamedTensor.DESCRIPTOR)[name] for name in ("name", "tensor"))
_SHAPE, _DATA = (keys_of(Tensor.DESCRIPTOR)[name] for name in ("shape", "data"))

_P = TypeVar("_P", bound=bytes | memoryview | ArrayPart)


def add_named_tensor(
    columns: dict[str, np.ndarray], data: memoryview, start: int, stop: int, *, is_column: bool = True
) -> None:
    """Read a NamedTensor and add its array to the columns; for `is_column`, see `tensor_from_proto`.

    Raises:
        ValueError: a name that the columns have already, or a malformed tensor; the message begins with the name in
            brackets.
        UnusualError, IndexError, DecodeError: bytes that the generated classes have to parse.
    """
    name, tensor = "", None
    for key, _, begin, end in fields(data, start, stop):
        if key == _NAME:
            name = _decode(data[begin:end])
        elif key == _TENSOR and tensor is None:
            tensor = begin, end
        else:
            raise UnusualError
    with in_named(name):
        if name in columns:
            raise ValueError(mismatch("unique names", "this name twice"))
        if tensor is None:
            columns[name] = array_from_tensor(NO_TENSOR, b"")
        else:
            columns[name] = read_tensor(data, *tensor, is_column=is_column)


def read_tensor(data: memoryview, start: int, stop: int, *, is_column: bool = True) -> np.ndarray:
    """Return the array of a Tensor, whose other fields the generated class parses; raises as `add_named_tensor`."""
    elements, rest = data[:0], []
    for key, before, begin, end in fields(data, start, stop):
        if key == _DATA:
            elements = data[begin:end]
        else:
            rest.append(data[before:end])
    head = Tensor.FromString(b"".join(rest))
    if head.compression and not is_column:
        raise UnusualError
    return array_from_tensor(head, elements)


def plain_tensor(array: np.ndarray) -> list[bytes | memoryview]:
    """Return the content of a Tensor. The array is copied only if it is not contiguous or not little endian.

    Raises:
        ValueError: a dtype that the wire does not have.
    """
    data_type = dtype_to_proto(array.dtype)
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    elements = memoryview(little.reshape(-1).view(np.uint8))  # type: ignore[arg-type]  # it is a buffer
    return tensor(data_type, array.shape, elements)


def tensor(
    data_type: DataType.ValueType,
    shape: Sequence[int],
    elements: _P,
    compression: Compression.ValueType | None = None,
) -> list[bytes | _P]:
    """Return the content of a Tensor, in parts.

    Args:
        data_type: type of the elements.
        shape: shape of the array.
        elements: the elements in C order, little endian, compressed if `compression` is given.
        compression: codec that compressed them.
    """
    head = varint_field(Tensor.DATA_TYPE_FIELD_NUMBER, data_type)
    if shape:
        sizes = b"".join(map(varint, shape))
        head += varint(_SHAPE) + varint(len(sizes)) + sizes
    tail = [] if compression is None else [varint_field(Tensor.COMPRESSION_FIELD_NUMBER, compression)]
    return [head, *length_delimited(_DATA, [elements]), *tail]


def named_tensor(name: str | None, content: Sequence[_P]) -> list[bytes | _P]:
    """Return the content of a NamedTensor around the content of its Tensor, in parts; None leaves the name out."""
    name_field = [] if name is None else [text_field(_NAME, name)]
    return [*name_field, *length_delimited(_TENSOR, content)]


def _decode(data: memoryview) -> str:
    try:
        return data.tobytes().decode()
    except UnicodeDecodeError:
        raise UnusualError from None
