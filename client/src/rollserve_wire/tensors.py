"""Tensors: numpy arrays as messages and back, read where their bytes are and written without intermediate copies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from google.protobuf.descriptor import FieldDescriptor

from rollserve_wire.compression import decompress
from rollserve_wire.errors import FieldError, in_named, mismatch
from rollserve_wire.protobuf import (
    ArrayPart,
    UnusualError,
    fields,
    keys_of,
    length_delimited,
    text_field,
    varint,
    varint_field,
)
from rollserve_wire.v1 import tensor_pb2
from rollserve_wire.v1.tensor_pb2 import NamedTensor, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rollserve_wire.v1.tensor_pb2 import Compression, DataType

__all__ = [
    "NO_TENSOR",
    "PACKED_DTYPES",
    "add_named_tensor",
    "array_from_tensor",
    "dtype_from_proto",
    "dtype_to_proto",
    "named_tensor",
    "named_tensors_from_proto",
    "named_tensors_to_proto",
    "plain_tensor",
    "read_tensor",
    "tensor",
    "tensor_from_proto",
    "tensor_to_proto",
]


_DTYPES = {
    tensor_pb2.DATA_TYPE_BOOL: np.dtype(np.bool_),
    tensor_pb2.DATA_TYPE_INT8: np.dtype(np.int8),
    tensor_pb2.DATA_TYPE_INT16: np.dtype("<i2"),
    tensor_pb2.DATA_TYPE_INT32: np.dtype("<i4"),
    tensor_pb2.DATA_TYPE_INT64: np.dtype("<i8"),
    tensor_pb2.DATA_TYPE_UINT8: np.dtype(np.uint8),
    tensor_pb2.DATA_TYPE_UINT16: np.dtype("<u2"),
    tensor_pb2.DATA_TYPE_UINT32: np.dtype("<u4"),
    tensor_pb2.DATA_TYPE_UINT64: np.dtype("<u8"),
    tensor_pb2.DATA_TYPE_FLOAT16: np.dtype("<f2"),
    tensor_pb2.DATA_TYPE_FLOAT32: np.dtype("<f4"),
    tensor_pb2.DATA_TYPE_FLOAT64: np.dtype("<f8"),
}
PACKED_DTYPES = {
    FieldDescriptor.TYPE_BOOL: np.dtype(np.bool_),
    FieldDescriptor.TYPE_FIXED32: np.dtype("<u4"),
    FieldDescriptor.TYPE_FIXED64: np.dtype("<u8"),
    FieldDescriptor.TYPE_SFIXED64: np.dtype("<i8"),
    FieldDescriptor.TYPE_DOUBLE: np.dtype("<f8"),
}
"""Dtypes of packed fields of fixed width, by the types of the fields."""
_DATA_TYPES = {dtype: data_type for data_type, dtype in _DTYPES.items()}

_MAX_DIMENSIONS = 32
_MAX_ELEMENTS = 1 << 59  # more than any machine holds; numpy can count the bytes of as many
_MAX_NAME_BYTES, _MAX_HEAD_FIELDS, _MAX_HEAD_BYTES = 4096, 4, 1024
"""Limits of a name, and of a tensor without its elements, beyond which the generated classes parse the message."""

NO_TENSOR = Tensor()

_NAME, _TENSOR = (keys_of(NamedTensor.DESCRIPTOR)[name] for name in ("name", "tensor"))
_SHAPE, _DATA = (keys_of(Tensor.DESCRIPTOR)[name] for name in ("shape", "data"))

_P = TypeVar("_P", bound=bytes | memoryview | ArrayPart)


def dtype_to_proto(dtype: np.dtype) -> tensor_pb2.DataType.ValueType:
    """Return the data type of the wire for a dtype in any byte order.

    Raises:
        ValueError: a dtype that is neither bool nor one of the numeric types of the wire.
    """
    try:
        return _DATA_TYPES[dtype.newbyteorder("<")]
    except KeyError:
        allowed = ", ".join(str(known) for known in _DATA_TYPES)
        raise ValueError(mismatch(f"one of the dtypes {allowed}", f"dtype {dtype}")) from None


def dtype_from_proto(data_type: tensor_pb2.DataType.ValueType) -> np.dtype:
    """Return the little-endian dtype for a data type of the wire.

    Raises:
        ValueError: a data type that is unset or unknown.
    """
    try:
        return _DTYPES[data_type]
    except KeyError:
        raise FieldError("data_type", mismatch("a member of DataType", data_type)) from None


def tensor_to_proto(array: np.ndarray) -> tensor_pb2.Tensor:
    """Return a Tensor with a copy of the array's elements in C order.

    Raises:
        ValueError: a dtype that the wire does not have.
    """
    data_type = dtype_to_proto(array.dtype)
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return tensor_pb2.Tensor(data_type=data_type, shape=array.shape, data=little.tobytes())


def tensor_from_proto(tensor: tensor_pb2.Tensor, *, is_column: bool = False) -> np.ndarray:
    """Return a tensor as a read-only array: a view of the message's bytes, unless they are compressed.

    Args:
        tensor: the tensor.
        is_column: whether it is a column of a batch; only columns may be compressed.

    Raises:
        ValueError: a malformed tensor, see `array_from_tensor`, or a compressed one that is not a column.
    """
    if tensor.compression and not is_column:
        expected = "COMPRESSION_UNSPECIFIED, as only columns of batches may be compressed"
        raise FieldError("compression", mismatch(expected, tensor.compression))
    return array_from_tensor(tensor, tensor.data)


def array_from_tensor(head: tensor_pb2.Tensor, data: bytes | memoryview) -> np.ndarray:
    """Return a tensor as an array: a view of its elements, unless they are compressed.

    Args:
        head: the tensor; its own `data` is ignored.
        data: the elements.

    Raises:
        ValueError: a type that is unset, more than 32 dimensions, a negative size, sizes whose product without zeros
            is more than 2**59, data of another length than type and shape ask for, data that cannot be decompressed to
            that length, or a truth value that is neither 0 nor 1.
        ModuleNotFoundError: compressed data whose package is not installed.
    """
    dtype = dtype_from_proto(head.data_type)
    if len(head.shape) > _MAX_DIMENSIONS:
        raise FieldError("shape", mismatch(f"at most {_MAX_DIMENSIONS} sizes", f"{len(head.shape)} sizes"))
    shape = tuple(head.shape)
    if min(shape, default=0) < 0:
        raise FieldError("shape", mismatch("sizes of at least 0", shape))
    if math.prod([size or 1 for size in shape]) > _MAX_ELEMENTS:
        raise FieldError("shape", mismatch("sizes whose product is at most 2**59", shape))
    num_bytes = math.prod(shape) * dtype.itemsize
    if head.compression:
        data = decompress(data, head.compression, num_bytes)
    if len(data) != num_bytes:
        raise FieldError("data", mismatch(f"{num_bytes} bytes for {dtype} of shape {shape}", f"{len(data)} bytes"))
    if dtype == np.bool_ and np.frombuffer(data, np.uint8).max(initial=0) > 1:
        raise FieldError("data", mismatch("truth values of 0 or 1", "another byte"))
    return np.frombuffer(data, dtype).reshape(shape)


def named_tensors_to_proto(arrays: Mapping[str, np.ndarray]) -> list[tensor_pb2.NamedTensor]:
    """Return named arrays as messages, in their order.

    Raises:
        ValueError: a dtype that the wire does not have; the message begins with the array's name in brackets.
    """
    tensors = []
    for name, array in arrays.items():
        with in_named(name):
            tensor = tensor_to_proto(np.asarray(array))
        tensors.append(tensor_pb2.NamedTensor(name=name, tensor=tensor))
    return tensors


def named_tensors_from_proto(
    tensors: Iterable[tensor_pb2.NamedTensor], *, are_columns: bool = False
) -> dict[str, np.ndarray]:
    """Return named tensors as read-only arrays, in their order; see `tensor_from_proto`.

    Raises:
        ValueError: a name that occurs twice, or a malformed tensor; the message begins with the name in brackets.
    """
    arrays: dict[str, np.ndarray] = {}
    for named in tensors:
        with in_named(named.name):
            if named.name in arrays:
                raise ValueError(mismatch("unique names", "this name twice"))
            arrays[named.name] = tensor_from_proto(named.tensor, is_column=are_columns)
    return arrays


def add_named_tensor(
    columns: dict[str, np.ndarray], data: memoryview, start: int, stop: int, *, is_column: bool = True
) -> None:
    """Read a NamedTensor and add its array to the columns; for `is_column`, see `tensor_from_proto`.

    Raises:
        ValueError: a name that the columns have already, or a malformed tensor; the message begins with the name in
            brackets.
        UnusualError, IndexError, DecodeError: bytes that the generated classes have to parse.
    """
    found, tensor = None, None
    for key, _, begin, end in fields(data, start, stop):
        if key == _NAME and found is None and end - begin <= _MAX_NAME_BYTES:
            found = _decode(data[begin:end])
        elif key == _TENSOR and tensor is None:
            tensor = begin, end
        else:
            raise UnusualError
    name = found or ""
    with in_named(name):
        if name in columns:
            raise ValueError(mismatch("unique names", "this name twice"))
        if tensor is None:
            columns[name] = array_from_tensor(NO_TENSOR, b"")
        else:
            columns[name] = read_tensor(data, *tensor, is_column=is_column)


def read_tensor(data: memoryview, start: int, stop: int, *, is_column: bool = True) -> np.ndarray:
    """Return the array of a Tensor, whose other fields the generated class parses; raises as `add_named_tensor`."""
    elements, rest = None, []
    for key, before, begin, end in fields(data, start, stop):
        if key == _DATA and elements is None:
            elements = data[begin:end]
        elif key != _DATA and len(rest) < _MAX_HEAD_FIELDS and end - before <= _MAX_HEAD_BYTES:
            rest.append(data[before:end])
        else:
            raise UnusualError
    head = Tensor.FromString(b"".join(rest))
    if head.compression and not is_column:
        raise UnusualError
    return array_from_tensor(head, data[:0] if elements is None else elements)


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
