"""Seeded resets of ALE's Atari games, without the time that ALE takes to load a game again.

`AtariEnv.reset(seed=…)` loads the game again, because ALE takes a seed only then. Nearly all of that time, about 90 ms,
goes into tables of colors. The seed determines a single part of what is loaded: the state of the Mersenne Twister that
decides which actions are repeated.
"""

from __future__ import annotations

import functools
import struct
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import gymnasium

__all__ = ["hasten_resets"]

_NUM_HEAD_BYTES = 6 * 4  # paddles, frame numbers, mode and difficulty
_NUM_TAIL_BYTES = 2 * 4  # limits of the paddles


def hasten_resets(env: gymnasium.Env[Any, Any]) -> None:
    """Make seeded resets of a game of ALE many times as fast, with the same results; leave other environments alone."""
    game: Any = env.unwrapped
    is_game = (type(game).__module__, type(game).__name__) == ("ale_py.env", "AtariEnv")
    if is_game and isinstance(_serialized(game.ale), bytes):
        # Without a reference to itself, the game is freed as soon as nobody uses it.
        load = functools.partial(type(game).load_game, weakref.proxy(game))
        game.load_game = _GameLoader(game.ale, load)


class _GameLoader:
    """Loads a game twice, and from then on restores what the first load did, with another seed.

    The second time, it does both and compares them: should ALE change, it loads the game each time.
    """

    def __init__(self, ale: Any, load: Callable[[], None]) -> None:
        self._ale = ale
        self._load = load
        # Seed and result of the first load.
        self._first_seed, self._first = 0, b""
        # Whether restoring does the same as loading; None until they are compared.
        self._is_same: bool | None = None

    def __call__(self) -> None:
        """Load the game with the seed that is set."""
        seed = self._ale.getInt("random_seed")
        if not self._first:
            self._load()
            self._first_seed, self._first = seed, _serialized(self._ale)
        elif self._is_same is None:
            self._restore(seed)
            restored = _serialized(self._ale)
            self._load()
            self._is_same = restored == _serialized(self._ale)
        elif self._is_same:
            self._restore(seed)
        else:
            self._load()

    def _restore(self, seed: int) -> None:
        state_type = type(self._ale.cloneSystemState())
        self._ale.restoreSystemState(state_type(_with_seed(self._first, self._first_seed, seed)))


def _serialized(ale: Any) -> bytes:
    """Return the state of a game, with its generator; not bytes before ale-py 0.12."""
    serialized: bytes = ale.cloneSystemState().__getstate__()
    return serialized


def _with_seed(state: bytes, seed: int, other_seed: int) -> bytes:
    """Return the state after a load with one seed as it is after a load with another; unchanged if it is unreadable."""
    generator, tail = _generator(seed), state[-_NUM_TAIL_BYTES:]
    if not state.endswith(generator + tail):
        return state
    machine = state[_NUM_HEAD_BYTES + 4 : -len(generator + tail)]
    return state[:_NUM_HEAD_BYTES] + _with_length(machine + _generator(other_seed)) + tail


def _generator(seed: int) -> bytes:
    """Return a seeded Mersenne Twister as ALE serializes it."""
    words = np.random.RandomState(seed % 2**32).get_state(legacy=False)["state"]["key"]
    return _with_length(" ".join(map(str, (*words.tolist(), len(words)))).encode())


def _with_length(content: bytes) -> bytes:
    return struct.pack("<i", len(content)) + content
