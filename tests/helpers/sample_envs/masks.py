"""Environments with action masks."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

_SPACES: dict[str, Any] = {
    "discrete": spaces.Discrete(5, start=2),
    "multi": spaces.MultiDiscrete([[2, 3], [4, 1]], start=[[0, -1], [5, 0]]),
}
_SIZES = {"discrete": (5,), "multi": (2, 3, 4, 1)}


def legal_actions(number: int, step: int, total: int, kind: str) -> np.ndarray:
    """Return a mask that depends on the episode, the step and the actions so far; (S,) int8."""
    generator = np.random.default_rng([number, step, total])
    parts = []
    for count in _SIZES[kind]:
        part = generator.random(count) < 0.4
        part[generator.integers(count)] = True
        parts.append(part)
    return np.concatenate(parts).astype(np.int8)


class Masked(gymnasium.Env[Any, Any]):
    """Episodes of 3 to 12 steps that raise an error when a masked action is taken.

    Arguments:
        kind: kind of actions: `discrete` or `multi`.
        source: where the mask is: `info`, `nested` for an info in a mapping, `list` for an array for each element, or
            `observation`.
        fault: what is wrong with the mask of step 4: `missing`, `zeros`, `shape`, `values`, `text`, or nothing.
        last: whether the mask of the last observation is all zeros.
        free: whether masked actions are taken without an error.
    """

    def __init__(
        self, kind: str = "discrete", source: str = "info", fault: str = "", *, last: bool = True, free: bool = False
    ) -> None:
        self.action_space, self._free = _SPACES[kind], free
        self._kind, self._source, self._fault, self._last = kind, source, fault, last
        board = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.observation_space: spaces.Space[Any] = board
        if source == "observation":
            self.observation_space = spaces.Dict({"action_mask": spaces.MultiBinary(sum(_SIZES[kind])), "board": board})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._number = int(self.np_random.integers(1 << 30))
        self._length = 3 + self._number % 10
        self._step = self._total = 0
        return self._observe()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        positions = (np.ravel(action) - np.ravel(self.action_space.start)).astype(int)
        start = 0
        for position, count in zip(positions, _SIZES[self._kind], strict=True):
            if not self._free and not self._legal[start : start + count][position]:
                raise RuntimeError(f"masked action {action}")
            start += count
        self._step += 1
        self._total = 3 * self._total % 1009 + int(positions @ (1 + np.arange(len(positions))))
        observation, info = self._observe()
        return observation, float(self._total % 7), self._step == self._length, False, info

    def _observe(self) -> tuple[Any, dict[str, Any]]:
        self._legal = mask = legal_actions(self._number, self._step, self._total, self._kind)
        if self._last and self._step == self._length:
            mask = np.zeros_like(mask)
        value: Any = mask
        if self._step == 4:
            value = {"zeros": 0 * mask, "shape": mask[1:], "values": mask + 1, "text": "legal"}.get(self._fault, mask)
        board = np.array([self._step, self._total % 5, self._number % 3], np.float32)
        if self._source == "observation":
            return {"board": board, "action_mask": value}, {}
        if self._source == "list":
            value = tuple(np.split(value, np.cumsum(_SIZES[self._kind])[:-1]))
        info = {"inner": {"legal": value}} if self._source == "nested" else {"action_mask": value}
        return board, {} if self._fault == "missing" and self._step == 4 else info


class MaskedRows(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Rows of `Masked`, stepped together, with either autoreset mode.

    Arguments:
        num_envs: number of rows.
        mode: autoreset mode.
        max_episode_steps: ignored.
        options: arguments of `Masked`.
    """

    def __init__(
        self, num_envs: int, mode: str = "NextStep", max_episode_steps: int | None = None, **options: Any
    ) -> None:
        mode_of = gymnasium.vector.AutoresetMode(mode)
        self._envs = gymnasium.vector.SyncVectorEnv([lambda: Masked(**options)] * num_envs, autoreset_mode=mode_of)
        self.num_envs = num_envs
        self.metadata = self._envs.metadata
        self.single_observation_space = self._envs.single_observation_space
        self.single_action_space = self._envs.single_action_space
        self.observation_space, self.action_space = self._envs.observation_space, self._envs.action_space

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._envs.reset(seed=seed, options=options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        return self._envs.step(actions)
