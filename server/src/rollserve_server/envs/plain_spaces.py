"""Spaces as every process can read them; boxes whose elements share their bounds are pickled as a few bytes.

gymnasium's `Box` holds four arrays of its own shape. Every worker describes its spaces to the server, so that an
observation of some megabytes would take gigabytes there.
"""

from __future__ import annotations

import copyreg
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces
from gymnasium.spaces import Box

from rollserve_server.envs.leaves import describe_space
from rollserve_server.errors import OverLimitError
from rollserve_wire import spaces as wire_spaces
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from rollserve_wire.v1 import space_pb2

__all__ = [
    "check_space_sizes",
    "is_same_space",
    "pickle_uniform_boxes",
    "plain_space",
    "space_from_proto",
    "space_to_proto",
]

_MAX_SPACE_BYTES = 1 << 20
"""Bytes of both spaces as messages. With `MAX_ENV_BYTES` and the state of 10,000 workers, an answer stays below the
4 MiB that clients accept by default."""


def pickle_uniform_boxes() -> None:
    """Make this process pickle boxes whose elements share their bounds as a few bytes."""
    copyreg.pickle(Box, _reduced)


def _box_of(state: Mapping[str, Any]) -> Box:
    """Return a box with these attributes. Its constructor refuses bounds that boxes have, such as numpy's booleans."""
    box = Box.__new__(Box)
    box.__setstate__({name: value.array() if isinstance(value, _Uniform) else value for name, value in state.items()})
    return box


def plain_space(space: Space[Any]) -> Space[Any]:
    """Return the space as gymnasium's own classes: a process that reads it may not have the environment's classes."""
    match space:
        case spaces.Dict():
            return spaces.Dict(OrderedDict((key, plain_space(part)) for key, part in space.spaces.items()))
        case spaces.Tuple():
            return spaces.Tuple([plain_space(part) for part in space.spaces])
        case _ if type(space).__module__.startswith("gymnasium."):
            return space
        case Box():
            bounds = {name: getattr(space, name) for name in ("low", "high", "bounded_below", "bounded_above")}
            return _box_of({"_shape": space.shape, "dtype": space.dtype, "_np_random": None, **bounds})
        case spaces.Discrete():
            # Gymnasium's older versions have this dtype only.
            dtype: Any = {} if space.dtype == np.int64 else {"dtype": np.dtype(space.dtype).type}
            return spaces.Discrete(int(space.n), start=int(space.start), **dtype)
        case spaces.MultiDiscrete():
            return spaces.MultiDiscrete(space.nvec, np.dtype(space.dtype).type, start=space.start)
        case spaces.MultiBinary():
            return spaces.MultiBinary(space.n)
        case spaces.Text():
            return spaces.Text(space.max_length, min_length=space.min_length, charset=space.characters)
        case _:
            return space


def is_same_space(one: Space[Any], other: Space[Any]) -> bool:
    """Whether two spaces are equal by their messages, as of a worker and of the state that an earlier server left.

    Messages do not tell dtypes of Discrete spaces, nor whether the bounds of integers were given.
    """
    return space_to_proto(one) == space_to_proto(other)


def space_to_proto(space: Space[Any]) -> space_pb2.Space:
    """Return the message that describes a space. `leaves_of_space` must accept it."""
    return wire_spaces.space_to_proto(describe_space(space))


def space_from_proto(message: space_pb2.Space) -> Space[Any]:
    """Return the space that a message describes, whose values have the dtypes of columns.

    Raises:
        ValueError: a message without a kind, or with a malformed bound.
    """
    return _space_of(wire_spaces.space_from_proto(message))


def _space_of(space: wire_spaces.Space) -> Space[Any]:
    match space:
        case wire_spaces.Box():
            low, high = (np.broadcast_to(bound, space.shape) for bound in (space.low, space.high))
            bounds = {"low": low, "high": high, "bounded_below": low > -np.inf, "bounded_above": high < np.inf}
            return _box_of({"_shape": space.shape, "dtype": space.dtype, "_np_random": None, **bounds})
        case wire_spaces.Discrete():
            return spaces.Discrete(space.n, start=space.start)
        case wire_spaces.MultiDiscrete():
            return spaces.MultiDiscrete(space.nvec, space.dtype.type, start=space.start)
        case wire_spaces.MultiBinary():
            return spaces.MultiBinary(space.shape[0] if len(space.shape) == 1 else space.shape)
        case wire_spaces.Text():
            return spaces.Text(space.max_length, min_length=space.min_length, charset=space.characters)
        case wire_spaces.Dict():
            # An OrderedDict keeps its order; any other mapping would be sorted.
            return spaces.Dict(OrderedDict((name, _space_of(part)) for name, part in space.spaces.items()))
        case wire_spaces.Tuple():
            return spaces.Tuple([_space_of(part) for part in space.spaces])


def check_space_sizes(observation_space: Space[Any], action_space: Space[Any]) -> None:
    """Raise OverLimitError if both spaces take more than 1 MiB; a bound that all elements share is one number.

    Every answer to `GetSampler` has the spaces of the environment.
    """
    size = sum(space_to_proto(space).ByteSize() for space in (observation_space, action_space))
    if size > _MAX_SPACE_BYTES:
        expected = f"an environment whose spaces take at most {_MAX_SPACE_BYTES} bytes"
        hint = "a bound that all elements of a Box share takes a few bytes"
        raise OverLimitError.of("id", expected=expected, got=size, hint=hint, reason=Reason.ENVIRONMENTS_TOO_LARGE)


class _Uniform(NamedTuple):
    """An array whose elements are the same, bit by bit."""

    shape: tuple[int, ...]
    element: np.ndarray

    def array(self) -> np.ndarray:
        """Return the array, which is read-only, and has one element in memory."""
        return np.broadcast_to(self.element, self.shape)


def _reduced(box: Any) -> tuple[Any, ...]:
    return _box_of, ({name: _small(value) for name, value in vars(box).items()},)


def _small(value: Any) -> Any:
    if not isinstance(value, np.ndarray) or not value.size or not value.ndim:
        return value
    element = value[(slice(1),) * value.ndim].reshape(()).copy()
    return _Uniform(value.shape, element) if value.tobytes() == element.tobytes() * value.size else value
