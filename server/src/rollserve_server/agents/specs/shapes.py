"""Dtypes and shapes of named arrays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

__all__ = ["ArrayType", "Shapes", "shapes_of"]

ArrayType = tuple[np.dtype, tuple[int, ...]]
"""Dtype and shape of an array."""

Shapes = Mapping[str, ArrayType]
"""Dtype and shape of arrays, by name."""


def shapes_of(arrays: Mapping[str, np.ndarray]) -> Shapes:
    """Return dtype and shape of each array."""
    return {name: (array.dtype, array.shape) for name, array in arrays.items()}
