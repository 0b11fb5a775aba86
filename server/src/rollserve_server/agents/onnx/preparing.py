"""ONNX models before workers get them: matched with the spaces, and probed in a sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollserve_server.agents.action_masks import action_mask_of
from rollserve_server.agents.agent import ACTION_MASK
from rollserve_server.agents.identity import model_digest
from rollserve_server.agents.onnx.head import onnx_head
from rollserve_server.agents.onnx.model import read_model
from rollserve_server.agents.onnx.ports import check_converts, check_output, match_inputs, match_outputs
from rollserve_server.agents.onnx.run_probe import run_probe
from rollserve_server.agents.parameters import check_parameters
from rollserve_server.agents.previous import PREVIOUS_ACTION, PREVIOUS_REWARD, is_previous
from rollserve_server.agents.roles import OBSERVATION, STATE, leaf_role
from rollserve_server.agents.specs.onnx import OnnxSpec
from rollserve_server.agents.specs.shapes import shapes_of
from rollserve_server.envs import leaves_of_space
from rollserve_server.errors import InvalidValueError, listed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gymnasium import Space

    from rollserve_server.agents.agent import ActionMask
    from rollserve_server.agents.specs.onnx import OnnxModel, Port
    from rollserve_server.envs import Leaf
    from rollserve_server.settings import AgentSettings

__all__ = ["check_onnx", "prepare_onnx"]


def prepare_onnx(
    model: OnnxModel, observation_space: Space[Any], action_space: Space[Any], settings: AgentSettings
) -> OnnxSpec:
    """Read a model, and probe it in a sandbox.

    Raises:
        InvalidValueError: the model is malformed, does not fit the spaces, or fails; the error names the field.
        OverLimitError: the model is too large.
    """
    parts = read_model(model.data, settings.max_model_bytes)
    mask = action_mask_of(model.agent_inputs.action_mask, observation_space, action_space)
    leaves, action_leaves = _observed(observation_space, mask), leaves_of_space(action_space)
    inputs = match_inputs(model, parts, leaves, action_leaves, mask)
    states = [port for port in inputs if port.role.startswith(STATE)]
    by_role = _leaves_by_role(leaves, action_leaves)
    outputs, batching = run_probe(parts, inputs, by_role, mask, settings.onnx_providers, settings.model_sandbox)
    spec = OnnxSpec(
        graph=parts.graph,
        inputs=inputs,
        outputs=match_outputs(model, outputs, action_space, states),
        head=model.head,
        infos=model.infos,
        batching=batching,
        providers=settings.onnx_providers,
        parameters=parts.parameters,
        shapes=shapes_of(parts.parameters),
        agent_inputs=model.agent_inputs,
        leaf_heads=model.leaf_heads,
        source=model_digest(model),
    )
    check_onnx(spec, observation_space, action_space)
    return spec


def check_onnx(spec: OnnxSpec, observation_space: Space[Any], action_space: Space[Any]) -> None:
    """Raise InvalidValueError if the model does not fit the spaces, or its parameters do not fit the model."""
    mask = action_mask_of(spec.agent_inputs.action_mask, observation_space, action_space)
    leaves = _observed(observation_space, mask)
    ports = [port for port in spec.inputs if port.role == OBSERVATION or port.role.startswith(f"{OBSERVATION}/")]
    expected, got = [leaf_role(OBSERVATION, leaf) for leaf in leaves], [port.role for port in ports]
    if got != expected:
        raise InvalidValueError.of("inputs", expected=f"inputs for {expected}", got=f"inputs for {got}")
    for leaf, port in zip(leaves, ports, strict=True):
        _check_leaf(leaf, port)
    _check_previous(spec, action_space)
    for port in spec.inputs:
        if mask is not None and port.role == ACTION_MASK and port.shape != (mask.size,):
            field, wanted = f"model.input[{port.name!r}]", f"rows of shape {(mask.size,)}"
            raise InvalidValueError.of(field, expected=wanted, got=f"rows of shape {port.shape}")
    for column in onnx_head(spec, spec.outputs, action_space).inputs:
        check_output(spec.outputs[column.name], column.dtype, column.shape[0])
    check_parameters(spec.parameters, spec.shapes)


def _check_previous(spec: OnnxSpec, action_space: Space[Any]) -> None:
    """Raise InvalidValueError unless the inputs for the action before fit the action space."""
    leaves = _leaves_by_role((), leaves_of_space(action_space))
    for port in spec.inputs:
        if is_previous(port.role) and port.role != PREVIOUS_REWARD:
            if port.role not in leaves:
                raise InvalidValueError.of("inputs", expected=f"inputs among {listed(leaves)}", got=repr(port.role))
            _check_leaf(leaves[port.role], port)


def _check_leaf(leaf: Leaf, port: Port) -> None:
    check_converts(leaf.dtype, port)
    if port.shape != leaf.shape:
        field = f"model.input[{port.name!r}]"
        raise InvalidValueError.of(field, expected=f"rows of shape {leaf.shape}", got=f"rows of shape {port.shape}")


def _leaves_by_role(leaves: Iterable[Leaf], action_leaves: Iterable[Leaf]) -> dict[str, Leaf]:
    """Return the leaves of observations, and of the action before, by their roles."""
    observed = {leaf_role(OBSERVATION, leaf): leaf for leaf in leaves}
    return observed | {leaf_role(PREVIOUS_ACTION, leaf): leaf for leaf in action_leaves}


def _observed(observation_space: Space[Any], mask: ActionMask | None) -> list[Leaf]:
    """Return the leaves of the observation space that the model gets as observations."""
    leaves = leaves_of_space(observation_space)
    return list(leaves) if mask is None else mask.without_hidden(leaves)
