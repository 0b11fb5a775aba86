"""Recurrent states at the beginning of segments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rollserve_wire.columns import is_mask, mask_name

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["STEP_STATES", "later_initial_states"]

STEP_STATES = "state/"
"""Prefix of agent_infos that hold the state before each step."""


def later_initial_states(
    states: Mapping[str, np.ndarray], agent_infos: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the initial states of segments after the first segment lost some of its first steps.

    Args:
        states: each (N, *H), initial states of the segments before that.
        agent_infos: each (T, *I), from the new first step on.

    Returns:
        Like `states`. The first segment's state is a gap unless agent_infos hold the states of every step.
    """
    later = {name: array.copy() for name, array in states.items()}
    for name, array in states.items():
        if is_mask(name, states):
            continue
        step_states = agent_infos.get(f"{STEP_STATES}{name}")
        later[name][0] = 0 if step_states is None else step_states[0]
        if step_states is None:
            mask = later.setdefault(mask_name(name), np.ones(len(array), np.bool_))
            mask[0] = False
    return later
