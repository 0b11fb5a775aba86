"""Environments with particular lengths of episodes."""

from __future__ import annotations

from typing import Any, Optional, Tuple, Union  # noqa: UP035

import gymnasium
import numpy as np
from gymnasium import spaces


class Ends(gymnasium.Env[np.ndarray, int]):
    """Episodes of a fixed length that end as the arguments say; with a length of 0, they do not end.

    The reward is the number of the step; the observation is the action and the number of the step.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(8)

    def __init__(self, length: int = 3, terminated: bool = True, truncated: bool = False) -> None:
        self._length, self._terminated, self._truncated = length, terminated, truncated

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return np.array([-1, 0], np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        over = self._step == self._length
        observation = np.array([action, self._step], np.float32)
        return observation, self._step, over and self._terminated, over and self._truncated, {}


class Pairs(Ends):
    """`Ends` whose arguments have to be the types that the annotations and defaults say, nested ones too."""

    def __init__(  # type: ignore[no-untyped-def]  # two arguments have no annotation
        self,
        pairs: tuple[tuple[int, int], ...] = (),
        either: Optional[Union[int, Tuple[int, Tuple[int, int]]]] = None,  # noqa: UP006, UP007, UP045
        rows: list[tuple[int, int]] | None = None,
        named: dict[str, tuple[int, ...]] | None = None,
        default=((0, 1), [2]),
        plain=None,
    ) -> None:
        super().__init__()
        check_pairs(pairs, either, rows, named, default, plain)


def check_pairs(*arguments: Any) -> None:
    """Raise TypeError unless arguments have the types that `Pairs` takes."""
    pairs, either, rows, named, default, plain = arguments
    if any(map(_has_list, (pairs, either, (named or {}).get("a"), *(rows or ()), default[0]))):
        raise TypeError(f"lists among {arguments}")
    if not isinstance(default, tuple) or not all(isinstance(each, list) for each in (rows or [], plain or [])):
        raise TypeError(f"other types among {arguments}")


def _has_list(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, tuple) and any(map(_has_list, value)))


class OneEndless(Ends):
    """Episodes of three steps, except for one in eight, which the seed decides, that do not end."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        result = super().reset(seed=seed, options=options)
        self._length = 3 if self.np_random.integers(8) else 0
        return result


class NoNumbers(Ends):
    """Shows NaN in one step of each episode, and goes on.

    Arguments:
        after: number of steps up to the one that shows NaN; 0 for none.
        length: number of steps of an episode.
        rewarded: number of the step whose reward is infinite; 0 for none.
    """

    def __init__(self, after: int = 3, length: int = 100, rewarded: int = 0) -> None:
        super().__init__(length=length)
        self._after, self._rewarded = after, rewarded

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, *rest = super().step(action)
        if self._step == self._after:
            observation[1] = np.nan
        return observation, -np.inf if self._step == self._rewarded else reward, *rest


class OneOrThousand(gymnasium.Env[np.ndarray, int]):
    """Episodes of 1 step or of 1000, with equal chance."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = 1 if self.np_random.random() < 0.5 else 1000
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        return np.zeros(1, np.float32), 1.0, self._left == 0, False, {}


class Ragged(gymnasium.Env[np.ndarray, int]):
    """Episodes whose length and whose kind of end their seeds decide.

    Arguments:
        max_length: longest length of an episode; all lengths up to it are equally likely.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(3, start=2)

    def __init__(self, max_length: int = 12) -> None:
        self._max_length = max_length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._length = int(self.np_random.integers(1, self._max_length, endpoint=True))
        self._state, self._step = float(self.np_random.random()), 0
        return self._observation(), {"length": self._length}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self._step += 1
        self._state = self._state / 2 + float(action) + float(self.np_random.random())
        over = self._step == self._length
        infos = {"square": self._step**2} if self._step % 3 == 0 else {}
        return self._observation(), self._state, over and self._length % 2 == 0, over and self._length % 2 == 1, infos

    def _observation(self) -> np.ndarray:
        return np.array([self._state, self._step])
