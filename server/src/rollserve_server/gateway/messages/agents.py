"""Agents, their updates and their versions, as messages and back."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.agents import (
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
    PolicySource,
    PythonSource,
    PythonSpec,
    RandomSpec,
    join_model,
)
from rollserve_server.envs import check_arguments
from rollserve_server.errors import InvalidValueError, NotReadyError, OverLimitError, listed
from rollserve_server.gateway.messages.fields import (
    Updates,
    expectation_of,
    in_field,
    set_fields,
    timestamp_of,
    updates_from_proto,
)
from rollserve_server.pool import AgentChange, PolicyUpdates
from rollserve_wire.errors import InvalidArgumentError
from rollserve_wire.json_arguments import kwargs_from_json, kwargs_to_json
from rollserve_wire.policy_map import policy_map_from_proto
from rollserve_wire.reasons import Reason
from rollserve_wire.records import message_from_record
from rollserve_wire.tensors import dtype_to_proto, named_tensors_from_proto, named_tensors_to_proto
from rollserve_wire.v1 import agent_pb2, agent_versions_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from rollserve_server.agents import (
        Activation,
        AgentSource,
        HeadKind,
        MlpHeadKind,
        Value,
    )
    from rollserve_server.pool import AgentUpdate, AgentVersionStatus, PolicyUpdate
    from rollserve_wire.parameter_updates import ParametersUpdate
    from rollserve_wire.policy_map import PolicyMap
    from rollserve_wire.v1 import policies_pb2

__all__ = [
    "ACTIVATIONS",
    "agent_from_proto",
    "agent_to_proto",
    "agent_update_from_proto",
    "agent_updates_from_proto",
    "agent_versions_to_proto",
    "has_pickle",
    "is_pickle",
    "mlp_from_proto",
    "parameter_messages",
    "policy_map_in",
    "select_parameters",
]


ACTIVATIONS: Mapping[agent_pb2.Activation.ValueType, Activation] = {
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

_MAX_MESSAGE_BYTES = 2 << 20
"""Largest size of a message with parameters. Larger messages are not sent any faster."""
_FIELD_BYTES = 16
"""More bytes than a key takes with a number or a length behind it."""


def agent_updates_from_proto(
    request: pb.UpdateAgentRequest | ParametersUpdate, allowed_paths: Collection[Path]
) -> Updates[AgentUpdate]:
    """Return the updates of a request, which may carry parameters that have been read already.

    Raises:
        InvalidValueError: a part is missing or malformed.
        NotAllowedError: an argument is a path that is not allowed; see `check_arguments`.
    """
    if isinstance(request, pb.UpdateAgentRequest):
        return updates_from_proto(request, lambda update: agent_update_from_proto(update, allowed_paths))
    given = set_fields(request.request)
    skip_if_identical = given.get("skip_if_identical", False)
    return Updates([request.parameters], expectation_of(given), skip_if_identical=skip_if_identical)


def has_pickle(request: pb.UpdateAgentRequest) -> bool:
    """Whether any agent of a request is a pickle."""
    return any(map(is_pickle, (request.all_workers, *request.per_worker.updates)))


def is_pickle(update: pb.AgentUpdate) -> bool:
    """Whether the agent of an update, or one of its policies, is a pickle."""
    return update.agent.HasField("pickled") or any(map(is_pickle, update.policies.policies.values()))


def mlp_from_proto(mlp: agent_pb2.MlpAgent, parameters: Mapping[str, np.ndarray]) -> MlpSpec:
    """Return the spec of an MLP with its parameters.

    Raises:
        InvalidValueError: a part is missing or unknown.
    """
    head: MlpHeadKind | None = mlp.WhichOneof("head")
    if head is None:
        kinds = [field.name for field in mlp.DESCRIPTOR.oneofs_by_name["head"].fields]
        raise InvalidValueError.of("head", expected=f"{', '.join(kinds[:-1])} or {kinds[-1]}", got="none")
    if mlp.activation not in (*ACTIVATIONS, agent_pb2.ACTIVATION_UNSPECIFIED):
        raise InvalidValueError.of("activation", expected="a value of Activation", got=mlp.activation)
    norm, core = mlp.layer_norm, mlp.WhichOneof("core")
    norm_epsilon = norm.epsilon if norm.HasField("epsilon") else _NORM_EPSILON
    return MlpSpec(
        layer_sizes=tuple(mlp.layer_sizes),
        activation=ACTIVATIONS.get(mlp.activation),
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


def agent_update_from_proto(update: pb.AgentUpdate, allowed_paths: Collection[Path]) -> AgentUpdate:
    """Return an update; raises as `agent_updates_from_proto`."""
    match update.WhichOneof("update"):
        case "agent":
            with in_field("agent"):
                return agent_from_proto(update.agent, allowed_paths)
        case "parameters":
            return _parameters_from_proto(update.parameters)
        case "change":
            with in_field("change"):
                kwargs = _kwargs_from_proto(update.change, allowed_paths)
                return AgentChange(kwargs, _parameters_from_proto(update.change.parameters))
        case "policies":
            with in_field("policies"):
                return _policy_updates_from_proto(update.policies, allowed_paths)
        case _:
            raise InvalidValueError.of("update", expected="agent, parameters, change or policies", got="none")


def _policy_updates_from_proto(message: pb.PolicyUpdates, allowed_paths: Collection[Path]) -> PolicyUpdates:
    policies: dict[str, PolicyUpdate] = {}
    for name, update in sorted(message.policies.items()):
        with in_field(f"policies[{name!r}]"):
            if not name:
                raise InvalidValueError.of("", expected="the name of a policy", got="an empty text")
            read = agent_update_from_proto(update, allowed_paths)
            if isinstance(read, PolicyUpdates):
                raise InvalidValueError.of("policies", expected="agent, parameters or change", got="policies")
            policies[name] = read
    if not message.HasField("policy_map"):
        return PolicyUpdates(policies, None)
    return PolicyUpdates(policies, policy_map_in("policy_map", message.policy_map))


def policy_map_in(field: str, message: policies_pb2.PolicyMap) -> PolicyMap:
    """Return the map of policies that a field has.

    Raises:
        InvalidValueError: a part is missing, out of range, or there twice.
    """
    try:
        return policy_map_from_proto(message)
    except InvalidArgumentError as error:
        text = error.message.removeprefix(f"{error.field}: ")
        raise InvalidValueError(text, field=f"{field}.{error.field}") from error


def agent_from_proto(agent: agent_pb2.Agent, allowed_paths: Collection[Path]) -> PolicySource:
    """Return an agent; raises as `agent_updates_from_proto`."""
    match agent.WhichOneof("kind"):
        case "mlp":
            with in_field("mlp"):
                return mlp_from_proto(agent.mlp, _parameters_from_proto(agent.mlp.parameters))
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
                parameters = _parameters_from_proto(agent.pickled.parameters)
                return PythonSource(factory, parameters, _inputs_from_proto(agent.pickled))
        case _:
            raise InvalidValueError.of("kind", expected="mlp, random, constant, onnx, python or pickled", got="none")


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


def _python_from_proto(python: agent_pb2.PythonAgent, allowed_paths: Collection[Path]) -> PythonSource:
    parameters = _parameters_from_proto(python.parameters)
    factory = InstalledFactory(python.name, _kwargs_from_proto(python, allowed_paths))
    return PythonSource(factory, parameters, _inputs_from_proto(python))


def _kwargs_from_proto(
    message: agent_pb2.PythonAgent | pb.AgentChange, allowed_paths: Collection[Path]
) -> Mapping[str, object]:
    with in_field("kwargs_json"):
        kwargs = kwargs_from_json(message.kwargs_json)
    check_arguments({"kwargs_json": kwargs}, allowed_paths)
    return kwargs


def _parameters_from_proto(parameters: agent_pb2.Parameters) -> Mapping[str, np.ndarray]:
    with in_field("parameters"):
        return named_tensors_from_proto(parameters.tensors)


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


def agent_versions_to_proto(versions: Sequence[AgentVersionStatus]) -> agent_versions_pb2.ListAgentVersionsResponse:
    """Return the versions that a sampler keeps."""
    return agent_versions_pb2.ListAgentVersionsResponse(versions=map(_agent_version_to_proto, versions))


def select_parameters(parameters: Mapping[str, np.ndarray], names: Sequence[str]) -> Mapping[str, np.ndarray]:
    """Return the parameters of these names, or all if there are no names.

    Raises:
        InvalidValueError: no parameter has one of the names.
    """
    for position, name in enumerate(names):
        if name not in parameters:
            raise InvalidValueError.of(f"names[{position}]", expected=f"one of {listed(parameters)}", got=repr(name))
    return {name: parameters[name] for name in names} if names else parameters


def parameter_messages(
    policy_version: int, parameters: Mapping[str, np.ndarray], max_message_bytes: int
) -> Iterator[agent_versions_pb2.GetAgentParametersResponse]:
    """Yield parameters in messages of up to 2 MiB: at least one message, even without parameters.

    Args:
        policy_version: version of the agent.
        parameters: the parameters by name.
        max_message_bytes: size that no message may exceed.

    Raises:
        OverLimitError: a message has no room for a single element beside the parameter's name and shape.
    """
    limit = min(max_message_bytes, _MAX_MESSAGE_BYTES) - _FIELD_BYTES
    message, num_bytes = agent_versions_pb2.GetAgentParametersResponse(policy_version=policy_version), 0
    for name, array in parameters.items():
        for part in _parts(name, array, limit):
            size = part.ByteSize() + _FIELD_BYTES
            if message.parts and num_bytes + size > limit:
                yield message
                message, num_bytes = agent_versions_pb2.GetAgentParametersResponse(policy_version=policy_version), 0
            message.parts.append(part)
            num_bytes += size
    yield message


def _agent_version_to_proto(version: AgentVersionStatus) -> agent_versions_pb2.AgentVersion:
    updated = timestamp_of(version.updated_seconds)
    agents = [message_from_record(agent_versions_pb2.HeldAgent, agent) for agent in version.agents]
    return message_from_record(
        agent_versions_pb2.AgentVersion, version, policy_version=version.number, agents=agents, updated=updated
    )


def _parts(name: str, array: np.ndarray, limit: int) -> Iterator[agent_versions_pb2.ParameterPart]:
    """Yield a parameter in parts, each with room in a message of `limit` bytes."""
    head = agent_versions_pb2.ParameterPart(name=name, data_type=dtype_to_proto(array.dtype), shape=array.shape)
    room = limit - head.ByteSize() - 3 * _FIELD_BYTES
    if room < array.itemsize:
        expected = f"more than {head.ByteSize()} bytes, which the name and the shape of a parameter take"
        raise OverLimitError.of(
            "max_message_bytes", expected=expected, got=limit + _FIELD_BYTES, reason=Reason.MESSAGE_TOO_SMALL
        )
    data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)
    size = room // array.itemsize * array.itemsize
    for offset in range(0, max(len(data), 1), size):
        part = agent_versions_pb2.ParameterPart(offset_bytes=offset, data=data[offset : offset + size].tobytes())
        part.MergeFrom(head)
        yield part
