"""Accepted agents as messages, from which the same agents are made again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve_server.agents import (
    DEFAULT_HEAD_SETTINGS,
    ConstantSpec,
    InstalledFactory,
    MlpSpec,
    OnnxSpec,
    PythonSpec,
    RandomSpec,
    join_model,
)
from rollserve_server.errors import NotReadyError
from rollserve_server.gateway.messages.agents import ACTIVATIONS
from rollserve_wire.json_arguments import kwargs_to_json
from rollserve_wire.reasons import Reason
from rollserve_wire.tensors import named_tensors_to_proto
from rollserve_wire.v1 import agent_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from rollserve_server.agents import AgentInputs, AgentSource, HeadSettings, LeafHead

__all__ = ["agent_to_proto"]


def agent_to_proto(agent: AgentSource) -> agent_pb2.Agent:
    """Return an accepted agent as a message; the inverse of what `UpdateAgent` reads.

    Raises:
        NotReadyError: the agent is a pickle.
    """
    match agent:
        case MlpSpec():
            return agent_pb2.Agent(mlp=_mlp_to_proto(agent))
        case RandomSpec():
            return agent_pb2.Agent(random=agent_pb2.RandomAgent(action_mask=_mask_to_proto(agent.inputs)))
        case ConstantSpec():
            action, mask = named_tensors_to_proto(agent.action), _mask_to_proto(agent.inputs)
            return agent_pb2.Agent(constant=agent_pb2.ConstantAgent(action=action, action_mask=mask))
        case OnnxSpec():
            return agent_pb2.Agent(onnx=_onnx_to_proto(agent))
        case PythonSpec(factory=InstalledFactory(name, kwargs)):
            python = agent_pb2.PythonAgent(
                name=name,
                kwargs_json=kwargs_to_json("kwargs", kwargs),
                parameters=_parameters_to_proto(agent.parameters),
                action_mask=_mask_to_proto(agent.inputs),
            )
            return agent_pb2.Agent(python=python)
    expected = "an agent without pickles, which a file could not be read without executing"
    raise NotReadyError.of("agents", expected=expected, got="a pickled one", reason=Reason.SAVED_SAMPLER)


def _mlp_to_proto(spec: MlpSpec) -> agent_pb2.MlpAgent:
    message = agent_pb2.MlpAgent(
        layer_sizes=spec.layer_sizes,
        parameters=_parameters_to_proto(spec.parameters),
        action_mask=_mask_to_proto(spec.inputs),
        previous_action=spec.inputs.previous_action,
        previous_reward=spec.inputs.previous_reward,
    )
    numbers = {activation: number for number, activation in ACTIVATIONS.items()}
    if spec.activation is not None:
        message.activation = numbers[spec.activation]
    if spec.head == "hybrid":
        _write_leaf_heads(message.hybrid, spec.leaf_heads)
    else:
        _write_settings(message, spec.head, spec.settings)
    if spec.norm_epsilon is not None:
        message.layer_norm.epsilon = spec.norm_epsilon
    if spec.value == "shared":
        message.shared_value.SetInParent()
    elif spec.value is not None:
        message.separate_value.SetInParent()
        message.separate_value.hidden_sizes.extend(spec.value)
    if spec.core is not None:
        getattr(message, spec.core.kind).size = spec.core.size
    if spec.normalization is not None:
        message.normalization.epsilon, message.normalization.clip = spec.normalization
    return message


def _onnx_to_proto(spec: OnnxSpec) -> agent_pb2.OnnxAgent:
    message = agent_pb2.OnnxAgent(
        model=join_model(spec.graph, spec.parameters),
        inputs={port.role: port.name for port in spec.inputs if port.role != port.name},
        outputs={port.role: port.name for port in spec.outputs.values() if port.role != port.name},
        infos=spec.infos,
        action_mask=_mask_to_proto(spec.agent_inputs),
    )
    if spec.head == "hybrid":
        _write_leaf_heads(message.hybrid, spec.leaf_heads)
    else:
        getattr(message, spec.head).SetInParent()
    return message


def _write_leaf_heads(hybrid: agent_pb2.HybridHead, leaf_heads: Mapping[str, LeafHead]) -> None:
    hybrid.SetInParent()
    for leaf, (kind, settings) in leaf_heads.items():
        _write_settings(hybrid.leaves[leaf], kind, settings)


def _write_settings(message: agent_pb2.MlpAgent | agent_pb2.LeafHead, head: str, settings: HeadSettings) -> None:
    """Write the settings of a head: its fields have the names of the attributes."""
    fields = getattr(message, head)
    fields.SetInParent()
    for field in fields.DESCRIPTOR.fields:
        value = getattr(settings, field.name)
        if value != getattr(DEFAULT_HEAD_SETTINGS, field.name):
            setattr(fields, field.name, value)


def _mask_to_proto(inputs: AgentInputs) -> agent_pb2.ActionMask | None:
    mask = inputs.action_mask
    return None if mask is None else agent_pb2.ActionMask(**{mask.kind: mask.name})


def _parameters_to_proto(parameters: Mapping[str, np.ndarray]) -> agent_pb2.Parameters:
    return agent_pb2.Parameters(tensors=named_tensors_to_proto(parameters))
