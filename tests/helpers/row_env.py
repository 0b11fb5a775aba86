"""A row of a vector of environments as an environment of its own, for checkers of single environments."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

__all__ = ["RowEnv"]


class RowEnv(gymnasium.Env[Any, Any]):
    """The first row of a vector as an environment of its own; the others make the same steps."""

    def __init__(self, envs: gymnasium.vector.VectorEnv[Any, Any, Any]) -> None:
        self._envs = envs
        self.observation_space, self.action_space = envs.single_observation_space, envs.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        observations, _ = self._envs.reset(seed=seed, options=options)
        return observations[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        columns = self._envs.step(np.stack([action] * self._envs.num_envs))[:4]
        observation, reward, terminated, truncated = (column[0] for column in columns)
        return observation, float(reward), bool(terminated), bool(truncated), {}
