"""Spaces as every process can read them; boxes whose elements share their bounds are pickled as a few bytes.

gymnasium's `Box` holds four arrays of its own shape. Every worker describes its spaces to the server, so that an
observation of some megabytes would take gigabytes there.
"""

from __future__ import annotations

import copyreg
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces
from gymnasium.spaces import Box

from rollserve_server.envs.leaves import describe_space
from rollserve_server.errors import OverLimitError
from rollserve_wire.reasons import Reason
from rollserve_wire.spaces import space_to_proto

__all__ = ["box_of", "check_space_sizes", "pickle_uniform_boxes", "plain_space"]

_MAX_SPACE_BYTES = 1 << 20
"""Bytes of both spaces as messages. With `MAX_ENV_BYTES` and the state of 10,000 workers, an answer stays below the
4 MiB that clients accept by default."""


def pickle_uniform_boxes() -> None:
    """Make this process pickle boxes whose elements share their bounds as a few bytes."""
    copyreg.pickle(Box, _reduced)


def box_of(state: Mapping[str, Any]) -> Box:
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
            return box_of({"_shape": space.shape, "dtype": space.dtype, "_np_random": None, **bounds})
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


def check_space_sizes(observation_space: Space[Any], action_space: Space[Any]) -> None:
    """Raise OverLimitError if both spaces take more than 1 MiB; a bound that all elements share is one number.

    Every answer to `GetSampler` has the spaces of the environment.
    """
    size = sum(space_to_proto(describe_space(space)).ByteSize() for space in (observation_space, action_space))
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
    return box_of, ({name: _small(value) for name, value in vars(box).items()},)


def _small(value: Any) -> Any:
    if not isinstance(value, np.ndarray) or not value.size or not value.ndim:
        return value
    element = value[(slice(1),) * value.ndim].reshape(()).copy()
    return _Uniform(value.shape, element) if value.tobytes() == element.tobytes() * value.size else value
