"""The versions of the agent that a sampler holds, and their parameters."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollserve._checks import check_integer, check_text, check_type
from rollserve._codec.tensors import dtype_from_proto
from rollserve.errors import malformed_error
from rollserve.v1 import agent_versions_pb2 as pb

__all__ = [
    "AgentVersion",
    "HeldAgent",
    "agent_versions_from_proto",
    "aread_parameters",
    "parameters_request",
    "read_parameters",
]


@dataclass(frozen=True)
class HeldAgent:
    """What is known of an agent that a sampler holds.

    Attributes:
        kind: its kind; as of `SamplerStatus.agent_kinds`.
        parameter_bytes: how many bytes its parameters take.
        content_hash: the same for agents of the same kind and structure with the same parameters, to the last bit, and
            another for others. To be compared with others of the same server alone.
    """

    kind: str
    parameter_bytes: int
    content_hash: str


@dataclass(frozen=True)
class AgentVersion:
    """A version of the agent that a sampler holds.

    Attributes:
        policy_version: its number.
        agents: one for all workers, or one for each.
        updated: when the update came that made it, by the server's clock, in UTC.
        is_current: whether it is the one that acts unless a call names another.
        in_use: whether a call samples with it.
    """

    policy_version: int
    agents: Sequence[HeldAgent]
    updated: datetime.datetime
    is_current: bool
    in_use: bool


def agent_versions_from_proto(response: pb.ListAgentVersionsResponse) -> Sequence[AgentVersion]:
    """The versions that a response tells of."""
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
    """The request for parameters; see `rollserve.Sampler.agent_parameters`.

    Raises:
        TypeError: an argument is of another type.
        ValueError: the version is 0, or `names` is empty.
        InvalidArgumentError: a number is out of the range of those that can be sent, or a name is no text.
    """
    if version is not None:
        check_integer("version", version, 64, signed=True)
        if version == 0:  # on the wire, that is the current one
            raise ValueError("version: 0 came, a version was expected, which begin with 1, or None for the current one")
    if worker is not None:
        check_integer("worker", worker, 32, signed=False)
    if isinstance(names, str):
        raise TypeError("names: str came, a sequence of names was expected")
    check_type("names", names or (), Sequence, "a sequence of names")
    if names is not None and not len(names):
        raise ValueError("names: none came, at least one was expected, or None for all")
    for name in names or ():
        check_text("names", name)
    return pb.GetAgentParametersRequest(
        sampler=sampler,
        policy_version=version or 0,
        worker_index=worker or 0,
        names=names,
        max_message_bytes=max_message_bytes,
    )


def read_parameters(method: Callable[..., Any]) -> Callable[..., dict[str, np.ndarray]]:
    """A method that brings parameters as a stream, as one that returns them; raises as `_Joining` does."""

    def read(*arguments: Any, **options: Any) -> dict[str, np.ndarray]:
        joining = _Joining()
        for response in method(*arguments, **options):
            joining.add(response)
        return joining.end()

    return read


def aread_parameters(method: Callable[..., Any]) -> Callable[..., Any]:
    """As `read_parameters`, to be awaited."""

    async def read(*arguments: Any, **options: Any) -> dict[str, np.ndarray]:
        joining = _Joining()
        async for response in method(*arguments, **options):
            joining.add(response)
        return joining.end()

    return read


class _Joining:
    """Puts parameters together of their parts, which come in their order."""

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}
        # Of the parameter that has not come whole: its bytes, and how many of them have come.
        self._bytes = np.empty(0, np.uint8)
        self._num_come = 0

    def add(self, response: pb.GetAgentParametersResponse) -> None:
        """Takes in the parts of a message.

        Raises:
            ServerError: a part is malformed, or not the next one.
        """
        for part in response.parts:
            if self._num_come == len(self._bytes):
                self._begin(part)
            end = self._num_come + len(part.data)
            if part.name != next(reversed(self._arrays)) or part.offset_bytes != self._num_come:
                raise malformed_error(f"{part.name!r}: a part from byte {part.offset_bytes} on came out of turn")
            if end > len(self._bytes):
                raise malformed_error(f"{part.name!r}: more came than its shape asks for")
            self._bytes[self._num_come : end] = np.frombuffer(part.data, np.uint8)
            self._num_come = end

    def end(self) -> dict[str, np.ndarray]:
        """The parameters, after the stream's end.

        Raises:
            ServerError: some have not come whole.
        """
        if self._num_come < len(self._bytes):
            raise malformed_error("the stream ended within a parameter")
        return self._arrays

    def _begin(self, part: pb.ParameterPart) -> None:
        if part.name in self._arrays:
            raise malformed_error(f"{part.name!r}: the name came twice")
        try:
            array = np.empty(tuple(part.shape), dtype_from_proto(part.data_type))
        except ValueError as error:
            raise malformed_error(f"{part.name!r}: {error}") from error
        self._arrays[part.name] = array
        self._bytes, self._num_come = array.reshape(-1).view(np.uint8), 0
