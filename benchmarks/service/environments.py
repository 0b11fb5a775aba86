"""Environments that take no time, or nothing but time, and whose observations are known in advance."""

from __future__ import annotations

import functools
import time
import zlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

__all__ = ["Bulk", "Short", "Sleeping", "Stacks", "bulk_observations", "expected_checksum", "stack_observations"]

_BULK_BYTES = 1 << 20
_NUM_BULK_OBSERVATIONS = 16
_NUM_STACK_OBSERVATIONS = 128
_STACK_SIZE, _NUM_SCREENS = 4, 8


def bulk_observations() -> np.ndarray:
    """Return the observations of an episode of `Bulk`: (16, 1 MiB) uint8, random bytes that no codec compresses."""
    return np.random.default_rng(0).integers(0, 256, (_NUM_BULK_OBSERVATIONS, _BULK_BYTES), np.uint8)


@functools.cache
def stack_observations() -> np.ndarray:
    """Return the observations of an episode of `Stacks`: (128, 4, 8, 84, 84) uint8.

    Each is a stack of four frames, as `FrameStackObservation` makes them. A frame has eight screens side by side, from
    eight parts of one game of Pong with random actions.
    """
    num_frames = _NUM_STACK_OBSERVATIONS * _NUM_SCREENS
    game: Any = gymnasium.wrappers.AtariPreprocessing(gymnasium.make("ale_py:ALE/Pong-v5", frameskip=1))
    actions = np.random.default_rng(0)
    screens = [game.reset(seed=0)[0]]
    while len(screens) < num_frames:
        screen, _, terminated, truncated, _ = game.step(actions.integers(game.action_space.n))
        screens.append(game.reset()[0] if terminated or truncated else screen)
    game.close()
    frames = np.array(screens).reshape(_NUM_SCREENS, _NUM_STACK_OBSERVATIONS, 84, 84).swapaxes(0, 1)
    newest = np.arange(_NUM_STACK_OBSERVATIONS)[:, np.newaxis]
    stacks: np.ndarray = frames[np.maximum(newest + np.arange(1 - _STACK_SIZE, 1), 0)]
    return stacks


def expected_checksum(observations: np.ndarray, num_steps: int) -> int:
    """Return the CRC-32 of the observations of whole episodes with `num_steps` steps in all.

    Args:
        observations: observations of one episode; the last one is not part of the column `observations`.
        num_steps: number of steps, a multiple of the episode's length.
    """
    episode, checksum = observations[:-1], 0
    for _ in range(num_steps // len(episode)):
        checksum = zlib.crc32(episode.data, checksum)
    return checksum


class _FixedLength(gymnasium.Env[Any, Any]):
    """An environment with episodes of `num_steps` steps that actions do not change. The reward is the step's number."""

    action_space = spaces.Discrete(2)
    num_steps = 1

    def __init__(self) -> None:
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode."""
        self._step = 0
        return self.observation(0), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Make a step; the last one terminates the episode."""
        self._step += 1
        return self.observation(self._step), float(self._step), self._step == self.num_steps, False, {}

    def observation(self, step: int) -> np.ndarray:
        """Return the observation after a number of steps."""
        raise NotImplementedError


class _Prepared(_FixedLength):
    """An environment that shows observations which are ready in memory."""

    def __init__(self, observations: np.ndarray) -> None:
        super().__init__()
        self._observations = observations

    def observation(self, step: int) -> np.ndarray:
        """Return the observation after a number of steps."""
        observation: np.ndarray = self._observations[step]
        return observation


class Bulk(_Prepared):
    """Shows 1 MiB of random bytes. An episode has 15 steps and 16 observations, each a different one."""

    observation_space = spaces.Box(0, 255, (_BULK_BYTES,), np.uint8)
    num_steps = _NUM_BULK_OBSERVATIONS - 1

    def __init__(self) -> None:
        super().__init__(bulk_observations())


class Stacks(_Prepared):
    """Shows stacks of Pong's frames, 221 KiB each, in episodes of 127 steps."""

    observation_space = spaces.Box(0, 255, (_STACK_SIZE, _NUM_SCREENS, 84, 84), np.uint8)
    num_steps = _NUM_STACK_OBSERVATIONS - 1

    def __init__(self) -> None:
        super().__init__(stack_observations())


class Short(_FixedLength):
    """Shows the step's number four times, in episodes of ten steps."""

    observation_space = spaces.Box(0, 10, (4,), np.float32)
    num_steps = 10

    def observation(self, step: int) -> np.ndarray:
        """Return the step's number."""
        return np.full(4, step, np.float32)


class Sleeping(_FixedLength):
    """Sleeps in each step, like a remote environment, and shows the step's number in 16 KiB. Episodes have 15 steps."""

    observation_space = spaces.Box(0, 15, (4096,), np.float32)
    num_steps = 15

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Sleep, then make a step."""
        time.sleep(self._seconds)
        return super().step(action)

    def observation(self, step: int) -> np.ndarray:
        """Return the step's number."""
        return np.full(4096, step, np.float32)
