"""Spaces of gymnasium and of gym as messages, and their values as columns, one for each leaf."""

from __future__ import annotations

from typing import Any, Callable, Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np

from rollserve_env_host.messages import space_pb2, tensor_pb2

__all__ = ["Leaf", "Values", "array_of", "space_message", "tensor_message"]

_NAMES = {
    "?": "BOOL",
    "i1": "INT8",
    "i2": "INT16",
    "i4": "INT32",
    "i8": "INT64",
    "u1": "UINT8",
    "u2": "UINT16",
    "u4": "UINT32",
    "u8": "UINT64",
    "f2": "FLOAT16",
    "f4": "FLOAT32",
    "f8": "FLOAT64",
}
_DATA_TYPES = {np.dtype(code): getattr(tensor_pb2, "DATA_TYPE_" + name) for code, name in _NAMES.items()}
_DTYPES = {data_type: dtype.newbyteorder("<") for dtype, data_type in _DATA_TYPES.items()}


class Leaf(NamedTuple):
    """A part of a space whose values are arrays of one shape and dtype.

    Attributes:
        name: path from the root of the space, joined by `/`; empty for the root.
        dtype: dtype of a value.
        shape: shape of a value.
        value_of: returns the part of a value of the whole space.
    """

    name: str
    dtype: np.dtype
    shape: Tuple[int, ...]
    value_of: Callable[[Any], Any]


class Values:
    """The values of a space, as columns.

    Attributes:
        leaves: leaves of the space, in its order.
    """

    def __init__(self, space: Any) -> None:
        """Take a space of gymnasium or gym; raise ValueError for one that has no leaves of one shape."""
        self._space = space
        self.leaves: Sequence[Leaf] = list(_leaves(space, (), lambda value: value))

    def empty_columns(self, num_rows: int) -> List[np.ndarray]:
        """Return a column (num_rows, *shape) for each leaf."""
        return [np.zeros((num_rows, *leaf.shape), leaf.dtype) for leaf in self.leaves]

    def store(self, value: Any, columns: Sequence[np.ndarray], row: int) -> None:
        """Store a value of the space in a row of columns; raise ValueError if it has another form."""
        for leaf, column in zip(self.leaves, columns):
            part = np.asarray(leaf.value_of(value))
            if part.shape != leaf.shape or not np.can_cast(part.dtype, leaf.dtype, "same_kind"):
                got = "{} of shape {}".format(part.dtype, part.shape)
                expected = "{} of shape {}".format(leaf.dtype, leaf.shape)
                raise ValueError("{}: expected {}, got {}".format(leaf.name or "observation", expected, got))
            column[row] = part

    def rows(self, columns: Sequence[np.ndarray]) -> List[Any]:
        """Return the value of each row of columns, copied, because environments may keep it."""
        parts = iter(columns)
        return _assembled(self._space, lambda: next(parts))

    def messages(self, columns: Sequence[np.ndarray]) -> Iterator[tensor_pb2.NamedTensor]:
        """Yield columns as messages."""
        for leaf, column in zip(self.leaves, columns):
            yield tensor_pb2.NamedTensor(name=leaf.name, tensor=tensor_message(column))


def space_message(space: Any) -> space_pb2.Space:
    """Return the message that describes a space; raise ValueError for a kind that rows do not have."""
    kind = type(space).__name__
    if kind == "Dict":
        named = [space_pb2.NamedSpace(name=key, space=space_message(part)) for key, part in space.spaces.items()]
        return space_pb2.Space(dict=space_pb2.DictSpace(spaces=named))
    if kind == "Tuple":
        return space_pb2.Space(tuple=space_pb2.TupleSpace(spaces=map(space_message, space.spaces)))
    if kind == "Discrete":
        return space_pb2.Space(discrete=space_pb2.DiscreteSpace(n=int(space.n), start=int(getattr(space, "start", 0))))
    if kind == "MultiDiscrete":
        start = getattr(space, "start", np.zeros_like(space.nvec))
        counts, starts = (tensor_message(np.asarray(each, np.int64)) for each in (space.nvec, start))
        found = space_pb2.MultiDiscreteSpace(data_type=_data_type(space.dtype), nvec=counts, start=starts)
        return space_pb2.Space(multi_discrete=found)
    if kind == "MultiBinary":
        return space_pb2.Space(multi_binary=space_pb2.MultiBinarySpace(shape=space.shape))
    if kind == "Box":
        low, high = _bound(space.low), _bound(space.high)
        box = space_pb2.BoxSpace(data_type=_data_type(space.dtype), shape=space.shape, low=low, high=high)
        return space_pb2.Space(box=box)
    raise _unsupported(space)


def tensor_message(array: np.ndarray) -> tensor_pb2.Tensor:
    """Return an array as a message; raise ValueError for a dtype that messages do not have."""
    array = np.asarray(array)
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return tensor_pb2.Tensor(data_type=_data_type(array.dtype), shape=array.shape, data=little.tobytes())


def array_of(tensor: tensor_pb2.Tensor) -> np.ndarray:
    """Return the array of a message, read-only; raise ValueError for a malformed one."""
    if tensor.data_type not in _DTYPES:
        raise ValueError("data_type: expected a type of numbers, got {}".format(tensor.data_type))
    return np.frombuffer(tensor.data, _DTYPES[tensor.data_type]).reshape(tuple(tensor.shape))


def _leaves(space: Any, path: Tuple[str, ...], value_of: Callable[[Any], Any]) -> Iterator[Leaf]:
    kind = type(space).__name__
    if kind in ("Dict", "Tuple"):
        parts = space.spaces.items() if kind == "Dict" else enumerate(space.spaces)
        for key, part in parts:
            yield from _leaves(part, (*path, str(key)), lambda value, key=key: value_of(value)[key])
    elif kind in ("Box", "Discrete", "MultiDiscrete", "MultiBinary"):
        dtype = np.dtype(np.int64) if kind == "Discrete" else np.dtype(space.dtype)
        yield Leaf("/".join(path), dtype, tuple(space.shape or ()), value_of)
    else:
        raise _unsupported(space)


def _assembled(space: Any, next_column: Callable[[], np.ndarray]) -> List[Any]:
    kind = type(space).__name__
    if kind == "Dict":
        parts = {key: _assembled(part, next_column) for key, part in space.spaces.items()}
        return [dict(zip(parts, row)) for row in zip(*parts.values())]
    if kind == "Tuple":
        return list(zip(*[_assembled(part, next_column) for part in space.spaces]))
    return list(np.array(next_column()))


def _bound(values: np.ndarray) -> tensor_pb2.Tensor:
    """Return a bound of a Box as a message: a scalar where all elements share it."""
    first = values.reshape(-1)[:1]
    return tensor_message(first.reshape(()) if values.size and (values == first).all() else values)


def _data_type(dtype: Any) -> int:
    found: int = _DATA_TYPES.get(np.dtype(dtype).newbyteorder("="), 0)
    if not found:
        raise ValueError("dtype: expected one of numbers or truth values, got {}".format(dtype))
    return found


def _unsupported(space: Any) -> ValueError:
    expected = "Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
    return ValueError("space: expected {}, got {!r}".format(expected, space))
