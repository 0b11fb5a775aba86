"""Transforms of rewards."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from rollserve_wire.transforms import ClipRewards, ScaleRewards, SignRewards, Transform

__all__ = ["RewardFunction", "reward_functions"]

RewardFunction = Callable[[NDArray[np.float64], NDArray[np.float64]], object]
"""Writes the transformed rewards (M,) of the first array into the second, which may be the same."""


def reward_functions(transforms: Iterable[Transform]) -> list[RewardFunction]:
    """Return a function for each transform of rewards, in their order."""
    functions: list[RewardFunction] = []
    for transform in transforms:
        match transform:
            case SignRewards():
                functions.append(np.sign)
            case ClipRewards(low, high):
                lowest, highest = -np.inf if low is None else low, np.inf if high is None else high
                functions.append(functools.partial(_clip, low=lowest, high=highest))
            case ScaleRewards(factor, offset):
                functions.append(functools.partial(_scale, factor=factor, offset=offset))
    return functions


def _clip(rewards: NDArray[np.float64], out: NDArray[np.float64], low: float, high: float) -> None:
    rewards.clip(low, high, out=out)  # half the time of the function


def _scale(rewards: NDArray[np.float64], out: NDArray[np.float64], factor: float, offset: float) -> None:
    np.multiply(rewards, factor, out=out)
    if offset:
        out += offset
