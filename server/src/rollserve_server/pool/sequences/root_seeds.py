"""Root seeds that derive from a pool's own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

__all__ = ["DerivedSeeds", "derived_seed"]


def derived_seed(seed: int, key: tuple[int, ...]) -> int:
    """Return a root seed of 64 bits, by numpy's SeedSequence: another one for each seed and key."""
    words = np.random.SeedSequence(seed, spawn_key=key).generate_state(2)
    return int(words[0]) << 32 | int(words[1])


class DerivedSeeds(Iterator[int]):
    """The root seeds whose keys begin with one key and end with 1, 2, 3 and so on.

    Attributes:
        num_drawn: number of seeds that were drawn.
    """

    def __init__(self, seed: int, key: tuple[int, ...] = (), num_drawn: int = 0) -> None:
        """Begin behind the seeds that were drawn before."""
        self._seed, self._key = seed, key
        self.num_drawn = num_drawn

    def __next__(self) -> int:
        self.num_drawn += 1
        return derived_seed(self._seed, (*self._key, self.num_drawn))
