"""Environments whose observations are stacks of frames; infos hold a checksum of each observation."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


def checksum(observation: Mapping[str, np.ndarray]) -> int:
    """Return a checksum of an observation's leaves."""
    return zlib.crc32(b"".join(observation[name].tobytes() for name in sorted(observation)))


class Stacks:
    """The observations of one row: leaves of several dtypes, all stacks but `numbers`.

    Of five episodes, one has 1 step, one has 2, and the others have `length`.
    """

    def __init__(self, num_frames: int, length: int, odd: float) -> None:
        self.space = spaces.Dict(
            {
                "screen": spaces.Box(0, 255, (num_frames, 24, 32), np.uint8),
                "depth": spaces.Box(-np.inf, np.inf, (num_frames, 8, 16, 2), np.float32),
                "flags": spaces.MultiBinary((num_frames, 1100)),
                "window": spaces.Box(-np.inf, np.inf, (200,), np.float64),
                "numbers": spaces.Box(-np.inf, np.inf, (3,), np.float32),
            }
        )
        self._length = length
        self._odd = odd
        self._random = np.random.default_rng(0)
        self._stacks: dict[str, np.ndarray] = {}
        self._left = 0

    def reset(self, seed: int | None = None) -> dict[str, np.ndarray]:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._left = int(self._random.choice([1, 2, *3 * [self._length]]))
        self._stacks = {name: np.zeros(space.shape, space.dtype) for name, space in self.space.spaces.items()}
        for _ in range(int(self._random.integers(1, 4))):
            self._push()
        return self._shown()

    def step(self) -> tuple[dict[str, np.ndarray], bool]:
        """Return the next observation, and whether the episode is over."""
        self._left -= 1
        self._push()
        return self._shown(), self._left == 0

    def _push(self) -> None:
        # Few values, so that frames that follow each other are often the same, or differ in the sign of a zero alone.
        value = int(self._random.integers(4))
        for name, stack in self._stacks.items():
            stack[:-1] = stack[1:]
            stack[-1] = (-0.0, 0.0, 1.0, 2.0)[value] if stack.dtype.kind == "f" else value % (3 - (name == "flags"))

    def _shown(self) -> dict[str, np.ndarray]:
        shown = {name: stack.copy() for name, stack in self._stacks.items()}
        if self._random.random() < self._odd:
            stack = shown[str(self._random.choice(sorted(shown)))].reshape(-1)
            stack[self._random.integers(len(stack))] = 1
        return shown


class FrameStacks(gymnasium.Env[Any, Any]):
    """A row of `Stacks`.

    Arguments:
        num_frames: number of frames of a stack.
        length: length of most episodes.
        odd: part of the observations with an element that differs from what the other stacks show.
    """

    action_space = spaces.Discrete(2)

    def __init__(self, num_frames: int = 4, length: int = 30, odd: float = 0.0) -> None:
        self._stacks = Stacks(num_frames, length, odd)
        self.observation_space = self._stacks.space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation = self._stacks.reset(seed)
        return observation, {"checksum": checksum(observation)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, over = self._stacks.step()
        return observation, 1.0, over, False, {"checksum": checksum(observation)}


class FrameStackRows(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """`FrameStacks` whose rows are stepped all at once, and reset in the step that ends an episode."""

    def __init__(self, num_envs: int, num_frames: int = 4, length: int = 30, odd: float = 0.0) -> None:
        self.num_envs = num_envs
        self._rows = [Stacks(num_frames, length, odd) for _ in range(num_envs)]
        self.single_observation_space = self._rows[0].space
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        seeds = self.np_random.integers(1 << 31, size=self.num_envs).tolist()
        observations = [row.reset(seed) for row, seed in zip(self._rows, seeds, strict=True)]
        return _batch(observations), _checksums(observations)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        results = [row.step() for row in self._rows]
        last = [observation for observation, _ in results]
        over = np.array([is_over for _, is_over in results])
        rows = zip(self._rows, results, strict=True)
        shown = [row.reset() if is_over else observation for row, (observation, is_over) in rows]
        infos = _checksums(shown)
        if over.any():
            infos |= {"final_obs": _batch(last), "final_info": _checksums(last)}
        none = np.zeros(self.num_envs, np.bool_)
        return _batch(shown), np.ones(self.num_envs), over, none, infos


def _batch(observations: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.stack([observation[name] for observation in observations]) for name in observations[0]}


def _checksums(observations: list[dict[str, np.ndarray]]) -> dict[str, Any]:
    return {"checksum": np.array([checksum(observation) for observation in observations])}
