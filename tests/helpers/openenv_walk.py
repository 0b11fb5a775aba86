"""A walk that servers of OpenEnv have in tests, and its schema of actions."""

from __future__ import annotations

import random
from typing import Any

SCHEMA = {
    "properties": {
        "metadata": {"type": "object"},
        "move": {"type": "integer", "minimum": -1, "maximum": 1},
        "jump": {"type": "boolean"},
        "wind": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
        "push": {"type": "number", "default": 0.25},
        "level": {"type": "integer", "default": 3},
    },
    "required": ["move", "jump", "wind"],
}


class Walk:
    """A walk of five steps from a random place."""

    def reset(self, seed: int | None = None, start: float = 0.0) -> Any:
        self._random = random.Random(seed)
        self._place, self._num_steps = start + self._random.random(), 0
        return self._observed(False, 3)

    def step(self, move: int, jump: bool, wind: list[float], push: float, level: int) -> Any:
        """Make a step; return observation, reward and whether the episode is over."""
        if not isinstance(jump, bool) or not isinstance(move, int):
            raise TypeError("expected an integer and a truth value")
        self._num_steps += 1
        self._place += move * self._random.random() + wind[0] * push
        return self._observed(jump, level), self._place - wind[1], self._num_steps == 5

    def _observed(self, jump: bool, level: int) -> Any:
        grid = [[self._num_steps, level], [1, 2]]
        return {"place": self._place, "grid": grid, "jumped": jump, "text": "fine", "metadata": {"level": level}}
