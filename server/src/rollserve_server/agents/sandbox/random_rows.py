"""Random observations for probes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from gymnasium import spaces

from rollserve_server.envs import leaf_bounds

if TYPE_CHECKING:
    from rollserve_server.agents.agent import ActionMask
    from rollserve_server.envs import Leaf

__all__ = ["NUM_PROBE_ROWS", "random_masks", "random_rows"]

NUM_PROBE_ROWS = 80
"""Number of observations that a probe has."""

_FAR = 1e4  # bounds beyond this count as none


def random_rows(leaf: Leaf, generator: np.random.Generator) -> np.ndarray:
    """Return random values of a leaf, (80, *shape): uniform between near bounds, else normal."""
    if isinstance(leaf.space, spaces.Text):
        return _random_texts(leaf.space, generator)
    low, high = leaf_bounds(leaf)
    far = (low < -_FAR) | (high > _FAR)
    near_low, near_high = np.where(far, 0, low), np.where(far, 0, high)
    shape = (NUM_PROBE_ROWS, low.size)
    if leaf.dtype.kind == "f":
        values = generator.uniform(near_low, near_high, shape)
    else:
        values = generator.integers(near_low, near_high, shape, endpoint=True).astype(np.float64)
    normal = np.clip(generator.standard_normal(shape), low, high)
    values = np.where(far, normal if leaf.dtype.kind == "f" else np.trunc(normal), values)
    return values.astype(leaf.dtype).reshape(NUM_PROBE_ROWS, *leaf.shape)


def _random_texts(space: spaces.Text, generator: np.random.Generator) -> np.ndarray:
    """Return the code points of random texts of a space, (80, max_length)."""
    characters = np.array([ord(character) for character in space.characters] or [0], np.uint32)
    values = generator.choice(characters, (NUM_PROBE_ROWS, space.max_length))
    lengths = generator.integers(space.min_length, space.max_length, NUM_PROBE_ROWS, endpoint=True)
    values[np.arange(space.max_length) >= lengths[:, np.newaxis]] = 0
    return values


def random_masks(mask: ActionMask, generator: np.random.Generator) -> np.ndarray:
    """Return random legal actions, (80, S) bool; each element of an action has a legal value."""
    legal = generator.random((NUM_PROBE_ROWS, mask.size)) < 0.5
    for leaf in mask.leaves:
        of_leaf = legal[:, leaf.columns]
        for part, count in zip(leaf.parts, leaf.counts, strict=True):
            of_leaf[np.arange(NUM_PROBE_ROWS), part.start + generator.integers(count, size=NUM_PROBE_ROWS)] = True
    return legal
