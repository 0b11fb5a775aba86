"""Agents that ignore observations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollserve_server.agents.specs.inputs import NO_INPUTS, AgentInputs

if TYPE_CHECKING:
    import numpy as np

__all__ = ["ConstantSpec", "RandomSpec"]


@dataclass(frozen=True)
class RandomSpec:
    """An agent that acts at random.

    Attributes:
        inputs: what the agent gets beside the observation.
    """

    inputs: AgentInputs = NO_INPUTS


@dataclass(frozen=True, eq=False)
class ConstantSpec:
    """An agent that always takes the same action.

    Attributes:
        action: value of each leaf of the action space, by name.
        inputs: what the agent gets beside the observation.
    """

    action: Mapping[str, np.ndarray]
    inputs: AgentInputs = NO_INPUTS
