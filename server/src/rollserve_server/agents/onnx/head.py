"""Heads for the outputs of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollserve_server.agents.exploration import DEFAULT_EXPLORATION
from rollserve_server.agents.heads.actions import ActionsHead
from rollserve_server.agents.heads.building import build_head, build_hybrid
from rollserve_server.envs import leaves_of_space
from rollserve_server.errors import InvalidValueError, listed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gymnasium import Space

    from rollserve_server.agents.agent import ActionMask
    from rollserve_server.agents.exploration import Exploration
    from rollserve_server.agents.heads.head import Head
    from rollserve_server.agents.specs.onnx import OnnxModel, OnnxSpec, Port

__all__ = ["onnx_head", "roles_of_head"]


def onnx_head(
    model: OnnxModel | OnnxSpec,
    outputs: Mapping[str, Port],
    action_space: Space[Any],
    exploration: Exploration = DEFAULT_EXPLORATION,
    mask: ActionMask | None = None,
) -> Head:
    """Build the head for a model with these outputs; with a mask, it gets the legal actions after them.

    Raises:
        InvalidValueError: the head does not fit the action space, or an output is missing.
    """
    head = _build(model, action_space, exploration, has_log_prob="log_prob" in outputs, mask=mask)
    for column in head.inputs:
        if column.name not in outputs:
            expected = f"an output {column.name!r}, or one that `outputs` names for it"
            got = listed([port.name for port in outputs.values()])
            raise InvalidValueError.of("model.output", expected=expected, got=got)
    return head


def roles_of_head(model: OnnxModel, action_space: Space[Any]) -> list[str]:
    """Return the roles of all outputs that a head may use.

    Raises:
        InvalidValueError: the head does not fit the action space.
    """
    return [column.name for column in _build(model, action_space, DEFAULT_EXPLORATION, has_log_prob=True).inputs]


def _build(
    model: OnnxModel | OnnxSpec,
    action_space: Space[Any],
    exploration: Exploration,
    *,
    has_log_prob: bool,
    mask: ActionMask | None = None,
) -> Head:
    if model.head == "actions":
        return ActionsHead(leaves_of_space(action_space), has_log_prob=has_log_prob, mask=mask)
    if model.head == "hybrid":
        return build_hybrid(model.leaf_heads, action_space, {}, exploration, mask)
    return build_head(model.head, action_space, exploration=exploration, mask=mask)
