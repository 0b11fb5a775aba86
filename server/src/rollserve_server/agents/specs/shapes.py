"""Dtypes and shapes of named arrays, and the slices of arrays side by side."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import numpy as np

__all__ = ["ArrayType", "Shapes", "consecutive", "shapes_of"]

ArrayType = tuple[np.dtype, tuple[int, ...]]
"""Dtype and shape of an array."""

Shapes = Mapping[str, ArrayType]
"""Dtype and shape of arrays, by name."""


def shapes_of(arrays: Mapping[str, np.ndarray]) -> Shapes:
    """Return dtype and shape of each array."""
    return {name: (array.dtype, array.shape) for name, array in arrays.items()}


def consecutive(sizes: Iterable[int]) -> list[slice]:
    """Return slices of these sizes, one behind the other from 0."""
    return list(itertools.starmap(slice, itertools.pairwise(itertools.accumulate(sizes, initial=0))))
