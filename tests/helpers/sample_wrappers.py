"""Wrappers for tests, which servers name `sample_wrappers:Class`, and what is none."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import ClipReward, RecordVideo
from gymnasium.wrappers.vector import NormalizeReward

__all__ = ["NOTHING", "ClipReward", "NormalizeReward", "Offset", "RecordVideo", "Remembers", "Spaceless", "function"]

NOTHING = None


class Offset(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Observations plus a number.

    Arguments:
        env: the environment.
        offset: the number, which is not negative.
    """

    def __init__(self, env: Any, offset: float = 1.0) -> None:
        super().__init__(env)
        if offset < 0:
            raise ValueError(f"offset {offset} is negative")
        self._offset = offset

    def observation(self, observation: Any) -> Any:
        return observation + np.float32(self._offset)


class Remembers(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Rewards that are the number of resets so far."""

    _num_resets = 0

    def reset(self, **arguments: Any) -> Any:
        self._num_resets += 1
        return super().reset(**arguments)

    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, float(self._num_resets), *rest


class Spaceless(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper without a space of observations."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = 3  # type: ignore[assignment]


def function(env: Any) -> Any:
    """Return the environment as it is."""
    return env
