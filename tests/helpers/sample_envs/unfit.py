"""Environments that no call can step."""

from __future__ import annotations

import os
import signal
from typing import Any

import gymnasium
import numpy as np
from charges import go_off, hang
from gymnasium import spaces

from rollserve_server.activity import current_activity
from sample_envs.native import CoinRows
from sample_envs.slow import Hanging


class OldStyle(gymnasium.Env[np.ndarray, int]):
    """Resets without a seed that return an observation alone, and steps of four values, as before Gym 0.26."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self) -> Any:  # type: ignore[override]
        return np.zeros(2, np.float32)

    def step(self, action: int) -> Any:
        return np.zeros(2, np.float32), 0.0, True, {}


class Misfit(gymnasium.Env[np.ndarray, int]):
    """Observations of another dtype or shape than the space has, (2,) float32.

    Arguments:
        at: `reset` or `step`.
        dtype: dtype of the observations there.
        size: number of their elements.
    """

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, at: str, dtype: str = "float32", size: int = 2) -> None:
        self._misfits = {at: np.zeros(size, dtype)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._misfits.get("reset", np.zeros(2, np.float32)), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._misfits.get("step", np.zeros(2, np.float32)), 0.0, False, False, {}


class Crashing(Misfit):
    """Kills its process in the first step."""

    def __init__(self) -> None:
        super().__init__("nowhere")

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


class Scribbling(Misfit):
    """Writes to the connection of the process that tries it.

    Arguments:
        what: what it writes, in hexadecimal digits; it hangs then.
    """

    def __init__(self, what: str) -> None:
        super().__init__("nowhere")
        self._what = bytes.fromhex(what)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        activity: Any = current_activity()
        os.write(activity._connection.fileno(), self._what)
        hang()
        raise AssertionError


class Curious(Misfit):
    """Refuses to be made, and tells which of the named environment variables exist."""

    def __init__(self, names: list[str]) -> None:
        raise ValueError({name: os.environ[name] for name in names if name in os.environ})


class Hoarding(Misfit):
    """Takes memory, once.

    Arguments:
        at: `construction`, `reset` or `step`.
        num_bytes: how much.
    """

    def __init__(self, at: str, num_bytes: int) -> None:
        super().__init__("nowhere")
        self._at, self._num_bytes = at, num_bytes
        self._take("construction")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._take("reset")
        return super().reset(seed=seed)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._take("step")
        return super().step(action)

    def _take(self, at: str) -> None:
        if at == self._at:
            self._taken = np.ones(self._num_bytes, np.uint8)


class Growing(Hanging):
    """A random walk that takes memory, and then hangs, once for each charge `growth` in a folder.

    Arguments:
        folder: the folder.
        num_bytes: how much memory.
    """

    def __init__(self, folder: str, num_bytes: int) -> None:
        super().__init__(folder)
        self._charges, self._num_bytes = folder, num_bytes

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self._is_first_look and go_off(self._charges, "growth"):
            self._taken = np.ones(self._num_bytes, np.uint8)
            hang()
        return super().step(action)


class WideRows(CoinRows):
    """`CoinRows` whose observations have float64 where the space has float32."""

    def _observations(self) -> dict[str, np.ndarray]:
        return {name: column.astype(np.float64) for name, column in super()._observations().items()}
