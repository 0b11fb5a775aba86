"""An environment as old ones are, with the four values of gym's `step`; it needs numpy alone, of any version."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from rollserve_env_host.environments import Box, Discrete


class OldStyle:
    """A walk from a random place that ends below zero, or after six steps.

    An observation is the place, and numpy's version: major, minor.
    """

    observation_space = Box(-np.inf, np.inf, (3,), np.float64)
    action_space = Discrete(3, -1)
    spec = SimpleNamespace(max_episode_steps=6, nondeterministic=False)

    def seed(self, seed: Any = None) -> Any:
        self._random = np.random.RandomState(seed)
        return [seed]

    def reset(self) -> Any:
        self._num_steps, self._place = 0, self._random.random_sample()
        return self._observed()

    def step(self, action: Any) -> Any:
        self._num_steps += 1
        self._place += action * self._random.random_sample()
        is_below, is_late = bool(self._place < 0), self._num_steps == 6
        infos = {"TimeLimit.truncated": not is_below} if is_late else {}
        return self._observed(), self._place / 3, is_below or is_late, infos

    def close(self) -> None:
        pass

    def _observed(self) -> Any:
        return np.array([self._place, *map(int, np.__version__.split(".")[:2])], np.float64)
