"""Environments for hosts, which depend on variables of their processes."""

from __future__ import annotations

import os
import signal
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Sized(gymnasium.Env):
    """Observations are as many zeros as the variable SIZE says."""

    def __init__(self) -> None:
        self._observation = np.zeros(int(os.environ["SIZE"]), np.float32)
        self.observation_space = Box(-1.0, 1.0, self._observation.shape, np.float32)
        self.action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._observation, {}

    def step(self, action: Any) -> Any:
        return self._observation, 1.0, True, False, {}


class Mortal(gymnasium.Wrapper):
    """CartPole-v1 whose process dies in a step once there is the file that the variable DEATH names, and removes it."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action: Any) -> Any:
        try:
            os.unlink(os.environ["DEATH"])
        except FileNotFoundError:
            return super().step(action)
        return os.kill(os.getpid(), signal.SIGKILL)
