"""Environments of the chaos run, whose faults do not change their episodes."""

from __future__ import annotations

import os
import signal
import time
import zlib
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv

__all__ = ["FOLDER", "Screens", "Temperamental"]

FOLDER = "ROLLSERVE_CHAOS_FOLDER"
"""Environment variable with the folder where `Temperamental` notes its faults. Without it there are no faults."""
_SLOW_SECONDS = 0.3
_HANG_SECONDS = 3600.0


class Temperamental(gymnasium.Env[np.ndarray, int]):
    """CartPole with infos and faults at the fifth step of some episodes.

    The seed of a reset decides about the faults of its episode. Each fault is noted in a file, and happens once.
    """

    def __init__(self, slow: int = 0, dies: int = 0, raises: int = 0, hangs: int = 0) -> None:
        """Set how rare each fault is: one in this number of episodes, or none for 0."""
        self._cart = CartPoleEnv()
        self.observation_space, self.action_space = self._cart.observation_space, self._cart.action_space
        self._faults = {"slow": slow, "dies": dies, "raises": raises, "hangs": hangs}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._seed, self._step = seed, 0
        observation, _ = self._cart.reset(seed=seed)
        return observation, {"is_even": seed is not None and seed % 2 == 0}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        if self._step == 5 and self._seed is not None and FOLDER in os.environ:
            for name, one_of in self._faults.items():
                if one_of and zlib.crc32(f"{name} {self._seed}".encode()) % one_of == 0:
                    self._misbehave(name, Path(os.environ[FOLDER], f"{name}-{self._seed}"))
        observation, reward, terminated, truncated, _ = self._cart.step(action)
        return observation, float(reward), terminated, truncated or self._step >= 200, {"height": float(observation[2])}

    def _misbehave(self, name: str, note: Path) -> None:
        try:
            note.touch(exist_ok=False)
        except FileExistsError:
            return
        if name == "slow":
            time.sleep(_SLOW_SECONDS)
        elif name == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        elif name == "raises":
            raise RuntimeError("broken by design")
        else:
            time.sleep(_HANG_SECONDS)


class Screens(gymnasium.Env[np.ndarray, int]):
    """Images of 4 KiB with random points in the colour of the action, in episodes of 1 to 59 steps."""

    observation_space = spaces.Box(0, 255, (64, 64), np.uint8)
    action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._length = int(self.np_random.integers(1, 60))
        self._step = 0
        return self._screen(0), {"length": self._length}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        over = self._step == self._length
        screen = self._screen(int(action))
        return screen, float(action), over and self._length % 2 == 0, over and self._length % 2 == 1, {"at": self._step}

    def _screen(self, action: int) -> np.ndarray:
        screen = np.zeros((64, 64), np.uint8)
        screen.flat[self.np_random.integers(0, screen.size, 40)] = 1 + action
        screen[self._step % 64] = self._step
        return screen
