"""Conversion between numpy arrays and tensor messages."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from rollserve._codec.compression import decompress
from rollserve._codec.field_errors import FieldError, in_named
from rollserve.errors import mismatch
from rollserve.v1 import tensor_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "array_from_tensor",
    "dtype_from_proto",
    "dtype_to_proto",
    "named_tensors_from_proto",
    "named_tensors_to_proto",
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
_DATA_TYPES = {dtype: data_type for data_type, dtype in _DTYPES.items()}


_MAX_DIMENSIONS = 32
_MAX_ELEMENTS = 1 << 59  # more than any machine holds; numpy can count the bytes of as many


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
