"""Environments with tasks to be set or learnt."""

from __future__ import annotations

import functools
import math
import os
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Tasks(gymnasium.Env[np.ndarray, int]):
    """An environment whose task can be set; observations show its size, its task and an option of its reset.

    The info `number` tells how many environments its process had made when this one was made.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Discrete(2)
    num_made = 0

    def __init__(self, size: int = 1) -> None:
        Tasks.num_made += 1
        self._number = Tasks.num_made
        self._size, self._task = size, 0

    def set_task(self, task: Any) -> None:
        if task["goal"] < 0:
            raise ValueError("expected a goal of at least 0")
        self._task = task.pop("goal")

    def set_other_task(self, task: Any) -> None:
        self._other_task = task

    def describe(self, *arguments: Any) -> Any:
        """Return size and task, and the arguments; change all that can be changed."""
        described = {"size": np.int64(self._size), "task": self._task, "arguments": list(arguments)}
        self._size, self._task = 99, 99
        return described

    def misbehave(self, how: str) -> Any:
        """Do what no method should."""
        match how:
            case "raise":
                raise ValueError("no such level")
            case "die":
                os._exit(3)
            case "hang":
                time.sleep(3600)
            case "large":
                return "x" * (1 << 17)
        return {"nan": math.nan, "object": object(), "deep": functools.reduce(lambda inner, _: [inner], range(70), 0)}[
            how
        ]

    def set_task_for_admins(self, task: Any) -> None:
        self._task = 1000

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._start = (options or {}).pop("start", 0)
        return self._observation(), {"number": self._number}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observation(), 1.0, True, False, {}

    def _observation(self) -> np.ndarray:
        return np.array([self._size, self._task, self._start], np.float32)


class Recall(gymnasium.Env[int, int]):
    """A task that needs memory: the first observation is 1 or 2, and the last action is rewarded if it is one less."""

    observation_space = spaces.Discrete(3)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self._cue = int(self.np_random.integers(1, 3))
        self._steps_left = int(self.np_random.integers(2, 12))
        return self._cue, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self._steps_left -= 1
        over = self._steps_left == 0
        return 0, float(over and action == self._cue - 1), over, False, {}
