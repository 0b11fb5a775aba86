"""Transforms of actions, from what an agent chooses to what an environment gets."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from rollserve_server.envs.transforms.leafwise import ColumnFunction, Step, leafwise, rescaling
from rollserve_wire.transforms import ClipActions, RescaleActions, Transform

if TYPE_CHECKING:
    from gymnasium import Space, spaces

__all__ = ["action_step"]


def action_step(transform: Transform, space: Space[Any]) -> Step | None:
    """Return the step of a transform of actions, from the space that it leads to; None for other transforms.

    Raises:
        InvalidValueError: the transform does not fit the space.
    """
    match transform:
        case RescaleActions(low, high):
            return leafwise(space, (), functools.partial(_rescale, low=low, high=high))
        case ClipActions():
            return leafwise(space, (), _clip)
        case _:
            return None


def _rescale(space: spaces.Box, low: float, high: float) -> tuple[spaces.Box, ColumnFunction] | None:
    if space.dtype is None or space.dtype.kind != "f":
        return None
    box, _, inverse = rescaling(space, low, high)
    return box, inverse


def _clip(space: spaces.Box) -> tuple[spaces.Box, ColumnFunction]:
    return space, lambda actions: actions.clip(space.low, space.high)
