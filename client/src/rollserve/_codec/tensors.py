"""Numpy arrays to and from the tensors of the wire contract."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from rollserve._codec.compression import decompress
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


_MOST_DIMENSIONS = 32
_MOST_ELEMENTS = 1 << 59
"""Beyond what any machine can hold; sizes stay below what numpy can count."""


def dtype_to_proto(dtype: np.dtype) -> tensor_pb2.DataType.ValueType:
    """The wire's name for a dtype, whatever its byte order.

    Raises:
        ValueError: the dtype is neither bool nor one of the numeric types of the contract.
    """
    try:
        return _DATA_TYPES[dtype.newbyteorder("<")]
    except KeyError:
        allowed = ", ".join(str(known) for known in _DATA_TYPES)
        raise ValueError(f"dtype {dtype} came, one of {allowed} was expected") from None


def dtype_from_proto(data_type: tensor_pb2.DataType.ValueType) -> np.dtype:
    """The dtype, little endian, that the wire's name stands for.

    Raises:
        ValueError: the name is unset or unknown.
    """
    try:
        return _DTYPES[data_type]
    except KeyError:
        raise ValueError(f"data_type {data_type} came, a type of DataType was expected") from None


def tensor_to_proto(array: np.ndarray) -> tensor_pb2.Tensor:
    """The array's elements, copied in C order.

    Raises:
        ValueError: the array's dtype has no place on the wire.
    """
    data_type = dtype_to_proto(array.dtype)
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return tensor_pb2.Tensor(data_type=data_type, shape=array.shape, data=little.tobytes())


def tensor_from_proto(tensor: tensor_pb2.Tensor, *, is_column: bool = False) -> np.ndarray:
    """The tensor as an array that cannot be written to: a view of the message's bytes, unless they are compressed.

    Args:
        tensor: the tensor.
        is_column: whether it may be compressed, as only columns of batches may.

    Raises:
        ValueError: as of `array_from_tensor`; or it is compressed although it may not be.
    """
    if tensor.compression and not is_column:
        raise ValueError(f"compression {tensor.compression} came, none was expected: only columns may be compressed")
    return array_from_tensor(tensor, tensor.data)


def array_from_tensor(head: tensor_pb2.Tensor, data: bytes | memoryview) -> np.ndarray:
    """The array that a tensor's elements make: a view of them, unless they are compressed.

    Args:
        head: what the tensor says beside its data; whatever it has of that itself does not count.
        data: its elements, wherever they stand.

    Raises:
        ValueError: the type is unset, there are more than 32 dimensions, a size is negative, the sizes are larger
            than any memory, the data is not as long as type and shape ask for, or cannot be decompressed to as much, or
            a truth value is neither 0 nor 1.
        ModuleNotFoundError: the data is compressed, and the package for it is not installed.
    """
    dtype = dtype_from_proto(head.data_type)
    if len(head.shape) > _MOST_DIMENSIONS:
        raise ValueError(f"a shape of {len(head.shape)} sizes came, at most {_MOST_DIMENSIONS} were expected")
    shape = tuple(head.shape)
    if any(size < 0 for size in shape):
        raise ValueError(f"shape {shape} came, sizes of at least 0 were expected")
    if math.prod(size or 1 for size in shape) > _MOST_ELEMENTS:
        raise ValueError(f"shape {shape} came, sizes whose product is at most 2**59 were expected")
    expected = math.prod(shape) * dtype.itemsize
    if head.compression:
        data = decompress(data, head.compression, expected)
    if len(data) != expected:
        raise ValueError(f"{len(data)} bytes came, {expected} were expected for {dtype} of shape {shape}")
    if dtype == np.bool_ and np.frombuffer(data, np.uint8).max(initial=0) > 1:
        raise ValueError("a truth value other than 0 and 1 came")
    return np.frombuffer(data, dtype).reshape(shape)


def named_tensors_to_proto(arrays: Mapping[str, np.ndarray]) -> list[tensor_pb2.NamedTensor]:
    """The arrays in their order.

    Raises:
        ValueError: an array's dtype has no place on the wire; the message names the array.
    """
    tensors = []
    for name, array in arrays.items():
        try:
            tensor = tensor_to_proto(np.asarray(array))
        except ValueError as error:
            raise ValueError(f"{name!r}: {error}") from None
        tensors.append(tensor_pb2.NamedTensor(name=name, tensor=tensor))
    return tensors


def named_tensors_from_proto(
    tensors: Iterable[tensor_pb2.NamedTensor], *, are_columns: bool = False
) -> dict[str, np.ndarray]:
    """The tensors by name, in their order; each as `tensor_from_proto` gives it.

    Raises:
        ValueError: a name comes twice, or a tensor is malformed; the message names it.
    """
    arrays: dict[str, np.ndarray] = {}
    for named in tensors:
        if named.name in arrays:
            raise ValueError(f"{named.name!r}: the name came twice")
        try:
            arrays[named.name] = tensor_from_proto(named.tensor, is_column=are_columns)
        except ValueError as error:
            raise ValueError(f"{named.name!r}: {error}") from None
    return arrays
