"""Environments whose episodes are no functions of their seeds."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Unseeded(gymnasium.Env[np.ndarray, int]):
    """Observations from a generator that no reset seeds."""

    observation_space = spaces.Box(0, 1, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self._generator = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observation(), 1.0, bool(self.np_random.random() < 0.1), False, {}

    def _observation(self) -> np.ndarray:
        return self._generator.random(1)


class Clock(Unseeded):
    """Observations of the time."""

    observation_space = spaces.Box(0, np.inf, (1,), np.float64)

    def _observation(self) -> np.ndarray:
        return np.array([time.time()])


class Curriculum(Unseeded):
    """Observations of the number of resets so far."""

    observation_space = spaces.Box(0, np.inf, (1,), np.float64)

    def __init__(self) -> None:
        self._num_episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._num_episodes += 1
        return super().reset(seed=seed)

    def _observation(self) -> np.ndarray:
        return np.array([float(self._num_episodes)])


class Ordered(gymnasium.Env[np.ndarray, int]):
    """Places four things at random, in the order of a set that has them: of texts, or of objects by their addresses."""

    observation_space = spaces.Box(0, 99, (20,), np.int64)
    action_space = spaces.Discrete(2)

    def __init__(self, by_address: bool = False) -> None:
        self._things = [object() if by_address else f"thing {number}" for number in range(20)]
        self._places = np.zeros(20, np.int64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        places = {thing: self.np_random.integers(100) for thing in set(self._things)}
        self._places = np.array([places[thing] for thing in self._things])
        self._step = 0
        return self._places, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return self._places, 1.0, self._step == 5, False, {}


class OrderedByAddress(Ordered):
    """An `Ordered` with objects in the set."""

    def __init__(self) -> None:
        super().__init__(by_address=True)


class ForgetsItsLength(gymnasium.Env[np.ndarray, int]):
    """Episodes of 1000 steps until 100 steps have been made in one, and of 100 steps from then on.

    A first look of two short episodes does not find out that they are no function of the seed.
    """

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self._length, self._step = 1000, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if self._step >= 100:
            self._length = 100
        self._step = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return np.zeros(1, np.float32), 1.0, self._step == self._length, False, {}
