"""What a recurrent agent remembered when segments began."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rollserve._codec.columns import is_mask, mask_name

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["begun_later"]

_OF_STEPS = "state/"
"""What the agent_infos are called that tell the states before each step, in front of their names."""


def begun_later(states: Mapping[str, np.ndarray], agent_infos: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The states that segments begin with if the first one begins at a later step than it did.

    Args:
        states: each (N, *H), those that they began with.
        agent_infos: each (T, *I), from the first segment's new beginning on.

    Returns:
        As `states`, with a gap at the first segment where the infos do not tell.
    """
    begun = {name: array.copy() for name, array in states.items()}
    for name, array in states.items():
        if is_mask(name, states):
            continue
        told = agent_infos.get(f"{_OF_STEPS}{name}")
        begun[name][0] = 0 if told is None else told[0]
        if told is None:
            mask = begun.setdefault(mask_name(name), np.ones(len(array), np.bool_))
            mask[0] = False
    return begun
