"""Spaces as flat lists of named leaves; texts as arrays of one shape."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space
from gymnasium import spaces as gym_spaces

from rollserve_server.errors import InvalidValueError, show
from rollserve_wire import spaces
from rollserve_wire.errors import mismatch
from rollserve_wire.tensors import dtype_to_proto

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = [
    "Leaf",
    "any_value",
    "decode_texts",
    "describe_space",
    "encode_text",
    "leaf_bounds",
    "leaves_of_space",
    "value_range",
]

_CODE_POINT = np.dtype(np.uint32)

_VARYING = (gym_spaces.Text, gym_spaces.Sequence, gym_spaces.Graph, gym_spaces.OneOf)
"""Spaces whose values differ in size or kind."""


@dataclass(frozen=True, eq=False)
class Leaf:
    """An array-valued part of a space, which may be the whole space.

    Attributes:
        name: path from the root, joined by `/`; empty for the root.
        path: keys and positions from the root.
        space: a Box, Discrete, MultiDiscrete, MultiBinary or Text space.
        shape: shape of a value.
        dtype: dtype of a value.
    """

    name: str
    path: tuple[str | int, ...]
    space: Space[Any]
    shape: tuple[int, ...]
    dtype: np.dtype

    def takes(self, value: Any) -> bool:
        """Whether numpy can store the value in a column without loss. Called at each step, so it is quick."""
        if type(value) is np.ndarray:
            return value.dtype is self.dtype and value.shape == self.shape
        return type(value) in self._number_types

    @functools.cached_property
    def _number_types(self) -> frozenset[type]:
        if self.shape:
            return frozenset()
        if self.dtype.kind == "f":
            return frozenset({self.dtype.type, float})
        if self.dtype == np.int64:
            return frozenset({self.dtype.type, int})
        return frozenset({self.dtype.type})


def leaves_of_space(space: Space[Any], values: str = "values", *, texts: bool = True) -> tuple[Leaf, ...]:
    """Return the leaves of a space, in the order of `gymnasium.spaces.flatten`.

    Args:
        space: the space.
        values: name of its values in errors, such as "observations".
        texts: whether it may have texts.

    Raises:
        InvalidValueError: the space has a part of another kind, a dtype that messages cannot hold, an array without
            elements, or a key that is no string or contains `/`.
    """
    return tuple(_leaves(space, (), values, texts))


def describe_space(space: Space[Any]) -> spaces.Space:
    """Return the space without gymnasium's classes. `leaves_of_space` must accept it."""
    match space:
        case gym_spaces.Box():
            return spaces.Box(space.low, space.high, space.shape, np.dtype(space.dtype))
        case gym_spaces.Discrete():
            return spaces.Discrete(int(space.n), int(space.start))
        case gym_spaces.MultiDiscrete():
            return spaces.MultiDiscrete(space.nvec, space.start, np.dtype(space.dtype))
        case gym_spaces.MultiBinary():
            return spaces.MultiBinary(space.shape)
        case gym_spaces.Text():
            return spaces.Text(space.max_length, space.min_length, space.characters)
        case gym_spaces.Dict():
            return spaces.Dict({key: describe_space(subspace) for key, subspace in space.spaces.items()})
        case gym_spaces.Tuple():
            return spaces.Tuple(tuple(map(describe_space, space.spaces)))
        case _:
            raise _unsupported(space, (), "values", texts=True)


def any_value(leaf: Leaf) -> np.ndarray:
    """Return a value of the leaf, (*shape): zeros where they are in its space."""
    space: Any = leaf.space
    match space:
        case gym_spaces.Discrete() | gym_spaces.MultiDiscrete():
            value = space.start
        case gym_spaces.Box():
            value = np.clip(0, space.low, space.high)
        case gym_spaces.Text():
            value = encode_text(space.characters[:1] * space.min_length, space)
        case _:
            value = 0
    return np.broadcast_to(value, leaf.shape).astype(leaf.dtype)


def value_range(leaf: Leaf) -> tuple[Any, Any]:
    """Return the lowest and the highest values of the leaf's space, numbers or arrays (*shape)."""
    space: Any = leaf.space
    match space:
        case gym_spaces.Box():
            return space.low, space.high
        case gym_spaces.Discrete():
            return space.start, space.start + space.n - 1
        case gym_spaces.MultiDiscrete():
            return space.start, space.start + space.nvec - 1
        case gym_spaces.Text():
            return 0, _MAX_CODE_POINT
        case _:
            return 0, 1


