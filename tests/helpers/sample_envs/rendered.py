"""An environment that renders small pictures, or makes trouble when it is rendered, and only then."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

__all__ = ["Rendered"]

_HEIGHT, _WIDTH = 33, 47


class Rendered(gymnasium.Env[Any, Any]):
    """Pictures of an odd size whose colours say the state, of nested observations and actions.

    The trouble is `none`, `mode` (the mode is refused), `nothing`, `gray` (no colours), `empty`, `growing`, `render`
    (an error), `exit`, `interrupt`, `step` (an error), `hang`, `crash`, `differ` (other observations) and `memory`.
    """

    observation_space = spaces.Dict(
        {"place": spaces.Box(-10, 10, (2,), np.float32), "turns": spaces.Discrete(256), "flag": spaces.MultiBinary(3)}
    )
    action_space = spaces.Dict({"push": spaces.Box(-1, 1, (2,), np.float32), "turn": spaces.Discrete(2, start=1)})
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 12}  # noqa: RUF012  # as gymnasium has it

    def __init__(self, trouble: str = "none", render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self._trouble = trouble if render_mode == "rgb_array" else "none"
        if self._trouble == "mode":
            raise ValueError("no such mode")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        self._turns, self._step = 0, 0
        self._length = int(self.np_random.integers(4, 9)) if not options else options["length"]
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        if self._step == 2:
            self._make_trouble()
        self._place += action["push"]
        self._turns += int(action["turn"])
        return self._observation(), float(self._place.sum()), self._step == self._length, False, {}

    def render(self) -> Any:
        match self._trouble:
            case "nothing":
                return None
            case "gray":
                return np.zeros((_HEIGHT, _WIDTH), np.uint8)
            case "render":
                raise OSError("no display")
            case "exit":
                sys.exit(3)
            case "interrupt":
                raise KeyboardInterrupt
            case "empty":
                return np.zeros((0, _WIDTH, 3), np.uint8)
            case "growing":
                return np.zeros((_HEIGHT + self._step, _WIDTH, 3), np.uint8)
        picture = np.empty((_HEIGHT, _WIDTH, 3), np.uint8)
        picture[:] = self._turns * 20 % 256, self._step * 20, int(abs(self._place[0]) * 25) % 256
        return picture

    def _observation(self) -> dict[str, Any]:
        place = self._place + (0.25 if self._trouble == "differ" and self._step == 3 else 0)
        flag = np.unpackbits(np.array([self._turns % 8], np.uint8))[-3:].astype(np.int8)
        return {"place": place.astype(np.float32), "turns": np.int64(self._turns), "flag": flag}

    def _make_trouble(self) -> None:
        match self._trouble:
            case "step":
                raise RuntimeError("out of luck")
            case "hang":
                time.sleep(600)
            case "crash":
                os._exit(7)
            case "memory":
                np.ones(1 << 40)
