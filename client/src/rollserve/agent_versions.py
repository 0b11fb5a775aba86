"""Versions of the agent that a sampler holds; agents and parameters, to the server and back."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from google.protobuf.message import DecodeError

from rollserve.agents import Agent, agent_from_proto
from rollserve_wire.checks import check_integer, check_names, check_text, check_type
from rollserve_wire.errors import malformed_error, mismatch
from rollserve_wire.representations import briefly
from rollserve_wire.tensors import dtype_from_proto
from rollserve_wire.v1 import agent_pb2
from rollserve_wire.v1 import agent_versions_pb2 as pb

__all__ = [
    "AgentVersion",
    "HeldAgent",
    "ParametersCollector",
    "agent_from_bytes",
    "agent_request",
    "agent_versions_from_proto",
    "parameters_request",
]


@briefly
@dataclass(frozen=True)
class HeldAgent:
    """Description of an agent that a sampler holds.

    Attributes:
        kind: kind of the agent, as in `SamplerStatus.agent_kinds`.
        parameter_bytes: size of its parameters in bytes.
        content_hash: hash of kind, structure and parameters, which is equal only for agents that are the same bit for
            bit. Hashes of different servers cannot be compared.
    """

    kind: str
    parameter_bytes: int
    content_hash: str


@briefly
@dataclass(frozen=True)
class AgentVersion:
    """A version of the agent that a sampler holds.

    Attributes:
        policy_version: number of the version.
        agents: one agent for all workers, or one for each.
        updated: time in UTC, by the server's clock, at which the update arrived that made the version.
        is_current: whether the version acts in calls that name no other.
        in_use: whether a call is sampling with the version.
    """

    policy_version: int
    agents: Sequence[HeldAgent]
    updated: datetime.datetime
    is_current: bool
    in_use: bool


def agent_versions_from_proto(response: pb.ListAgentVersionsResponse) -> Sequence[AgentVersion]:
    """Return the versions that a response describes."""
    return tuple(
        AgentVersion(
            version.policy_version,
            tuple(HeldAgent(agent.kind, agent.parameter_bytes, agent.content_hash) for agent in version.agents),
            version.updated.ToDatetime(datetime.UTC),
            version.is_current,
            version.in_use,
        )
        for version in response.versions
    )


def parameters_request(
    sampler: str, version: int | None, worker: int | None, names: Sequence[str] | None, max_message_bytes: int | None
) -> pb.GetAgentParametersRequest:
    """Return the request for parameters; for the arguments, see `rollserve.Sampler.agent_parameters`.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: version 0, or empty `names`.
        InvalidArgumentError: a number out of range, or a name that UTF-8 cannot encode.
    """
    _check_version(version, worker)
    if names is not None:
        check_type("names", names, Sequence, "a sequence of names")
        check_names("names", names)
        if not len(names):
            raise ValueError(f"names: {mismatch('at least one name, or None for all parameters', 'none')}")
    return pb.GetAgentParametersRequest(
        sampler=sampler,
        policy_version=version or 0,
        worker_index=worker or 0,
        names=names,
        max_message_bytes=max_message_bytes,
    )


def agent_request(sampler: str, version: int | None, worker: int | None, policy: str | None) -> pb.GetAgentRequest:
    """Return the request for an agent; for the arguments and errors, see `rollserve.Sampler.agent`."""
    _check_version(version, worker)
    if policy is not None:
        check_text("policy", policy)
    return pb.GetAgentRequest(
        sampler=sampler, policy_version=version or 0, worker_index=worker or 0, policy=policy or ""
    )


def agent_from_bytes(data: bytes) -> Agent:
    """Return the agent of a serialized message; raise ServerError for a malformed one."""
    try:
        return agent_from_proto(agent_pb2.Agent.FromString(data))
    except (DecodeError, ValueError, TypeError) as error:
        raise malformed_error(f"agent: {error}") from None


def _check_version(version: int | None, worker: int | None) -> None:
    if version is not None:
        check_integer("version", version, 64, signed=True)
        if version == 0:  # on the wire, 0 stands for the current version
            raise ValueError(f"version: {mismatch('a version, from 1 up, or None for the current one', 0)}")
    if worker is not None:
        check_integer("worker", worker, 32, signed=False)


class ParametersCollector:
    """Collector of parameters, whose parts arrive in order."""

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}
        # The bytes of the parameter that is incomplete, and how many of them have been received.
        self._bytes = np.empty(0, np.uint8)
        self._num_received = 0

    def add(self, response: pb.GetAgentParametersResponse) -> None:
        """Add the parts of a message.

        Raises:
            ServerError: a part that is malformed or out of order.
        """
        for part in response.parts:
            if self._num_received == len(self._bytes):
                self._begin(part)
            end = self._num_received + len(part.data)
            name = next(reversed(self._arrays))
            if (part.name, part.offset_bytes) != (name, self._num_received):
                text = mismatch(f"byte {self._num_received} of {name!r}", f"byte {part.offset_bytes}")
                raise malformed_error(f"{part.name!r}: {text}")
            if end > len(self._bytes):
                raise malformed_error(f"{part.name!r}: {mismatch(f'{len(self._bytes)} bytes', 'more')}")
            self._bytes[self._num_received : end] = np.frombuffer(part.data, np.uint8)
            self._num_received = end

    def result(self) -> dict[str, np.ndarray]:
        """Return the parameters, after the end of the stream.

        Raises:
            ServerError: an incomplete parameter.
        """
        if self._num_received < len(self._bytes):
            raise malformed_error("the stream ended within a parameter")
        return self._arrays

    def _begin(self, part: pb.ParameterPart) -> None:
        if part.name in self._arrays:
            raise malformed_error(f"{part.name!r}: {mismatch('unique names', 'this name twice')}")
        try:
            array = np.empty(tuple(part.shape), dtype_from_proto(part.data_type))
        except ValueError as error:
            raise malformed_error(f"{part.name!r}: {error}") from None
        self._arrays[part.name] = array
        self._bytes, self._num_received = array.reshape(-1).view(np.uint8), 0
