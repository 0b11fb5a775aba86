"""Environments of colored pictures, and of actions with several bounds."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Pictures(gymnasium.Env[np.ndarray, np.ndarray]):
    """Pictures of random colors, random rewards, and the info `got` with the action that arrived.

    Arguments:
        mean_length: mean length of episodes.
        nested: whether there are numbers beside the pictures.
    """

    action_space = spaces.Box(np.float32([-2, 0]), np.float32([1, 3]))

    def __init__(self, mean_length: int = 6, nested: bool = False) -> None:
        self._mean_length, self._nested = mean_length, nested
        self._picture = spaces.Box(0, 255, (12, 10, 3), np.uint8)
        self.observation_space: Any = self._picture
        if nested:
            numbers = spaces.Box(np.float32([-1, -3]), np.float32([1, 5]))
            counts = spaces.MultiDiscrete([3, 2], start=[1, 0])
            self.observation_space = spaces.Dict(
                picture=self._picture, rest=spaces.Tuple((numbers, spaces.Discrete(4, start=-1), counts))
            )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        got = np.array(action)
        action[:] = np.nan  # nobody else may see what an environment does to its argument
        reward = float(self.np_random.normal(scale=3))
        return self._observation(), reward, self.np_random.random() < 1 / self._mean_length, False, {"got": got}

    def _observation(self) -> Any:
        picture = self.np_random.integers(0, 256, self._picture.shape, np.uint8)
        if not self._nested:
            return picture
        numbers = self.np_random.uniform([-1, -3], [1, 5]).astype(np.float32)
        counts = self.np_random.integers([1, 0], [4, 2])
        return {"picture": picture, "rest": (numbers, self.np_random.integers(-1, 3), counts)}


class PictureRows(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Rows of `Pictures` with same-step resets.

    Arguments:
        num_envs: number of rows.
        **arguments: arguments of each row.
    """

    def __init__(self, num_envs: int, **arguments: Any) -> None:
        self.num_envs = num_envs
        self._rows = [Pictures(**arguments) for _ in range(num_envs)]
        self.single_observation_space = self._rows[0].observation_space
        self.single_action_space = self._rows[0].action_space
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        observations = [env.reset(seed=None if seed is None else seed + row)[0] for row, env in enumerate(self._rows)]
        return self._batch(observations), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observations, rewards, terminated, truncated, infos = zip(
            *(env.step(action) for env, action in zip(self._rows, actions, strict=True)), strict=True
        )
        joined: dict[str, Any] = {"got": np.stack([info["got"] for info in infos])}
        if any(terminated):
            joined = {"final_obs": self._batch(observations), "final_info": joined, **joined}
            ends = zip(self._rows, observations, terminated, strict=True)
            observations = tuple(env.reset()[0] if ended else seen for env, seen, ended in ends)
        return self._batch(observations), np.array(rewards), np.array(terminated), np.array(truncated), joined

    def _batch(self, observations: Any) -> Any:
        empty = gymnasium.vector.utils.create_empty_array(self.single_observation_space, self.num_envs)
        return gymnasium.vector.utils.concatenate(self.single_observation_space, observations, empty)
