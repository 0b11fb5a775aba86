"""Root seeds that derive from a pool's own."""

from __future__ import annotations

import numpy as np

__all__ = ["derived_seed"]


def derived_seed(seed: int, key: tuple[int, ...]) -> int:
    """Return a root seed of 64 bits, by numpy's SeedSequence: another one for each seed and key."""
    words = np.random.SeedSequence(seed, spawn_key=key).generate_state(2)
    return int(words[0]) << 32 | int(words[1])
