"""Agents as messages and back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.agents.exploration import Exploration
from rollserve_server.agents.onnx.model import join_model
from rollserve_server.agents.specs import (
    DEFAULT_HEAD_SETTINGS,
    NO_INPUTS,
    AgentInputs,
    ConstantSpec,
    CoreSpec,
    HeadSettings,
    InstalledFactory,
    LeafHead,
    MaskSource,
    MlpSpec,
    Normalization,
    OnnxModel,
    OnnxSpec,
    PickledFactory,
    PolicySet,
    PolicySource,
    PythonSource,
    PythonSpec,
    RandomSpec,
    kind_of,
)
from rollserve_server.envs import check_arguments
from rollserve_server.errors import InvalidValueError, NotReadyError
from rollserve_server.fields import in_field
from rollserve_wire.json_arguments import kwargs_from_json, kwargs_to_json
from rollserve_wire.protobuf import keys_of, length_delimited
from rollserve_wire.reasons import Reason
from rollserve_wire.tensors import named_tensor, named_tensors_from_proto, named_tensors_to_proto, plain_tensor
from rollserve_wire.v1 import agent_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from rollserve_server.agents.specs import Activation, AgentSource, HeadKind, MlpHeadKind, Value

__all__ = [
    "agent_from_proto",
    "agent_parts",
    "check_unpickled",
    "exploration_from_proto",
    "exploration_to_proto",
    "kwargs_in",
    "mlp_from_proto",
    "parameters_in",
]

_ACTIVATIONS: Mapping[agent_pb2.Activation.ValueType, Activation] = {
    agent_pb2.ACTIVATION_TANH: "tanh",
    agent_pb2.ACTIVATION_RELU: "relu",
    agent_pb2.ACTIVATION_ELU: "elu",
    agent_pb2.ACTIVATION_GELU: "gelu",
    agent_pb2.ACTIVATION_GELU_TANH: "gelu_tanh",
    agent_pb2.ACTIVATION_SILU: "silu",
}
"""Activations by their numbers on the wire."""
_Kind = (
    agent_pb2.MlpAgent
    | agent_pb2.RandomAgent
    | agent_pb2.ConstantAgent
    | agent_pb2.OnnxAgent
    | agent_pb2.PythonAgent
    | agent_pb2.PickledAgent
)
_WITHOUT_MODELS = ("epsilon_greedy", "boltzmann")
"""Heads that models have for no leaf."""
_NORM_EPSILON = 1e-5
"""Epsilon of the layer norm if the request has none."""
_MIN_FACTOR, _MAX_FACTOR = 1e-6, 1e6
_RANGES = {
    "temperature": (_MIN_FACTOR, _MAX_FACTOR),
    "noise_scale": (_MIN_FACTOR, _MAX_FACTOR),
    "epsilon": (0.0, 1.0),
}
"""Range of each number by the attribute of `Exploration`; the proto field has its plural."""
_MAX_NUMBERS = 1024
"""Largest number of temperatures, noise scales and epsilons each: they are part of each order to a worker."""
_TENSORS = keys_of(agent_pb2.Parameters.DESCRIPTOR)["tensors"]


def agent_from_proto(agent: agent_pb2.Agent, allowed_paths: Collection[Path] | None) -> PolicySource:
    """Return an agent.

    Args:
        agent: the message.
        allowed_paths: paths that arguments may have; None for any.

    Raises:
        InvalidValueError: a part is missing or malformed.
        NotAllowedError: an argument is a path that is not allowed; see `check_arguments`.
    """
    match agent.WhichOneof("kind"):
        case "mlp":
            with in_field("mlp"):
                return mlp_from_proto(agent.mlp, parameters_in(agent.mlp.parameters))
        case "random":
            with in_field("random"):
                return RandomSpec(_inputs_from_proto(agent.random))
        case "constant":
            with in_field("constant.action"):
                action = named_tensors_from_proto(agent.constant.action)
            with in_field("constant"):
                return ConstantSpec(action, _inputs_from_proto(agent.constant))
        case "onnx":
            with in_field("onnx"):
                return _onnx_from_proto(agent.onnx)
        case "python":
            with in_field("python"):
                return _python_from_proto(agent.python, allowed_paths)
        case "pickled":
            with in_field("pickled"):
                factory = PickledFactory(agent.pickled.data)
                parameters = parameters_in(agent.pickled.parameters)
                return PythonSource(factory, parameters, _inputs_from_proto(agent.pickled))
        case _:
            raise InvalidValueError.of("kind", expected="mlp, random, constant, onnx, python or pickled", got="none")


def mlp_from_proto(mlp: agent_pb2.MlpAgent, parameters: Mapping[str, np.ndarray]) -> MlpSpec:
    """Return the spec of an MLP with its parameters.

    Raises:
        InvalidValueError: a part is missing or unknown.
    """
    head: MlpHeadKind | None = mlp.WhichOneof("head")
    if head is None:
        kinds = [field.name for field in mlp.DESCRIPTOR.oneofs_by_name["head"].fields]
        raise InvalidValueError.of("head", expected=f"{', '.join(kinds[:-1])} or {kinds[-1]}", got="none")
    if mlp.activation not in (*_ACTIVATIONS, agent_pb2.ACTIVATION_UNSPECIFIED):
        raise InvalidValueError.of("activation", expected="a value of Activation", got=mlp.activation)
    norm, core = mlp.layer_norm, mlp.WhichOneof("core")
    norm_epsilon = norm.epsilon if norm.HasField("epsilon") else _NORM_EPSILON
    return MlpSpec(
        layer_sizes=tuple(mlp.layer_sizes),
        activation=_ACTIVATIONS.get(mlp.activation),
        head=head,
        parameters=parameters,
        settings=_settings_from_proto(mlp, head) if head != "hybrid" else DEFAULT_HEAD_SETTINGS,
        norm_epsilon=norm_epsilon if mlp.HasField("layer_norm") else None,
        value=_value_from_proto(mlp),
        core=None if core is None else CoreSpec(core, getattr(mlp, core).size),
        # As of the head, fields that are set have the names of the attributes.
        normalization=Normalization(**{field.name: value for field, value in mlp.normalization.ListFields()})
        if mlp.HasField("normalization")
        else None,
        inputs=_inputs_from_proto(mlp)._replace(
            previous_action=mlp.previous_action, previous_reward=mlp.previous_reward
        ),
        leaf_heads=_leaf_heads_from_proto(mlp),
    )


def _settings_from_proto(message: agent_pb2.MlpAgent | agent_pb2.LeafHead, head: HeadKind) -> HeadSettings:
    # Fields that are set have the names of the attributes; others have the same defaults.
    return HeadSettings(**{field.name: value for field, value in getattr(message, head).ListFields()})


def _leaf_heads_from_proto(agent: agent_pb2.MlpAgent | agent_pb2.OnnxAgent) -> dict[str, LeafHead]:
    """Return the heads of a hybrid head by the names of their leaves, in the order of the names."""
    leaf_heads = {}
    for leaf, message in sorted(agent.hybrid.leaves.items()):
        head: HeadKind | None = message.WhichOneof("head")
        if head is None:
            kinds = [field.name for field in message.DESCRIPTOR.oneofs_by_name["head"].fields]
            expected = f"{', '.join(kinds[:-1])} or {kinds[-1]}"
            raise InvalidValueError.of(f"hybrid.leaves[{leaf!r}]", expected=expected, got="none")
        leaf_heads[leaf] = LeafHead(head, _settings_from_proto(message, head))
    return leaf_heads


def _inputs_from_proto(agent: _Kind) -> AgentInputs:
    """Return what an agent gets beside the observation."""
    if not agent.HasField("action_mask"):
        return NO_INPUTS
    source = agent.action_mask.WhichOneof("source")
    if source is None:
        raise InvalidValueError.of("action_mask", expected="info or observation", got="none")
    name = getattr(agent.action_mask, source)
    if not name:
        raise InvalidValueError.of(f"action_mask.{source}", expected="a name", got="none")
    return AgentInputs(MaskSource(source, name))


def _value_from_proto(mlp: agent_pb2.MlpAgent) -> Value | None:
    match mlp.WhichOneof("value"):
        case "shared_value":
            return "shared"
        case "separate_value":
            return tuple(mlp.separate_value.hidden_sizes)
        case _:
            return None


def _onnx_from_proto(onnx: agent_pb2.OnnxAgent) -> OnnxModel:
    head = onnx.WhichOneof("head")
    if head is None:
        expected = "categorical, diagonal_gaussian, squashed_gaussian, actions or hybrid"
        raise InvalidValueError.of("head", expected=expected, got="none")
    leaf_heads = _leaf_heads_from_proto(onnx)
    for leaf, (kind, settings) in leaf_heads.items():
        if kind in _WITHOUT_MODELS or settings != DEFAULT_HEAD_SETTINGS:
            expected = (
                "categorical, multi_categorical, bernoulli, diagonal_gaussian or squashed_gaussian, without fields"
            )
            raise InvalidValueError.of(f"hybrid.leaves[{leaf!r}]", expected=expected, got=kind)
    for field, value in getattr(onnx, head).ListFields() if head != "hybrid" else ():
        expected = "none, because a model outputs log_std in its final form"
        raise InvalidValueError.of(f"{head}.{field.name}", expected=expected, got=value)
    return OnnxModel(
        data=onnx.model,
        inputs=dict(onnx.inputs),
        outputs=dict(onnx.outputs),
        head=head,
        infos=tuple(onnx.infos),
        agent_inputs=_inputs_from_proto(onnx),
        leaf_heads=leaf_heads,
    )


def _python_from_proto(python: agent_pb2.PythonAgent, allowed_paths: Collection[Path] | None) -> PythonSource:
    parameters = parameters_in(python.parameters)
    factory = InstalledFactory(python.name, kwargs_in(python, allowed_paths))
    return PythonSource(factory, parameters, _inputs_from_proto(python))


def kwargs_in(
    message: agent_pb2.PythonAgent | pb.AgentChange, allowed_paths: Collection[Path] | None
) -> Mapping[str, object]:
    """Return the keyword arguments of Python code; raises as `agent_from_proto`."""
    with in_field("kwargs_json"):
        kwargs = kwargs_from_json(message.kwargs_json)
    if allowed_paths is not None:
        check_arguments({"kwargs_json": kwargs}, allowed_paths)
    return kwargs


def parameters_in(parameters: agent_pb2.Parameters) -> Mapping[str, np.ndarray]:
    """Return parameters by name; raise InvalidValueError if one is malformed."""
    with in_field("parameters"):
        return named_tensors_from_proto(parameters.tensors)


def agent_parts(agent: PolicySource) -> list[bytes | memoryview]:
    """Return an accepted agent as a serialized Agent, in parts; its parameters are not copied."""
    match agent:
        case MlpSpec():
            return _parts("mlp", _mlp_to_proto(agent), agent.parameters)
        case RandomSpec():
            return _parts("random", agent_pb2.RandomAgent(action_mask=_mask_to_proto(agent.inputs)))
        case ConstantSpec():
            action, mask = named_tensors_to_proto(agent.action), _mask_to_proto(agent.inputs)
            return _parts("constant", agent_pb2.ConstantAgent(action=action, action_mask=mask))
        case OnnxSpec():
            return _parts("onnx", _onnx_to_proto(agent), model=join_model(agent.graph, agent.parameters))
        case PythonSpec(factory=InstalledFactory(name, kwargs)):
            kwargs_json, mask = kwargs_to_json("kwargs", kwargs), _mask_to_proto(agent.inputs)
            python = agent_pb2.PythonAgent(name=name, kwargs_json=kwargs_json, action_mask=mask)
            return _parts("python", python, agent.parameters)
        case PythonSpec(factory=PickledFactory(data)):
            pickled = agent_pb2.PickledAgent(data=data, action_mask=_mask_to_proto(agent.inputs))
            return _parts("pickled", pickled, agent.parameters)
    raise TypeError(f"expected an accepted agent, got {type(agent).__name__}")


def check_unpickled(agent: AgentSource) -> None:
    """Raise NotReadyError if an agent, or a policy, is a pickle."""
    policies = agent.policies.values() if isinstance(agent, PolicySet) else ()
    if "pickled" in map(kind_of, (agent, *(each.spec for held in policies for each in held))):
        expected = "an agent without pickles, which a file could not be read without executing"
        raise NotReadyError.of("agents", expected=expected, got="a pickled one", reason=Reason.SAVED_SAMPLER)


def _parts(
    kind: str, message: _Kind, parameters: Mapping[str, np.ndarray] = MappingProxyType({}), model: bytes = b""
) -> list[bytes | memoryview]:
    """Return an Agent of a kind, whose parameters or model are not in the message yet."""
    keys = keys_of(message.DESCRIPTOR)
    content: list[bytes | memoryview] = [message.SerializeToString()]
    if parameters:
        tensors: list[bytes | memoryview] = []
        for name, array in parameters.items():
            tensors += length_delimited(_TENSORS, named_tensor(name, plain_tensor(np.asarray(array))))
        content += length_delimited(keys["parameters"], tensors)
    if model:
        content += length_delimited(keys["model"], [model])
    return length_delimited(keys_of(agent_pb2.Agent.DESCRIPTOR)[kind], content)


def _mlp_to_proto(spec: MlpSpec) -> agent_pb2.MlpAgent:
    message = agent_pb2.MlpAgent(
        layer_sizes=spec.layer_sizes,
        action_mask=_mask_to_proto(spec.inputs),
        previous_action=spec.inputs.previous_action,
        previous_reward=spec.inputs.previous_reward,
    )
    numbers = {activation: number for number, activation in _ACTIVATIONS.items()}
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


def exploration_to_proto(exploration: Exploration) -> pb.Exploration:
    """Return how freely an agent acts as a message."""
    return pb.Exploration(
        deterministic=exploration.deterministic,
        temperatures=exploration.temperature,
        noise_scales=exploration.noise_scale,
        epsilons=exploration.epsilon,
    )


def exploration_from_proto(exploration: pb.Exploration) -> Exploration:
    """Return how freely the agent acts in a call.

    Raises:
        InvalidValueError: a value is out of range, or has no meaning beside another.
    """
    changes: dict[str, tuple[float, ...]] = {}
    for attribute, bounds in _RANGES.items():
        field = f"{attribute}s"
        values = tuple(getattr(exploration, field))
        if values:
            _check_numbers(field, values, bounds)
            if exploration.deterministic:
                raise InvalidValueError.of(field, expected="none beside deterministic", got=f"{len(values)} numbers")
            changes[attribute] = values
    return Exploration(exploration.deterministic, **changes)


def _check_numbers(field: str, values: tuple[float, ...], bounds: tuple[float, float]) -> None:
    if len(values) > _MAX_NUMBERS:
        raise InvalidValueError.of(field, expected=f"at most {_MAX_NUMBERS} numbers", got=len(values))
    minimum, maximum = bounds
    for position, value in enumerate(values):
        if not minimum <= value <= maximum:
            expected = f"a number from {minimum:g} to {maximum:g}"
            raise InvalidValueError.of(f"{field}[{position}]", expected=expected, got=value)
