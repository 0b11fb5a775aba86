"""Values of spaces as the vectors that networks get."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rollserve_wire.columns import leaves_of
from rollserve_wire.errors import mismatch
from rollserve_wire.spaces import Discrete, MultiDiscrete, Text, is_within, named_leaves

if TYPE_CHECKING:
    from rollserve_wire.columns import Columns
    from rollserve_wire.spaces import Space

__all__ = ["flat_values"]


def flat_values(
    field: str, values: Columns, space: Space | None, *, without: str | None = None, dtype: type = np.float32
) -> np.ndarray:
    """Return values as `gymnasium.spaces.flatten` makes them, (T, flat size).

    Args:
        field: name of the columns, for errors.
        values: columns, by leaf where there are several.
        space: their space. Without one, all leaves must be floats or truth values, which need none.
        without: name of a leaf, or of a part of the space, that is left out; None for none.
        dtype: dtype of the result.

    Raises:
        ValueError: leaves that differ from the space's, texts, or integers without a space.
    """
    leaves = leaves_of(values)
    parts = dict.fromkeys(leaves) if space is None else named_leaves(space)
    if parts.keys() != leaves.keys():
        raise ValueError(f"{field}: {mismatch(f'leaves {sorted(parts)}', sorted(leaves))}")
    flat = [
        _flat_leaf(f"{field}[{name!r}]" if name else field, leaves[name], leaf, dtype)
        for name, leaf in parts.items()
        if without is None or not is_within(name, without)
    ]
    if without is not None and len(flat) == len(parts):
        raise ValueError(f"action_mask: {mismatch(f'one of the leaves {sorted(parts)}', repr(without))}")
    return np.concatenate(flat, axis=1)


def _flat_leaf(field: str, array: np.ndarray, leaf: Space | None, dtype: type) -> np.ndarray:
    """Return a leaf as (T, flat size): integers of Discrete and MultiDiscrete one-hot, others raveled."""
    if isinstance(leaf, Text):
        raise ValueError(f"{field}: {mismatch('numbers', 'texts')}")
    if leaf is None and array.dtype.kind not in "fb":
        hint = "integers may be one-hot: give the space, or ask for it with return_spaces=True"
        raise ValueError(f"{field}: {mismatch('floats, or an observation_space', array.dtype, hint)}")
    if not isinstance(leaf, Discrete | MultiDiscrete):
        return array.reshape(len(array), -1).astype(dtype)
    sizes = [leaf.n] if isinstance(leaf, Discrete) else leaf.nvec.ravel().tolist()
    numbers = (array - leaf.start).reshape(len(array), -1)
    return np.concatenate([np.eye(size, dtype=dtype)[numbers[:, i]] for i, size in enumerate(sizes)], axis=1)
