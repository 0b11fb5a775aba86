"""Names for what the arrays of an agent are for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollserve_server.envs import Leaf

__all__ = ["NEXT_STATE", "OBSERVATION", "STATE", "leaf_role"]

OBSERVATION = "observation"
"""Role of an observation, or of each of its leaves, as input of a model; see `leaf_role`."""

STATE = "state/"
"""Prefix of a recurrent state's name, as input of a model and among the infos of a batch."""

NEXT_STATE = "next_state/"
"""Prefix of a recurrent state's name, as output of a model."""


def leaf_role(whole: str, leaf: Leaf) -> str:
    """Return the role of a leaf: `whole` if it is its space's only leaf, else `whole/NAME`.

    Args:
        whole: role of the whole value, such as `observation`.
        leaf: leaf of its space.
    """
    return f"{whole}/{leaf.name}" if leaf.name else whole
