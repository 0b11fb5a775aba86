"""Versions of agents, and the parameters of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.errors import InvalidValueError, OverLimitError, listed
from rollserve_server.gateway.messages.fields import timestamp_of
from rollserve_wire.reasons import Reason
from rollserve_wire.records import message_from_record
from rollserve_wire.tensors import dtype_to_proto
from rollserve_wire.v1 import agent_versions_pb2 as pb

if TYPE_CHECKING:
    from rollserve_server.pool import AgentVersionStatus

__all__ = ["agent_versions_to_proto", "parameter_messages", "select_parameters"]

_MAX_MESSAGE_BYTES = 2 << 20
"""Largest size of a message with parameters. Larger messages are not sent any faster."""
_FIELD_BYTES = 16
"""More bytes than a key takes with a number or a length behind it."""


def agent_versions_to_proto(versions: Sequence[AgentVersionStatus]) -> pb.ListAgentVersionsResponse:
    """Return the versions that a sampler keeps."""
    return pb.ListAgentVersionsResponse(versions=map(_agent_version_to_proto, versions))


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
) -> Iterator[pb.GetAgentParametersResponse]:
    """Yield parameters in messages of up to 2 MiB: at least one message, even without parameters.

    Args:
        policy_version: version of the agent.
        parameters: the parameters by name.
        max_message_bytes: size that no message may exceed.

    Raises:
        OverLimitError: a message has no room for a single element beside the parameter's name and shape.
    """
    limit = min(max_message_bytes, _MAX_MESSAGE_BYTES) - _FIELD_BYTES
    message, num_bytes = pb.GetAgentParametersResponse(policy_version=policy_version), 0
    for name, array in parameters.items():
        for part in _parts(name, array, limit):
            size = part.ByteSize() + _FIELD_BYTES
            if message.parts and num_bytes + size > limit:
                yield message
                message, num_bytes = pb.GetAgentParametersResponse(policy_version=policy_version), 0
            message.parts.append(part)
            num_bytes += size
    yield message


def _agent_version_to_proto(version: AgentVersionStatus) -> pb.AgentVersion:
    updated = timestamp_of(version.updated_seconds)
    agents = [message_from_record(pb.HeldAgent, agent) for agent in version.agents]
    return message_from_record(pb.AgentVersion, version, policy_version=version.number, agents=agents, updated=updated)


def _parts(name: str, array: np.ndarray, limit: int) -> Iterator[pb.ParameterPart]:
    """Yield a parameter in parts, each with room in a message of `limit` bytes."""
    head = pb.ParameterPart(name=name, data_type=dtype_to_proto(array.dtype), shape=array.shape)
    room = limit - head.ByteSize() - 3 * _FIELD_BYTES
    if room < array.itemsize:
        expected = f"more than {head.ByteSize()} bytes, which the name and the shape of a parameter take"
        raise OverLimitError.of(
            "max_message_bytes", expected=expected, got=limit + _FIELD_BYTES, reason=Reason.MESSAGE_TOO_SMALL
        )
    data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)
    size = room // array.itemsize * array.itemsize
    for offset in range(0, max(len(data), 1), size):
        part = pb.ParameterPart(offset_bytes=offset, data=data[offset : offset + size].tobytes())
        part.MergeFrom(head)
        yield part
