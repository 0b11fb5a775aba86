"""Environments that are slow, or hang."""

from __future__ import annotations

import os
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from charges import go_off, hang, in_probe
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv

from sample_envs.lengths import Ragged

FIRST_LOOK_SEEDS = (0, 1)
"""Seeds of the episodes that a worker runs when it makes an environment."""


class Busy(CartPoleEnv):
    """CartPole that does not come back from native code where it is rendered, or begins an episode if it shall."""

    def __init__(self, in_reset: bool = False, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode, self._in_reset = render_mode, in_reset

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        if self._in_reset:
            sum(range(1 << 62))
        return super().reset(**options)

    def render(self) -> Any:
        sum(range(1 << 62))


class Slow(gymnasium.Env[np.ndarray, int]):
    """Steps that take a fixed time."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, step_seconds: float = 0.1, length: int = 10) -> None:
        self._step_seconds, self._length = step_seconds, length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self._step_seconds)
        self._step += 1
        return np.zeros(1, np.float32), 1.0, False, self._step >= self._length, {}


class SlowInPlaces(gymnasium.Env[np.ndarray, int]):
    """Steps that take a fixed time on the workers that a file names, by process id or by name of the thread."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, path: str, step_seconds: float = 0.1, most_steps: int = 20) -> None:
        self._path, self._step_seconds, self._max_steps = Path(path), step_seconds, most_steps

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = int(self.np_random.integers(1, self._max_steps + 1))
        return self._observation(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        places = self._path.read_text().split()
        if {str(os.getpid()), threading.current_thread().name.partition("_")[0]}.intersection(places):
            time.sleep(self._step_seconds)
        self._left -= 1
        return self._observation(), float(action), self._left == 0, False, {}

    def _observation(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


class Watched(Ragged):
    """Episodes as of `Ragged`, with slow steps, and a file in a folder for as long as the environment is open.

    While the folder has a file `slow`, steps take 50 ms more, except where a worker tries the environment.
    """

    def __init__(self, folder: str, step_seconds: float = 0.0, max_length: int = 12) -> None:
        super().__init__(max_length)
        self._seconds, self._file = step_seconds, Path(folder, f"{os.getpid()}.{uuid.uuid4().hex}")
        self._slow = Path(folder, "slow")
        self._file.touch()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._is_first_look = seed in FIRST_LOOK_SEEDS
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self._seconds)
        if self._slow.exists() and not self._is_first_look:
            time.sleep(0.05)
        return super().step(action)

    def close(self) -> None:
        self._file.unlink(missing_ok=True)


class Hanging(gymnasium.Env[np.ndarray, int]):
    """A random walk that hangs once for each charge in a folder: `construction`, `reset`, `step` or `native step`.

    When it is tried, it hangs for charges `probed reset` and `probed step` instead. The file `pid` has the id of the
    process whose reset hangs there.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, folder: str) -> None:
        self._folder = folder
        if not in_probe() and go_off(folder, "construction"):
            hang()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if in_probe() and go_off(self._folder, "probed reset"):
            Path(self._folder, "pid").write_text(str(os.getpid()))
            hang()
        self._is_first_look = seed in FIRST_LOOK_SEEDS
        if not self._is_first_look and go_off(self._folder, "reset"):
            hang()
        self._steps_left = 5 + int(self.np_random.integers(0, 20))
        return self.np_random.random(1), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps_left -= 1
        if in_probe() and go_off(self._folder, "probed step"):
            hang()
        if self._steps_left == 3 and not self._is_first_look:
            if go_off(self._folder, "step"):
                hang()
            if go_off(self._folder, "native step"):
                hang(native=True)
        return self.np_random.random(1) + action, float(action), self._steps_left == 0, False, {}


class Meeting(gymnasium.Env[np.ndarray, int]):
    """Waits in resets and steps for three others, in threads of rows, except when it is tried; rewards say whether."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)
    _meeting = threading.Barrier(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._met, self._num_steps = self._meet(), 0
        return self.np_random.uniform(-1, 1, 1).astype(np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._num_steps += 1
        met = self._meet() and self._met
        return self.np_random.uniform(-1, 1, 1).astype(np.float32), float(met), self._num_steps == 5, False, {}

    def _meet(self) -> bool:
        if in_probe() or not threading.current_thread().name.startswith("row"):
            return False
        self._meeting.wait(20)
        return True


class SlowToMake(Slow):
    """Takes its time to be made, or to be closed."""

    def __init__(self, make_seconds: float = 0.0, close_seconds: float = 0.0) -> None:
        super().__init__(step_seconds=0.0)
        time.sleep(make_seconds)
        self._close_seconds = close_seconds

    def close(self) -> None:
        time.sleep(self._close_seconds)
