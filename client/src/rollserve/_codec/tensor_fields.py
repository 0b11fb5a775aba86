"""Tensors in serialized messages, read where their bytes stand, and written without a copy of a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rollserve._codec.protobuf import LENGTH_DELIMITED, UnusualError, fields, key_of, varint
from rollserve._codec.tensors import array_from_tensor, dtype_to_proto
from rollserve.v1.tensor_pb2 import NamedTensor, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.descriptor import Descriptor

__all__ = ["NO_TENSOR", "Part", "add_named_tensor", "field_of", "keys_of", "named_tensor_parts", "read_tensor"]

NO_TENSOR = Tensor()

Part = bytes | memoryview
"""What a message is put together from."""


def keys_of(message: Descriptor) -> dict[str, int]:
    """The keys of a message's fields, as far as those have lengths."""
    return {field.name: key_of(field.number, LENGTH_DELIMITED) for field in message.fields}


_NAME, _TENSOR = (keys_of(NamedTensor.DESCRIPTOR)[name] for name in ("name", "tensor"))
_DATA = keys_of(Tensor.DESCRIPTOR)["data"]


def add_named_tensor(
    columns: dict[str, np.ndarray], data: memoryview, start: int, stop: int, *, is_column: bool = True
) -> None:
    """Adds what a NamedTensor holds; for `is_column`, see `tensor_from_proto`.

    Raises:
        ValueError: the name came before, or the tensor is malformed; the message names it.
        UnusualError, IndexError, DecodeError: the generated classes are to judge.
    """
    name, tensor = "", None
    for key, _, begin, end in fields(data, start, stop):
        if key == _NAME:
            name = _text(data[begin:end])
        elif key == _TENSOR and tensor is None:
            tensor = begin, end
        else:
            raise UnusualError
    if name in columns:
        raise ValueError(f"{name!r}: the name came twice")
    try:
        if tensor is None:
            columns[name] = array_from_tensor(NO_TENSOR, b"")
        else:
            columns[name] = read_tensor(data, *tensor, is_column=is_column)
    except ValueError as error:
        raise ValueError(f"{name!r}: {error}") from None


def read_tensor(data: memoryview, start: int, stop: int, *, is_column: bool = True) -> np.ndarray:
    """The array of a Tensor: the generated class reads all of it but its elements. Raises as `add_named_tensor`."""
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


def named_tensor_parts(name: str, array: np.ndarray) -> list[Part]:
    """A NamedTensor, in parts. The array is not copied unless its elements stand apart or in another order of bytes.

    Raises:
        ValueError: the array's dtype has no place on the wire; the message names it.
    """
    try:
        head = Tensor(data_type=dtype_to_proto(array.dtype), shape=array.shape).SerializeToString()
    except ValueError as error:
        raise ValueError(f"{name!r}: {error}") from None
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    elements = memoryview(little.reshape(-1).view(np.uint8))  # type: ignore[arg-type]  # it is a buffer
    tensor = [head, *field_of(_DATA, [elements])]
    return [*field_of(_NAME, [name.encode()]), *field_of(_TENSOR, tensor)]


def field_of(key: int, parts: Sequence[Part]) -> list[Part]:
    """A field with a length, of the given content."""
    return [varint(key) + varint(sum(map(len, parts))), *parts]


def _text(data: memoryview) -> str:
    try:
        return data.tobytes().decode()
    except UnicodeDecodeError:
        raise UnusualError from None
