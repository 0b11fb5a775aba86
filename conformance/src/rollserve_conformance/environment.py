"""The environment of the cases: spaces, infos and ends of all kinds, drawn from the episode's seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rollserve_wire.errors import mismatch

__all__ = ["ConformanceEnv"]

_DTYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
_LARGE_BYTES = 1 << 20


def _box(dtype: str, *shape: int) -> spaces.Box:
    """Return a Box whose bounds hold values of all digits of its dtype that a test can tell apart."""
    is_signed = dtype.startswith(("int", "float"))
    return spaces.Box(-100 if is_signed else 0, 100, shape, np.dtype(dtype).type)


def _num_choices(space: spaces.Space[Any]) -> list[int]:
    """Return the number of values of each element of a space of choices."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(count) for count in space.nvec]
    raise ValueError(f"actions: {mismatch('a space of choices, for masks', repr(space))}")


_OBSERVATIONS: Mapping[str, Callable[[], spaces.Space[Any]]] = {
    "box": lambda: _box("float32", 3),
    "dtypes": lambda: spaces.Dict({dtype: _box(dtype, 2, 3) for dtype in _DTYPES}),
    "nested": lambda: spaces.Dict(
        {
            "camera": spaces.Dict({"left": _box("uint8", 2, 4), "right": _box("uint8", 2, 4)}),
            "pose": spaces.Tuple((_box("float64"), spaces.Discrete(5, start=-2))),
        }
    ),
    "discrete": lambda: spaces.Discrete(7, start=3),
    "frame": lambda: _box("uint8", 6, 5),
    "vector": lambda: _box("float32", 256),
    "image": lambda: spaces.Box(0, 255, (8, 6, 3), np.uint8),
    "large": lambda: spaces.Box(0, 255, (_LARGE_BYTES,), np.uint8),
}
_ACTIONS: Mapping[str, Callable[[], spaces.Space[Any]]] = {
    "discrete": lambda: spaces.Discrete(2),
    "box": lambda: spaces.Box(-1, 1, (2,), np.float32),
    "multi_discrete": lambda: spaces.MultiDiscrete([3, 2]),
    "multi_binary": lambda: spaces.MultiBinary(4),
    "dict": lambda: spaces.Dict({"steer": spaces.Box(-1, 1, (1,), np.float32), "gear": spaces.Discrete(5)}),
}
_ENDS = {"terminated": (True, False), "truncated": (False, True), "both": (True, True)}
_INFOS = ("none", "full", "gaps")
_MASKS = ("none", "info", "observation")


