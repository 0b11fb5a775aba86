"""Environments that cost nothing, or nothing but time, and whose observations are known beforehand."""

from __future__ import annotations

import functools
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

__all__ = ["Bulk", "Short", "Sleeping", "Stacks", "bulk_observations", "stack_observations"]

_BULK_BYTES = 1 << 20
_NUM_BULK_OBSERVATIONS = 16
_NUM_STACK_OBSERVATIONS = 128
_STACK_SIZE, _NUM_SCREENS = 4, 8


def bulk_observations(size: int = _BULK_BYTES) -> np.ndarray:
    """(16, size) uint8: what `Bulk` shows in the steps of an episode, random bytes that nothing compresses."""
    return np.random.default_rng(0).integers(0, 256, (_NUM_BULK_OBSERVATIONS, size), np.uint8)


@functools.cache
def stack_observations() -> np.ndarray:
    """(128, 4, 8, 84, 84) uint8: what `Stacks` shows in the steps of an episode.

    Eight parts of one game of Pong side by side, played at random, as `FrameStackObservation` stacks them.
    """
    num_frames = _NUM_STACK_OBSERVATIONS * _NUM_SCREENS
    game = gymnasium.wrappers.AtariPreprocessing(gymnasium.make("ale_py:ALE/Pong-v5", frameskip=1))
    actions = np.random.default_rng(0)
    screens = [game.reset(seed=0)[0]]
    while len(screens) < num_frames:
        screen, _, terminated, truncated, _ = game.step(actions.integers(game.action_space.n))
        screens.append(game.reset()[0] if terminated or truncated else screen)
    game.close()
    frames = np.array(screens).reshape(_NUM_SCREENS, _NUM_STACK_OBSERVATIONS, 84, 84).swapaxes(0, 1)
    newest = np.arange(_NUM_STACK_OBSERVATIONS)[:, np.newaxis]
    return frames[np.maximum(newest + np.arange(1 - _STACK_SIZE, 1), 0)]


class _Counting(gymnasium.Env[Any, Any]):
    """Episodes of a fixed length, in which nothing depends on what is done; the reward is the step's number."""

    action_space = spaces.Discrete(2)
    num_steps = 1

    def __init__(self) -> None:
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begins again with step 0."""
        self._step = 0
        return self.observation(0), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One step."""
        self._step += 1
        return self.observation(self._step), float(self._step), self._step == self.num_steps, False, {}

    def observation(self, step: int) -> np.ndarray:
        """What is seen after so many steps."""
        raise NotImplementedError


class Bulk(_Counting):
    """Shows 1 MiB that is ready, in episodes of 15 steps: each of the observations once, the last one at the end."""

    num_steps = _NUM_BULK_OBSERVATIONS - 1

    def __init__(self, size: int = _BULK_BYTES) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (size,), np.uint8)
        self._observations = bulk_observations(size)

    def observation(self, step: int) -> np.ndarray:
        """One of those that are ready."""
        observation: np.ndarray = self._observations[step]
        return observation


class Stacks(_Counting):
    """Shows stacks of frames of Pong that are ready, 221 KiB each, in episodes of 127 steps."""

    observation_space = spaces.Box(0, 255, (_STACK_SIZE, _NUM_SCREENS, 84, 84), np.uint8)
    num_steps = _NUM_STACK_OBSERVATIONS - 1

    def __init__(self) -> None:
        super().__init__()
        self._observations = stack_observations()

    def observation(self, step: int) -> np.ndarray:
        """One of those that are ready."""
        observation: np.ndarray = self._observations[step]
        return observation


class Short(_Counting):
    """Ten steps, which show their number four times."""

    observation_space = spaces.Box(0, 10, (4,), np.float32)
    num_steps = 10

    def observation(self, step: int) -> np.ndarray:
        """The step's number."""
        return np.full(4, step, np.float32)


class Sleeping(_Counting):
    """Sleeps in each step, as if it were elsewhere, and shows 16 KiB of the step's number. Episodes have 15 steps."""

    observation_space = spaces.Box(0, 15, (4096,), np.float32)
    num_steps = 15

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One step, which takes a while."""
        time.sleep(self._seconds)
        return super().step(action)

    def observation(self, step: int) -> np.ndarray:
        """The step's number."""
        return np.full(4096, step, np.float32)
