"""Gymnasium's spaces and values, as spaces and columns of this package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollserve_wire import spaces
from rollserve_wire.errors import mismatch
from rollserve_wire.extras import load

__all__ = ["check_choices", "gymnasium_space", "space_of_gymnasium", "space_values", "value_leaves"]


def space_of_gymnasium(space: Any) -> spaces.Space:
    """Return a space of gymnasium as a space of this package; raise ValueError for kinds that batches cannot hold."""
    match type(space).__name__:
        case "Box":
            return spaces.Box(space.low, space.high, tuple(space.shape), np.dtype(space.dtype))
        case "Discrete":
            return spaces.Discrete(int(space.n), int(space.start))
        case "MultiDiscrete":
            start = getattr(space, "start", np.zeros_like(space.nvec))
            return spaces.MultiDiscrete(np.asarray(space.nvec), np.asarray(start), np.dtype(space.dtype))
        case "MultiBinary":
            return spaces.MultiBinary(tuple(space.shape))
        case "Text":
            return spaces.Text(space.max_length, space.min_length, space.characters)
        case "Dict":
            return spaces.Dict({name: space_of_gymnasium(each) for name, each in space.spaces.items()})
        case "Tuple":
            return spaces.Tuple(tuple(map(space_of_gymnasium, space.spaces)))
    expected = "Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict or Tuple"
    raise ValueError(f"space: {mismatch(expected, type(space).__name__)}")


def gymnasium_space(space: spaces.Space) -> Any:
    """Return a space as a space of gymnasium."""
    found = load("gymnasium.spaces", "data")
    match space:
        case spaces.Box():
            low, high = (np.broadcast_to(bound, space.shape).astype(space.dtype) for bound in (space.low, space.high))
            return found.Box(low, high, space.shape, space.dtype)
        case spaces.Discrete():
            return found.Discrete(space.n, start=space.start)
        case spaces.MultiDiscrete():
            return found.MultiDiscrete(space.nvec, dtype=space.dtype, start=space.start)
        case spaces.MultiBinary():
            return found.MultiBinary(space.shape[0] if len(space.shape) == 1 else space.shape)
        case spaces.Text():
            return found.Text(space.max_length, min_length=space.min_length, charset=space.characters)
        case spaces.Dict():
            return found.Dict({name: gymnasium_space(each) for name, each in space.spaces.items()})
        case spaces.Tuple():
            return found.Tuple([gymnasium_space(each) for each in space.spaces])


def space_values(leaves: Mapping[str, np.ndarray], space: spaces.Space, path: str = "") -> Any:
    """Return columns by leaf as values of gymnasium's space: nested dicts and tuples of arrays; lists of texts.

    Args:
        leaves: (T, …) each, or the values of one step.
        space: the space.
        path: path of the space in a larger one.
    """
    prefix = f"{path}/" if path else ""
    match space:
        case spaces.Dict():
            return {name: space_values(leaves, each, f"{prefix}{name}") for name, each in space.spaces.items()}
        case spaces.Tuple():
            return tuple(space_values(leaves, each, f"{prefix}{i}") for i, each in enumerate(space.spaces))
        case spaces.Text():
            return space.decode(leaves[path]).tolist()
    return leaves[path]


def value_leaves(value: Any, space: spaces.Space) -> dict[str, np.ndarray]:
    """Return one value of gymnasium's space as arrays by leaf, of the shapes and dtypes that columns have."""
    found = {}
    for path, leaf in spaces.leaf_spaces(space):
        part = value
        for key in path:
            part = part[key]
        if isinstance(leaf, spaces.Text):
            part = np.array([part], f"U{leaf.max_length}").view(np.uint32)
        found["/".join(map(str, path))] = np.asarray(part)
    return found


def check_choices(path: str, array: np.ndarray, space: spaces.Space) -> None:
    """Raise ValueError if a column of a leaf has a choice that the space does not; other spaces are not compared.

    Args:
        path: name of the column, for the error.
        array: the column, (T, …).
        space: space of the leaf.
    """
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and array.size:
        sizes = space.n if isinstance(space, spaces.Discrete) else space.nvec
        if (array < space.start).any() or (array >= space.start + sizes).any():
            raise ValueError(f"{path}: {mismatch(f'values of {space}', f'{array.min()} to {array.max()}')}")