class ConformanceEnv(gymnasium.Env[Any, Any]):
    """Episodes of up to `max_length` steps, whose observations, rewards and length their seeds decide."""

    def __init__(
        self,
        *,
        observations: str = "box",
        actions: str = "discrete",
        infos: str = "none",
        end: str = "mixed",
        max_length: int = 12,
        exact_length: bool = False,
        masks: str = "none",
        label: str = "",
        scale: float = 1.0,
    ) -> None:
        """Make the spaces.

        Args:
            observations: kind of observations: `box`, `dtypes`, `nested`, `discrete`, `frame`, `vector`, `image` or
                `large`.
            actions: kind of actions: `discrete`, `box`, `multi_discrete`, `multi_binary` or `dict`.
            infos: `none`; `full`, infos of several types with every step; or `gaps`, with some steps.
            end: `terminated`, `truncated`, `both`, or `mixed`: one of these for each episode.
            max_length: the longest episode.
            exact_length: whether all episodes have this length.
            masks: where masks of `discrete` and `multi_discrete` actions are: `none`; `info`, the info `action_mask`;
                or `observation`, the leaf `action_mask` beside `state`.
            label: any text; the environment of a case about texts is told apart by it.
            scale: factor of the rewards.

        Raises:
            ValueError: there is no such kind.
        """
        for name, value, kinds in (
            ("observations", observations, _OBSERVATIONS),
            ("actions", actions, _ACTIONS),
            ("infos", infos, _INFOS),
            ("end", end, (*_ENDS, "mixed")),
            ("masks", masks, _MASKS),
        ):
            if value not in kinds:
                raise ValueError(f"{name}: {mismatch(' or '.join(map(repr, kinds)), repr(value))}")
        self.observation_space = _OBSERVATIONS[observations]()
        self.action_space = _ACTIONS[actions]()
        self._num_choices = _num_choices(self.action_space) if masks != "none" else []
        self._masks = masks
        if masks == "observation":
            mask_space = spaces.Box(0, 1, (sum(self._num_choices),), np.int8)
            self.observation_space = spaces.Dict({"state": self.observation_space, "action_mask": mask_space})
        self._label = label
        self._infos, self._end, self._scale = infos, end, scale
        self._max_length, self._exact_length = max_length, exact_length
        self._bonus = float(len(label.encode()))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; the reset option `length` sets its length."""
        super().reset(seed=seed)
        draw = int(self.np_random.integers(1, self._max_length, endpoint=True))
        length = (options or {}).get("length", self._max_length if self._exact_length else draw)
        self._length, self._step = int(length), 0
        self._ends = _ENDS[list(_ENDS)[draw % 3] if self._end == "mixed" else self._end]
        infos = {} if self._infos == "none" else {"length": self._length, "position": self.np_random.random(2)}
        return self._observe(), infos | self._mask_infos()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Make a step, whatever the action is."""
        self._step += 1
        terminated, truncated = self._ends if self._step >= self._length else (False, False)
        reward = self._scale * float(self.np_random.normal()) + self._bonus
        return self._observe(), reward, terminated, truncated, self._step_infos() | self._mask_infos()

    def describe(self, *details: object) -> dict[str, object]:
        """Return what the environment was made with, and the arguments."""
        return {"label": self._label, "scale": self._scale, "max_length": self._max_length, "details": list(details)}

    def _observe(self) -> Any:
        if self._masks == "observation" and isinstance(self.observation_space, spaces.Dict):
            return {"state": self._draw(self.observation_space["state"]), "action_mask": self._draw_mask()}
        return self._draw(self.observation_space)

    def _mask_infos(self) -> dict[str, Any]:
        return {"action_mask": self._draw_mask()} if self._masks == "info" else {}

    def _draw_mask(self) -> np.ndarray:
        parts = []
        for count in self._num_choices:
            part = self.np_random.integers(0, 1, count, np.int8, endpoint=True)
            part[self.np_random.integers(count)] = 1  # one has to be legal
            parts.append(part)
        return np.concatenate(parts)

    def _draw(self, space: spaces.Space[Any]) -> Any:
        if isinstance(space, spaces.Dict):
            return {name: self._draw(subspace) for name, subspace in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(self._draw(subspace) for subspace in space.spaces)
        if isinstance(space, spaces.Discrete):
            return np.int64(space.start + self.np_random.integers(space.n))
        if not isinstance(space, spaces.Box):
            raise TypeError(f"space: {mismatch('a Box', repr(space))}")
        if space.dtype == np.uint8:  # of which there are many
            values = np.frombuffer(self.np_random.bytes(space.low.size), np.uint8).reshape(space.shape)
            return np.minimum(values, space.high)
        low, high = float(space.low.flat[0]), float(space.high.flat[0])
        return np.asarray(self.np_random.uniform(low, high, space.shape)).astype(space.dtype)

    def _step_infos(self) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        if self._infos != "none":
            infos |= {
                "distance": float(self.np_random.random()),
                "collided": bool(self.np_random.random() < 0.5),
                "contact": {"forces": self.np_random.random(3).astype(np.float32), "count": self._step},
            }
        if self._infos == "gaps":
            if self._step % 3:
                del infos["collided"]
            if self._step % 2:
                del infos["contact"]
        return infos
