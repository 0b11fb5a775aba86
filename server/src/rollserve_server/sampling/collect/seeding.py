"""Random numbers that are a function of a root seed and an episode's index only.

Philox is a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): the root
seed and a purpose are its key, and the index is one word of its counter. So every episode has 2**64 streams of 2**128
numbers each, and moving to a stream takes less than 1 µs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["EpisodeGenerator"]


_ENV_SEED, _ACTIONS, _POLICIES = 0, 1, 2
"""Purposes."""


class EpisodeGenerator:
    """A generator that can be moved to any stream of any episode.

    Attributes:
        actions: generator of action noise.
    """

    def __init__(self) -> None:
        self._bits = np.random.Philox(0)
        self._counter, self._key = np.zeros(4, np.uint64), np.zeros(2, np.uint64)
        self._state: dict[str, Any] = {
            "bit_generator": "Philox",
            "state": {"counter": self._counter, "key": self._key},
            "buffer": np.zeros(4, np.uint64),
            "buffer_pos": 4,
            "has_uint32": 0,
            "uinteger": 0,
        }
        self.actions = np.random.Generator(self._bits)

    def begin(self, root_seed: int, episode_index: int, part: int = 0) -> None:
        """Move `actions` to the beginning of a stream of an episode.

        Args:
            root_seed: root seed of the sequence.
            episode_index: index of the episode.
            part: number of the stream among the episode's streams of action noise.
        """
        self._move(_ACTIONS, root_seed, episode_index, part)

    def env_seed(self, root_seed: int, episode_index: int) -> int:
        """Return the seed for the environment's reset; `begin` has to be called before `actions` are used again.

        The seed is from 0 to 2**31 - 1, the range that every environment accepts.
        """
        self._move(_ENV_SEED, root_seed, episode_index, 0)
        return int(self._bits.random_raw()) >> 33

    def policy_numbers(self, root_seed: int, episode_index: int, count: int) -> np.ndarray:
        """Return the numbers (count,) from 0 up to 1 by which policies are drawn; then as after `env_seed`."""
        self._move(_POLICIES, root_seed, episode_index, 0)
        return self.actions.random(count)

    def _move(self, purpose: int, root_seed: int, episode_index: int, part: int) -> None:
        self._key[:] = root_seed, purpose
        # Drawing increments the two lower words.
        self._counter[2:] = episode_index, part
        self._bits.state = self._state  # type: ignore[assignment]  # numpy does not publish its type
