"""Boxes whose elements share their bounds, pickled as a few bytes.

gymnasium's `Box` holds four arrays of its own shape. Every worker describes its spaces to the server, so that an
observation of some megabytes would take gigabytes there.
"""

from __future__ import annotations

import copyreg
from typing import Any

import numpy as np
from gymnasium.spaces import Box

__all__ = ["pickle_uniform_boxes"]

_BOUNDS = ("low", "high", "bounded_below", "bounded_above")


def pickle_uniform_boxes() -> None:
    """Make this process pickle boxes whose elements share their bounds as a few bytes."""
    copyreg.pickle(Box, _reduced)


def _reduced(box: Any) -> tuple[Any, ...]:
    bounds = [getattr(box, name) for name in _BOUNDS]
    if box.shape and all(bound.size and (bound == bound.flat[0]).all() for bound in bounds):
        return _uniform_box, (box.shape, [bound.flat[0] for bound in bounds])
    reduced: Any = object.__reduce_ex__(box, 2)
    return reduced  # type: ignore[no-any-return]


def _uniform_box(shape: tuple[int, ...], bounds: list[Any]) -> Any:
    """Return a box whose bounds are read-only arrays with one element each in memory."""
    low, high, *_ = bounds
    box: Any = Box(low, high, shape, dtype=low.dtype.type)
    for name, bound in zip(_BOUNDS, bounds, strict=True):
        setattr(box, name, np.broadcast_to(bound, shape))
    return box
