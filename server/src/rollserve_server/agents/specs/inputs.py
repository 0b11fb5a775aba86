"""What agents get beside observations."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

__all__ = ["NO_INPUTS", "AgentInputs", "MaskSource"]


class MaskSource(NamedTuple):
    """The source of an action mask, as ActionMask in `protos/rollserve/v1/agent.proto` defines it.

    Attributes:
        kind: whether the mask is an info of the environment, or a leaf of the observation.
        name: name of the info or the leaf.
    """

    kind: Literal["info", "observation"]
    name: str


class AgentInputs(NamedTuple):
    """What an agent gets beside the observation.

    Attributes:
        action_mask: source of the action mask; None for no mask.
        previous_action: whether the agent gets the action before. Of Python agents, the policy decides instead.
        previous_reward: whether the agent gets the reward before. Of Python agents, the policy decides instead.
    """

    action_mask: MaskSource | None = None
    previous_action: bool = False
    previous_reward: bool = False


NO_INPUTS: Final = AgentInputs()
