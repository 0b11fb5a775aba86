"""Spaces of every kind, dtype and form that gymnasium makes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from gymnasium import spaces

__all__ = ["EVERY_SPACE", "own_classes"]

_INTEGERS = [np.dtype(f"{kind}{size}").type for kind in "iu" for size in (1, 2, 4, 8)]
_FLOATS: list[Any] = [np.float16, np.float32, np.float64]


def _boxes() -> list[spaces.Box]:
    boxes = [spaces.Box(0, 1, shape, np.bool_) for shape in ((7,), (), (2, 3))]
    for dtype in _INTEGERS:
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        boxes += [spaces.Box(low, high, (3,), dtype), spaces.Box(low, high, (), dtype), spaces.Box(1, 1, (2,), dtype)]
        boxes += [spaces.Box(np.array([low, 1], dtype), np.array([1, high], dtype), dtype=dtype)]
    boxes += [spaces.Box(-np.inf, np.inf, (2,), np.int32), spaces.Box(-np.inf, 3, (2,), np.int64)]
    for dtype in _FLOATS:
        greatest = np.finfo(dtype).max
        bounds = [(-np.inf, np.inf), (-np.inf, 1), (0, np.inf), (-greatest, greatest), (-0.0, 0.0)]
        boxes += [spaces.Box(dtype(low), dtype(high), (2, 2), dtype) for low, high in bounds]
        boxes += [spaces.Box(np.array([0.0, -0.0], dtype), np.array([0.0, np.inf], dtype), dtype=dtype)]
        boxes += [spaces.Box(-1, 1, (), dtype), spaces.Box(-1, 1, (2,), dtype), spaces.Box(-1, 1, (2,), dtype)]
        boxes[-1].low[:] = np.nan  # which constructors refuse
        boxes[-2].high[1] = np.nan
    return boxes


def _others() -> list[spaces.Space[Any]]:
    return [
        spaces.Discrete(3),
        spaces.Discrete(2, start=-5),
        spaces.Discrete(1, start=2**40),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiDiscrete([[2, 3], [4, 1]], np.uint8, start=[[0, 1], [2, 3]]),
        spaces.MultiDiscrete([2], np.int32, start=[-7]),
        spaces.MultiBinary(4),
        spaces.MultiBinary([2, 3, 1]),
        spaces.Text(5),
        spaces.Text(3, min_length=0, charset="aß😀"),
        spaces.Dict({"z": spaces.Tuple((spaces.Box(0, 1, (2,), np.bool_), spaces.Discrete(2))), "a": spaces.Text(1)}),
        spaces.Tuple((spaces.Dict(b=spaces.Dict(c=spaces.Box(-1, 1, ()))), spaces.Tuple((spaces.MultiBinary(1),)))),
    ]


with warnings.catch_warnings(action="ignore"):  # of gymnasium, about bounds such as NaN
    EVERY_SPACE = [*_boxes(), *_others()]


def own_classes() -> dict[str, spaces.Space[Any]]:
    """Return spaces of classes that no other process can import."""

    class OwnBox(spaces.Box):
        pass

    class OwnDiscrete(spaces.Discrete):  # type: ignore[type-arg]
        pass

    class OwnMultiDiscrete(spaces.MultiDiscrete):
        pass

    class OwnMultiBinary(spaces.MultiBinary):
        pass

    class OwnText(spaces.Text):
        pass

    class OwnDict(spaces.Dict):
        pass

    return {
        "box": OwnBox(0, 1, (2,), np.bool_),
        "choice": OwnDiscrete(3, start=-1),
        "choices": OwnMultiDiscrete([2, 3], start=[1, 0]),
        "switches": OwnMultiBinary([2, 2]),
        "text": OwnText(3, min_length=1, charset="ab"),
        "others": OwnDict({"b": OwnBox(-1, np.inf, ()), "a": spaces.Tuple((OwnDiscrete(2),))}),
    }
