"""Boxes whose elements share their bounds, pickled as a few bytes.

gymnasium's `Box` holds four arrays of its own shape. Every worker describes its spaces to the server, so that an
observation of some megabytes would take gigabytes there.
"""

from __future__ import annotations

import copyreg
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box

__all__ = ["box_of", "pickle_uniform_boxes"]


def pickle_uniform_boxes() -> None:
    """Make this process pickle boxes whose elements share their bounds as a few bytes."""
    copyreg.pickle(Box, _reduced)


def box_of(state: Mapping[str, Any]) -> Box:
    """Return a box with these attributes. Its constructor refuses bounds that boxes have, such as numpy's booleans."""
    box = Box.__new__(Box)
    box.__setstate__({name: value.array() if isinstance(value, _Uniform) else value for name, value in state.items()})
    return box


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
