"""Updates and versions of agents, as messages and back."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.agents import agent_from_proto, kwargs_in, parameters_in
from rollserve_server.errors import InvalidValueError, OverLimitError, listed
from rollserve_server.fields import in_field, set_fields, timestamp_of
from rollserve_server.gateway.messages.fields import Updates, expectation_of, updates_from_proto
from rollserve_server.pool import AgentChange, PolicyUpdates
from rollserve_wire.errors import InvalidArgumentError
from rollserve_wire.policy_map import policy_map_from_proto
from rollserve_wire.reasons import Reason
from rollserve_wire.records import message_from_record
from rollserve_wire.tensors import dtype_to_proto
from rollserve_wire.v1 import agent_versions_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from rollserve_server.pool import AgentUpdate, AgentVersionStatus, PolicyUpdate
    from rollserve_wire.parameter_updates import ParametersUpdate
    from rollserve_wire.policy_map import PolicyMap
    from rollserve_wire.v1 import policies_pb2

__all__ = [
    "agent_update_from_proto",
    "agent_updates_from_proto",
    "agent_versions_to_proto",
    "has_pickle",
    "is_pickle",
    "parameter_messages",
    "policy_map_in",
    "select_parameters",
]


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


def agent_update_from_proto(update: pb.AgentUpdate, allowed_paths: Collection[Path]) -> AgentUpdate:
    """Return an update; raises as `agent_updates_from_proto`."""
    match update.WhichOneof("update"):
        case "agent":
            with in_field("agent"):
                return agent_from_proto(update.agent, allowed_paths)
        case "parameters":
            return parameters_in(update.parameters)
        case "change":
            with in_field("change"):
                kwargs = kwargs_in(update.change, allowed_paths)
                return AgentChange(kwargs, parameters_in(update.change.parameters))
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
