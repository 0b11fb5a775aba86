"""Versions of the agent that a sampler holds."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollserve_wire.representations import briefly

if TYPE_CHECKING:
    from rollserve_wire.v1 import agent_versions_pb2 as pb

__all__ = ["AgentVersion", "HeldAgent", "agent_versions_from_proto"]


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
