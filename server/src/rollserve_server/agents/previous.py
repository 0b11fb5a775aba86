"""The action and the reward of the step before, as recurrent states of an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.agents.agent import StateSpec
from rollserve_server.agents.roles import leaf_role

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rollserve_server.envs import Leaf

__all__ = ["PREVIOUS_ACTION", "PREVIOUS_REWARD", "action_states", "is_previous", "reward_state"]

PREVIOUS_ACTION = "previous_action"
"""Name of the state, or of the states of all leaves, that has the action before; see `leaf_role`."""

PREVIOUS_REWARD = "previous_reward"
"""Name of the state that has the reward before, as the caller gets it from the environment."""


def action_states(leaves: Iterable[Leaf]) -> list[StateSpec]:
    """Return a state for each leaf of an action, zeros at an episode's start."""
    return [StateSpec(leaf_role(PREVIOUS_ACTION, leaf), np.zeros(leaf.shape, leaf.dtype)) for leaf in leaves]


def reward_state() -> StateSpec:
    """Return the state that has the reward before, 0 at an episode's start."""
    return StateSpec(PREVIOUS_REWARD, np.zeros(()))


def is_previous(role: str) -> bool:
    """Whether an input of this role has the action before, a leaf of it, or the reward before."""
    return role in (PREVIOUS_ACTION, PREVIOUS_REWARD) or role.startswith(f"{PREVIOUS_ACTION}/")
