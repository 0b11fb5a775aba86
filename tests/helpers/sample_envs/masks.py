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
        self.action_space: Any = _SPACES[kind]
        self._free = free
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

    kind: type[gymnasium.Env[Any, Any]] = Masked

    def __init__(
        self, num_envs: int, mode: str = "NextStep", max_episode_steps: int | None = None, **options: Any
    ) -> None:
        mode_of = gymnasium.vector.AutoresetMode(mode)
        self._envs = gymnasium.vector.SyncVectorEnv([lambda: self.kind(**options)] * num_envs, autoreset_mode=mode_of)
        self.num_envs = num_envs
        self.metadata = self._envs.metadata
        self.single_observation_space = self._envs.single_observation_space
        self.single_action_space = self._envs.single_action_space
        self.observation_space, self.action_space = self._envs.observation_space, self._envs.action_space

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._envs.reset(seed=seed, options=options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        return self._envs.step(actions)


STRUCTURES: dict[str, spaces.Space[Any]] = {
    "binary": spaces.MultiBinary((2, 2)),
    "dict": spaces.Dict(
        {
            "bits": spaces.MultiBinary(3),
            "more": spaces.Tuple((spaces.MultiDiscrete([2, 3], start=[0, -1]), spaces.Box(-1, 1, (2,)))),
            "turn": spaces.Discrete(4, start=2),
        }
    ),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (1,)), spaces.MultiBinary(2))),
}
"""Action spaces of `MaskedParts`."""


def structured_mask(space: Any, generator: np.random.Generator) -> Any:
    """Return a random mask as `space.sample(mask)` takes it."""
    match space:
        case spaces.Dict():
            return {key: structured_mask(part, generator) for key, part in space.spaces.items()}
        case spaces.Tuple():
            return tuple(structured_mask(part, generator) for part in space.spaces)
        case spaces.MultiBinary():
            return generator.integers(3, size=space.shape).astype(np.int8)
        case spaces.MultiDiscrete():
            return tuple(_some(int(count), generator) for count in space.nvec)
        case spaces.Discrete():
            return _some(int(space.n), generator)
    return None


def is_legal(space: Any, action: Any, mask: Any) -> bool:
    """Whether a mask allows an action."""
    match space:
        case spaces.Dict():
            return all(is_legal(part, action[key], mask[key]) for key, part in space.spaces.items())
        case spaces.Tuple():
            return all(map(is_legal, space.spaces, action, mask))
        case spaces.MultiBinary():
            return bool(((mask == 2) | (mask == action)).all())
        case spaces.MultiDiscrete():
            return all(part[value] for part, value in zip(mask, action - space.start, strict=True))
        case spaces.Discrete():
            return bool(mask[action - space.start])
    return True


def _some(count: int, generator: np.random.Generator) -> np.ndarray:
    part = generator.random(count) < 0.4
    part[generator.integers(count)] = True
    return part.astype(np.int8)


def _mask_space(space: Any) -> spaces.Space[Any]:
    """Return a space of masks; a Box leaf has a zero."""
    match space:
        case spaces.Dict():
            return spaces.Dict({key: _mask_space(part) for key, part in space.spaces.items()})
        case spaces.Tuple():
            return spaces.Tuple(tuple(map(_mask_space, space.spaces)))
        case spaces.MultiBinary():
            return spaces.Box(0, 2, space.shape, np.int8)
        case spaces.MultiDiscrete():
            return spaces.MultiBinary(int(space.nvec.sum()))
    return spaces.MultiBinary(int(space.n) if isinstance(space, spaces.Discrete) else 1)


def _observed(space: Any, mask: Any) -> Any:
    """Return a mask as a value of its space."""
    match space:
        case spaces.Dict():
            return {key: _observed(part, mask[key]) for key, part in space.spaces.items()}
        case spaces.Tuple():
            return tuple(map(_observed, space.spaces, mask))
        case spaces.MultiDiscrete():
            return np.concatenate(mask)
    return np.zeros(1, np.int8) if mask is None else mask


def _sum(action: Any) -> int:
    """Return a number that depends on all parts of an action."""
    if isinstance(action, dict):
        return sum(map(_sum, action.values()))
    if isinstance(action, tuple):
        return sum(map(_sum, action))
    return int(np.sum(np.round(10 * np.ravel(action)) * (1 + np.arange(np.size(action)))))


class MaskedParts(gymnasium.Env[Any, Any]):
    """Episodes of 3 to 12 steps whose actions have several parts; a masked one raises an error.

    Arguments:
        kind: action space, a key of STRUCTURES.
        source: where the mask is: `info` or `observation`.
        fault: what is wrong with the info of step 2: `missing`, `none`, `shape`, `values` or `bools`, each in the mask
            of one leaf; or nothing.
        free: whether masked actions are taken without an error.
    """

    def __init__(self, kind: str = "dict", source: str = "info", fault: str = "", *, free: bool = False) -> None:
        self.action_space, self._free = STRUCTURES[kind], free
        self._source, self._fault = source, fault
        board = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.observation_space: spaces.Space[Any] = board
        if source == "observation":
            self.observation_space = spaces.Dict({"action_mask": _mask_space(self.action_space), "board": board})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._number = int(self.np_random.integers(1 << 30))
        self._step = self._total = 0
        return self._observe()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not (self._free or is_legal(self.action_space, action, self._legal)):
            raise RuntimeError(f"masked action {action}")
        self._step += 1
        self._total = (3 * self._total + _sum(action)) % 1009
        observation, info = self._observe()
        return observation, float(self._total % 7), self._step == 3 + self._number % 10, False, info

    def _observe(self) -> tuple[Any, dict[str, Any]]:
        generator = np.random.default_rng([self._number, self._step, self._total])
        self._legal = structured_mask(self.action_space, generator)
        board = np.array([self._step, self._total % 5, self._number % 3], np.float32)
        if self._source == "observation":
            return {"board": board, "action_mask": _observed(self.action_space, self._legal)}, {}
        mask = self._legal
        if self._fault and self._step == 2:
            bits = mask["bits"]
            others = {"none": None, "shape": bits[1:], "values": bits + 3, "bools": bits > 0}
            mask = {key: part for key, part in mask.items() if key != "bits"}
            if self._fault != "missing":
                mask["bits"] = others[self._fault]
            if self._fault == "none":
                self._legal = {**self._legal, "bits": np.full(3, 2, np.int8)}
        return board, {"action_mask": mask}


class MaskedPartsRows(MaskedRows):
    """Rows of `MaskedParts`, stepped together."""

    kind = MaskedParts
