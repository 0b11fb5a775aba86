"""Spaces of observations and actions, with gymnasium's definitions but without gymnasium."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollserve_wire.errors import mismatch
from rollserve_wire.representations import briefly
from rollserve_wire.tensors import dtype_from_proto, dtype_to_proto, tensor_from_proto, tensor_to_proto
from rollserve_wire.v1 import space_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


__all__ = [
    "Box",
    "Dict",
    "Discrete",
    "MultiBinary",
    "MultiDiscrete",
    "Space",
    "Text",
    "Tuple",
    "dtype_and_shape",
    "is_within",
    "leaf_spaces",
    "named_leaves",
    "space_from_proto",
    "space_to_proto",
]


@briefly
@dataclass(frozen=True, eq=False)
class Box:
    """Space of arrays of one shape and dtype.

    Attributes:
        low: smallest value of each element, inclusive; broadcasts to `shape`.
        high: largest value of each element, inclusive; broadcasts to `shape`.
        shape: shape of a value.
        dtype: dtype of a value.
    """

    low: np.ndarray
    high: np.ndarray
    shape: tuple[int, ...]
    dtype: np.dtype

    def __str__(self) -> str:
        return f"Box({self.shape}, {self.dtype})"

    @property
    def flat_size(self) -> int:
        """Number of elements of a value."""
        return math.prod(self.shape)


@briefly
@dataclass(frozen=True)
class Discrete:
    """Space of the integers from `start` to `start + n - 1`; a value is an int64 of shape ()."""

    n: int
    start: int = 0

    def __str__(self) -> str:
        return f"Discrete({self.n}{f', start={self.start}' if self.start else ''})"

    @property
    def flat_size(self) -> int:
        """Length of a value's one-hot vector."""
        return self.n


@briefly
@dataclass(frozen=True, eq=False)
class MultiDiscrete:
    """Space of integer arrays of the shape of `nvec`, with elements from `start` to `start + nvec - 1`."""

    nvec: np.ndarray
    start: np.ndarray
    dtype: np.dtype

    def __str__(self) -> str:
        return f"MultiDiscrete({self.nvec.tolist()})"

    @property
    def flat_size(self) -> int:
        """Length of the concatenated one-hot vectors of a value's elements."""
        return int(self.nvec.sum())


@briefly
@dataclass(frozen=True)
class MultiBinary:
    """Space of int8 arrays of zeros and ones."""

    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"MultiBinary({self.shape})"

    @property
    def flat_size(self) -> int:
        """Number of elements of a value."""
        return math.prod(self.shape)


@briefly
@dataclass(frozen=True)
class Text:
    """Space of texts; a value is a uint32 array of shape (max_length,): code points, with zeros after the last.

    Attributes:
        max_length: greatest number of characters, at least 1.
        min_length: least number of characters.
        characters: characters that texts consist of. Some environments show others.
    """

    max_length: int
    min_length: int
    characters: str

    def __str__(self) -> str:
        return f"Text({self.min_length}, {self.max_length})"

    @property
    def flat_size(self) -> int:
        """Number of code points of a value."""
        return self.max_length

    def decode(self, values: np.ndarray) -> np.ndarray:
        """Return the texts of values, (…) of numpy's strings, given their code points, (…, max_length).

        >>> space = rollserve.spaces.Text(5, 0, "ehlo")
        >>> space.decode(np.array([[104, 101, 108, 108, 111], [104, 111, 0, 0, 0]], np.uint32)).tolist()
        ['hello', 'ho']

        Raises:
            ValueError: values of another shape or dtype.
        """
        if values.dtype.kind != "u" or values.dtype.itemsize != 4 or values.shape[-1:] != (self.max_length,):
            expected = f"uint32 of shape (…, {self.max_length})"
            raise ValueError(f"values: {mismatch(expected, f'{values.dtype} of shape {values.shape}')}")
        native = np.ascontiguousarray(values, np.uint32)
        return native.view(f"U{self.max_length}").reshape(values.shape[:-1])


@briefly
@dataclass(frozen=True)
class Dict:
    """Space of named values. Each leaf of a subspace is a column, named `key`, or `key/…` if the subspace is nested."""

    spaces: Mapping[str, Space]

    def __getitem__(self, name: str) -> Space:
        """Return the subspace of a name.

        Raises:
            KeyError: there is none.
        """
        return self.spaces[name]

    def __len__(self) -> int:
        """Return the number of subspaces."""
        return len(self.spaces)

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the subspaces."""
        return iter(self.spaces)

    def __str__(self) -> str:
        return f"Dict({', '.join(f'{name}: {space}' for name, space in self.spaces.items())})"

    @property
    def flat_size(self) -> int:
        """Sum of the subspaces' flat sizes."""
        return sum(space.flat_size for space in self.spaces.values())


@briefly
@dataclass(frozen=True)
class Tuple:
    """Space of ordered values. Each leaf of a subspace is a column, named `0`, `1`, …, or `0/…` if it is nested."""

    spaces: tuple[Space, ...]

    def __getitem__(self, position: int) -> Space:
        """Return the subspace at a position.

        Raises:
            IndexError: there is none.
        """
        return self.spaces[position]

    def __len__(self) -> int:
        """Return the number of subspaces."""
        return len(self.spaces)

    def __iter__(self) -> Iterator[Space]:
        """Yield the subspaces."""
        return iter(self.spaces)

    def __str__(self) -> str:
        return f"Tuple({', '.join(map(str, self.spaces))})"

    @property
    def flat_size(self) -> int:
        """Sum of the subspaces' flat sizes."""
        return sum(space.flat_size for space in self.spaces)


