"""An environment of dm_env, and the episodes of it that a plain loop plays."""

from __future__ import annotations

from typing import Any

import dm_env
import numpy as np
from dm_env import specs


class Catch(dm_env.Environment):
    """A ball that falls down a board, one row at a step, and a paddle that is there or not.

    The action has the paddle's move, in the type of its spec, and wind, which moves the ball. With a limit, an episode
    that takes more steps has no more time.
    """

    def __init__(self, seed: int | None = None, rows: int = 8, columns: int = 5, limit: int = 0) -> None:
        self._random = np.random.RandomState(seed)
        self._shape, self._limit = (rows, columns), limit

    def observation_spec(self) -> Any:
        return {
            "speed": specs.Array((), np.float64, name="speed"),
            "board": specs.BoundedArray(self._shape, np.float32, 0, 1, name="board"),
            "ball": {"row": specs.DiscreteArray(self._shape[0], name="ball.row")},
        }

    def action_spec(self) -> Any:
        return {
            "wind": specs.BoundedArray((2,), np.float32, [-1, -2], [1, 2], name="wind"),
            "paddle": specs.BoundedArray((), np.int8, -1, 1, name="paddle"),
        }

    def reset(self) -> dm_env.TimeStep:
        self._row, self._num_steps = 0, 0
        self._ball = float(self._random.randint(self._shape[1]))
        self._speed = self._random.random_sample()
        self._paddle = self._shape[1] // 2
        return dm_env.restart(self._observed())

    def step(self, action: Any) -> dm_env.TimeStep:
        for name, spec in self.action_spec().items():
            spec.validate(action[name])
        last = self._shape[1] - 1
        self._row, self._num_steps = self._row + 1, self._num_steps + 1
        self._ball = float(np.clip(self._ball + self._speed * action["wind"].sum(), 0, last))
        self._paddle = int(np.clip(self._paddle + action["paddle"], 0, last))
        if self._row == self._shape[0] - 1:
            return dm_env.termination(1.0 - abs(self._paddle - self._ball), self._observed())
        if self._num_steps == self._limit:
            return dm_env.truncation(-0.5, self._observed(), discount=0.75)
        return dm_env.transition(0.125 * self._row, self._observed(), discount=0.5)

    def _observed(self) -> Any:
        board = np.zeros(self._shape, np.float32)
        board[self._row, round(self._ball)] = board[-1, self._paddle] = 1
        return {"speed": np.float64(self._speed), "board": board, "ball": {"row": np.int32(self._row)}}
