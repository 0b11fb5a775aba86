"""An environment whose episodes are given as data, so that a test can expect exact numbers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rollserve_wire.errors import mismatch

__all__ = ["Scripted"]

_ENDS = ("terminated", "truncated")
_KEYS = {"observations", "rewards", "end", "infos"}


class _Episode(NamedTuple):
    observations: NDArray[Any]
    rewards: Sequence[Any]
    is_terminated: bool
    infos: Sequence[Mapping[str, Any]]


class Scripted(gymnasium.Env[NDArray[Any], Any]):
    """An environment that follows scripts. The episode of seed s follows `episodes[s % len(episodes)]`.

    The observations are of a Box, whose bounds are the limits of an integer dtype, or infinite.
    """

    def __init__(
        self,
        episodes: Sequence[Mapping[str, Any]],
        *,
        actions: int | Sequence[int] = 2,
        dtype: str = "float32",
        step_seconds: float = 0.0,
    ) -> None:
        """Read the scripts.

        Args:
            episodes: scripts of at least one episode. An episode of T steps has `observations` (T + 1 arrays of one
                shape, which all episodes share), `rewards` (T numbers; for discrete actions also lists with a reward
                for each action), `end` ("terminated", which is the default, or "truncated"), and `infos` (T + 1
                objects; empty ones by default).
            actions: number of discrete actions, or the shape of a Box from -1 to 1.
            dtype: dtype of the observations.
            step_seconds: how long each step takes, at least.

        Raises:
            ValueError: a script is malformed.
        """
        if not (isinstance(episodes, Sequence) and episodes):
            raise ValueError(f"episodes: {mismatch('a list of at least one episode', repr(episodes))}")
        num_actions = actions if isinstance(actions, int) else 0
        self.action_space = (
            spaces.Discrete(actions) if isinstance(actions, int) else spaces.Box(-1.0, 1.0, tuple(actions))
        )
        self._episodes = [
            _read(episode, f"episodes[{index}]", np.dtype(dtype), num_actions) for index, episode in enumerate(episodes)
        ]
        shapes = {episode.observations.shape[1:] for episode in self._episodes}
        if len(shapes) > 1:
            raise ValueError(f"episodes: {mismatch('observations of one shape', sorted(shapes))}")
        self.observation_space = _box(shapes.pop(), np.dtype(dtype))
        self._step_seconds = step_seconds
        self._episode, self._step = self._episodes[0], 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Begin the episode of a seed; without one, any episode."""
        super().reset(seed=seed)
        number = int(self.np_random.integers(1 << 31)) if seed is None else seed
        self._episode, self._step = self._episodes[number % len(self._episodes)], 0
        return self._observation(), dict(self._episode.infos[0])

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        """Return what the script has for the next step."""
        if self._step_seconds:
            time.sleep(self._step_seconds)
        episode, reward = self._episode, self._episode.rewards[self._step]
        self._step += 1
        is_over = self._step == len(episode.rewards)
        return (
            self._observation(),
            float(reward[int(action)] if isinstance(reward, Sequence) else reward),
            is_over and episode.is_terminated,
            is_over and not episode.is_terminated,
            dict(episode.infos[self._step]),
        )

    def _observation(self) -> NDArray[Any]:
        return np.array(self._episode.observations[self._step])  # a copy, also of a number


def _box(shape: tuple[int, ...], dtype: np.dtype[Any]) -> spaces.Box:
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    low, high = (-np.inf, np.inf) if limits is None else (limits.min, limits.max)
    return spaces.Box(low, high, shape, dtype.type)


def _read(episode: Mapping[str, Any], path: str, dtype: np.dtype[Any], num_actions: int) -> _Episode:
    """Return an episode of a script, checked; `num_actions` is 0 if the actions are not discrete."""
    if not isinstance(episode, Mapping) or not {"observations", "rewards"} <= episode.keys() <= _KEYS:
        expected = "an object with observations and rewards, and perhaps end and infos"
        raise ValueError(f"{path}: {mismatch(expected, repr(episode))}")
    rewards, end = episode["rewards"], episode.get("end", "terminated")
    if not (isinstance(rewards, Sequence) and rewards):
        raise ValueError(f"{path}.rewards: {mismatch('a list of at least one reward', repr(rewards))}")
    for step, reward in enumerate(rewards):
        if isinstance(reward, Sequence) and len(reward) != num_actions:
            expected = f"a number, or a list of {num_actions}" if num_actions else "a number"
            raise ValueError(f"{path}.rewards[{step}]: {mismatch(expected, repr(reward))}")
    if end not in _ENDS:
        raise ValueError(f"{path}.end: {mismatch(' or '.join(map(repr, _ENDS)), repr(end))}")
    num_states = len(rewards) + 1
    observations = np.asarray(episode["observations"], dtype)
    infos = episode.get("infos", [{}] * num_states)
    for name, values in (("observations", observations), ("infos", infos)):
        if len(values) != num_states:
            expected = f"{num_states} elements, one more than rewards"
            raise ValueError(f"{path}.{name}: {mismatch(expected, len(values))}")
    return _Episode(observations, rewards, end == "terminated", infos)