Space = Box | Discrete | MultiDiscrete | MultiBinary | Text | Dict | Tuple
"""Any space. Its `flat_size` is the size of a value after `gymnasium.spaces.flatten`, which is the input of an MLP."""


def leaf_spaces(space: Space) -> Iterator[tuple[tuple[str | int, ...], Space]]:
    """Yield the path of each leaf, keys of Dict and positions of Tuple spaces, and its space."""
    match space:
        case Dict():
            children: list[tuple[str | int, Space]] = list(space.spaces.items())
        case Tuple():
            children = list(enumerate(space.spaces))
        case _:
            yield (), space
            return
    for key, child in children:
        for path, leaf in leaf_spaces(child):
            yield (key, *path), leaf


def named_leaves(space: Space, without: str | None = None) -> dict[str, Space]:
    """Return the leaves of a space by name, in the order of `gymnasium.spaces.flatten`.

    The name of the only one is empty.

    Args:
        space: the space.
        without: name of a leaf, or of a Dict or Tuple of leaves, that is left out, such as an action mask.
    """
    leaves = {"/".join(map(str, path)): leaf for path, leaf in leaf_spaces(space)}
    return leaves if without is None else {name: leaf for name, leaf in leaves.items() if not is_within(name, without)}


def is_within(name: str, part: str) -> bool:
    """Whether a leaf is a part of a space, or belongs to it, by their names."""
    return f"{name}/".startswith(f"{part}/")


def dtype_and_shape(leaf: Space) -> tuple[np.dtype, tuple[int, ...]]:
    """Return dtype and shape of the rows of a leaf."""
    match leaf:
        case Discrete():
            return np.dtype(np.int64), ()
        case Text():
            return np.dtype(np.uint32), (leaf.max_length,)
        case MultiDiscrete():
            return np.dtype(leaf.dtype), leaf.nvec.shape
        case MultiBinary():
            return np.dtype(np.int8), tuple(leaf.shape)
        case Box():
            return np.dtype(leaf.dtype), tuple(leaf.shape)
    raise TypeError(f"space: {mismatch('a leaf', leaf)}")


def space_to_proto(space: Space) -> space_pb2.Space:
    """Return a space as a message; a bound that all elements of a Box share is sent as one number."""
    match space:
        case Box():
            box = space_pb2.BoxSpace(
                data_type=dtype_to_proto(space.dtype),
                shape=space.shape,
                low=tensor_to_proto(_shared(space.low)),
                high=tensor_to_proto(_shared(space.high)),
            )
            return space_pb2.Space(box=box)
        case Discrete():
            return space_pb2.Space(discrete=space_pb2.DiscreteSpace(n=space.n, start=space.start))
        case MultiDiscrete():
            multi_discrete = space_pb2.MultiDiscreteSpace(
                data_type=dtype_to_proto(space.dtype),
                nvec=tensor_to_proto(space.nvec),
                start=tensor_to_proto(space.start),
            )
            return space_pb2.Space(multi_discrete=multi_discrete)
        case MultiBinary():
            return space_pb2.Space(multi_binary=space_pb2.MultiBinarySpace(shape=space.shape))
        case Text():
            text = space_pb2.TextSpace(
                max_length=space.max_length, min_length=space.min_length, characters=space.characters
            )
            return space_pb2.Space(text=text)
        case Dict():
            named = [
                space_pb2.NamedSpace(name=name, space=space_to_proto(subspace))
                for name, subspace in space.spaces.items()
            ]
            return space_pb2.Space(dict=space_pb2.DictSpace(spaces=named))
        case Tuple():
            subspaces = [space_to_proto(subspace) for subspace in space.spaces]
            return space_pb2.Space(tuple=space_pb2.TupleSpace(spaces=subspaces))


def space_from_proto(message: space_pb2.Space) -> Space:
    """Return the space that a message describes.

    Raises:
        ValueError: a message without a kind, or with one that this version does not know.
    """
    match message.WhichOneof("kind"):
        case "box":
            box = message.box
            shape, dtype = tuple(box.shape), dtype_from_proto(box.data_type)
            return Box(tensor_from_proto(box.low), tensor_from_proto(box.high), shape, dtype)
        case "discrete":
            return Discrete(message.discrete.n, message.discrete.start)
        case "multi_discrete":
            multi = message.multi_discrete
            nvec, start = tensor_from_proto(multi.nvec), tensor_from_proto(multi.start)
            return MultiDiscrete(nvec, start, dtype_from_proto(multi.data_type))
        case "multi_binary":
            return MultiBinary(tuple(message.multi_binary.shape))
        case "text":
            return Text(message.text.max_length, message.text.min_length, message.text.characters)
        case "dict":
            return Dict({named.name: space_from_proto(named.space) for named in message.dict.spaces})
        case "tuple":
            return Tuple(tuple(space_from_proto(space) for space in message.tuple.spaces))
        case kind:
            raise ValueError(f"kind: {mismatch('a kind of Space', kind)}")


def _shared(bounds: np.ndarray) -> np.ndarray:
    """Return the bound as a scalar if all elements share it, else all bounds."""
    if bounds.size and np.all(bounds == bounds.flat[0]):
        return np.asarray(bounds.flat[0])
    return bounds
