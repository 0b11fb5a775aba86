"""Versions of agents, and their parameters, as messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from google.protobuf.timestamp_pb2 import Timestamp

from rollserve import Reason
from rollserve._codec.tensors import dtype_to_proto
from rollserve.v1 import agent_versions_pb2 as pb
from rollserve_server.agents.parameters import listed
from rollserve_server.errors import InvalidValueError, OverLimitError

if TYPE_CHECKING:
    from rollserve_server.pool import AgentVersionStatus

__all__ = ["agent_versions_to_proto", "chosen_parameters", "parameter_messages"]

_MESSAGE_BYTES = 2 << 20
"""Larger ones are not sent any faster."""
_FIELD_BYTES = 16
"""More than a key and a number, or the length behind it, take."""


def agent_versions_to_proto(versions: Sequence[AgentVersionStatus]) -> pb.ListAgentVersionsResponse:
    """The versions that are held."""
    response = pb.ListAgentVersionsResponse()
    for version in versions:
        updated = Timestamp()
        updated.FromNanoseconds(round(version.updated_seconds * 1e9))
        agents = [
            pb.HeldAgent(kind=agent.kind, parameter_bytes=agent.parameter_bytes, content_hash=agent.content_hash)
            for agent in version.agents
        ]
        response.versions.add(
            policy_version=version.number,
            agents=agents,
            updated=updated,
            is_current=version.is_current,
            in_use=version.in_use,
        )
    return response


def chosen_parameters(parameters: Mapping[str, np.ndarray], names: Sequence[str]) -> Mapping[str, np.ndarray]:
    """Those of these names, or all if there are none.

    Raises:
        InvalidValueError: there is no parameter of a name.
    """
    for position, name in enumerate(names):
        if name not in parameters:
            raise InvalidValueError.of(f"names[{position}]", expected=f"one of {listed(parameters)}", got=repr(name))
    return {name: parameters[name] for name in names} if names else parameters


def parameter_messages(
    policy_version: int, parameters: Mapping[str, np.ndarray], max_message_bytes: int
) -> Iterator[pb.GetAgentParametersResponse]:
    """Parameters in messages, none of which is larger than that.

    Raises:
        OverLimitError: not even one element fits.
    """
    limit = min(max_message_bytes, _MESSAGE_BYTES) - _FIELD_BYTES
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


def _parts(name: str, array: np.ndarray, limit: int) -> Iterator[pb.ParameterPart]:
    """A parameter in parts, each of which fits into a message of that size."""
    head = pb.ParameterPart(name=name, data_type=dtype_to_proto(array.dtype), shape=array.shape)
    room = limit - head.ByteSize() - 3 * _FIELD_BYTES
    if room < array.itemsize:
        text = f"a message of more than {head.ByteSize()} bytes is needed for the name and the shape of a parameter"
        raise OverLimitError(text, reason=Reason.MESSAGE_TOO_SMALL, field="max_message_bytes")
    data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)
    size = room // array.itemsize * array.itemsize
    for offset in range(0, max(len(data), 1), size):
        part = pb.ParameterPart(offset_bytes=offset, data=data[offset : offset + size].tobytes())
        part.MergeFrom(head)
        yield part
