"""Root seeds that derive from a pool's own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

__all__ = ["derived_seed", "derived_seeds"]


def derived_seed(seed: int, key: tuple[int, ...]) -> int:
    """Return a root seed of 64 bits, by numpy's SeedSequence: another one for each seed and key."""
    words = np.random.SeedSequence(seed, spawn_key=key).generate_state(2)
    return int(words[0]) << 32 | int(words[1])


def derived_seeds(seed: int, key: tuple[int, ...] = ()) -> Iterator[int]:
    """Return the root seeds whose keys begin with this one and end with 1, 2, 3 and so on."""
    return (derived_seed(seed, (*key, number)) for number in itertools.count(1))