def leaf_bounds(leaf: Leaf) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the lower and the upper bounds of the leaf's elements, (size,) each; infinite where there is none."""
    low, high = (np.broadcast_to(end, leaf.shape) for end in value_range(leaf))
    space: Any = leaf.space
    if isinstance(space, gym_spaces.Box):  # integers without a bound still have a lowest and a highest value
        low = np.where(space.bounded_below, low, -np.inf)
        high = np.where(space.bounded_above, high, np.inf)
    return low.ravel().astype(np.float64), high.ravel().astype(np.float64)


def _leaves(space: Space[Any], path: tuple[str | int, ...], values: str, texts: bool) -> Iterator[Leaf]:
    match space:
        case gym_spaces.Dict():
            for key, subspace in space.spaces.items():
                if not _is_name(key):
                    expected = "an environment whose spaces have names without / as keys"
                    raise InvalidValueError.of("id", expected=expected, got=f"{values} with the key {show(key)}")
                yield from _leaves(subspace, (*path, key), values, texts)
        case gym_spaces.Tuple():
            for position, subspace in enumerate(space.spaces):
                yield from _leaves(subspace, (*path, position), values, texts)
        case gym_spaces.Box() | gym_spaces.Discrete() | gym_spaces.MultiDiscrete() | gym_spaces.MultiBinary():
            dtype = np.dtype(space.dtype)
            try:
                dtype_to_proto(dtype)
            except ValueError as error:
                raise InvalidValueError(f"the environment's {_at(values, path)}: {error}", field="id") from None
            if 0 in (space.shape or ()):
                expected = "an environment whose arrays have at least one element"
                raise InvalidValueError.of("id", expected=expected, got=f"{_at(values, path)} of shape {space.shape}")
            yield Leaf(_name(path), path, space, space.shape or (), dtype)
        case gym_spaces.Text() if texts:
            if reason := _why_no_array(space):
                expected = "an environment whose texts have at least one character, and no '\\0'"
                raise InvalidValueError.of("id", expected=expected, got=f"{_at(values, path)} with {reason} in a Text")
            yield Leaf(_name(path), path, space, (space.max_length,), _CODE_POINT)
        case _:
            raise _unsupported(space, path, values, texts=texts)


def _is_name(key: object) -> bool:
    """Whether a key can be part of a leaf's name, which is Unicode text."""
    return isinstance(key, str) and key != "" and "/" not in key and key == key.encode(errors="replace").decode()


def _name(path: tuple[str | int, ...]) -> str:
    return "/".join(map(str, path))


def _at(values: str, path: tuple[str | int, ...]) -> str:
    """Return the name of the values at a path, such as `observations at 'arm/0'`."""
    return f"{values} at {_name(path)!r}" if path else values


def _unsupported(space: object, path: tuple[str | int, ...], values: str, *, texts: bool) -> InvalidValueError:
    kinds = "MultiBinary, Text, Dict" if texts else "MultiBinary, Dict"
    expected = f"an environment with Box, Discrete, MultiDiscrete, {kinds} and Tuple spaces"
    got = f"{_at(values, path)} in a {type(space).__name__} space"
    hint = (
        "values need one shape and dtype, which the wrapper FixedShapes gives them"
        if isinstance(space, _VARYING)
        else ""
    )
    return InvalidValueError.of("id", expected=expected, got=got, hint=hint)


_MAX_CODE_POINT = 0x10FFFF


def _why_no_array(space: gym_spaces.Text) -> str:
    """Return why the texts of a space are no arrays of one shape; empty if they are."""
    if space.max_length < 1:
        return "no character"
    return "the character '\\0', which ends texts," if "\0" in space.character_set else ""


def encode_text(value: Any, space: gym_spaces.Text) -> np.ndarray:
    """Return a text as Unicode code points with zeros after the last one, (max_length,), as numpy stores it.

    Characters outside the space pass.

    Raises:
        ValueError: the value is no text, is longer than the space's texts, or has a zero among its characters.
    """
    if not isinstance(value, str):
        raise ValueError(mismatch("a text", type(value).__name__))
    if len(value) > space.max_length:
        raise ValueError(mismatch(f"at most {space.max_length} characters", len(value)))
    if "\0" in value:
        raise ValueError(mismatch("a text without '\\0'", f"one at position {value.index(chr(0))}"))
    return np.array([value], f"U{space.max_length}").view(_CODE_POINT)


def decode_texts(column: np.ndarray) -> list[str]:
    """Return the text of each row, given the code points (M, max_length)."""
    texts: list[str] = np.ascontiguousarray(column).view(f"U{column.shape[1]}")[:, 0].tolist()
    return texts
