"""Queries about agents: which versions are kept, and their parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollserve_server.agents import PolicySet, parameters_of
from rollserve_server.errors import InvalidValueError, NotReadyError, listed
from rollserve_server.futures import in_request_thread
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    import numpy as np

    from rollserve_server.agents import AgentSpec, PolicySpec
    from rollserve_server.pool.state.agent_version import AgentSummary
    from rollserve_server.pool.versions.versions import Versions

__all__ = ["AgentQueries", "AgentVersionStatus"]


@dataclass(frozen=True)
class AgentVersionStatus:
    """A version of the agents that is kept.

    Attributes:
        number: number of the version.
        agents: a summary for all workers, or one for each.
        updated_seconds: when the version was accepted, in seconds since 1970.
        is_current: whether it is the current version.
        in_use: whether a call samples with it.
    """

    number: int
    agents: Sequence[AgentSummary]
    updated_seconds: float
    is_current: bool
    in_use: bool


class AgentQueries:
    """Answers queries about the agents that are kept."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions

    async def listed(self) -> Sequence[AgentVersionStatus]:
        """Return all versions that are kept, in rising order."""
        agents = self._versions.agents
        current, found = agents.number, [(number, each, agents.is_in_use(number)) for number, each in agents.items()]
        summaries = await in_request_thread(lambda: [version.summaries for _, version, _ in found])
        return [
            AgentVersionStatus(number, each, version.updated_seconds, number == current, in_use)
            for (number, version, in_use), each in zip(found, summaries, strict=True)
        ]

    def parameters(self, number: int | None, worker_index: int) -> tuple[int, Mapping[str, np.ndarray]]:
        """Return the number of a version, and the parameters of a worker's agent by name; raises as `agent`."""
        number, agent = self._held(number, worker_index)
        return number, parameters_of(agent)

    def agent(self, number: int | None, worker_index: int, policy: str) -> tuple[int, PolicySpec]:
        """Return the number of a version, and a worker's agent.

        Args:
            number: number of the version; None for the current one.
            worker_index: index of the worker.
            policy: name of the policy where there are several; empty for an agent.

        Raises:
            NotReadyError: there is no agent, or the version is not kept.
            InvalidValueError: there is no worker of that index, or no policy of that name.
        """
        number, agent = self._held(number, worker_index)
        if isinstance(agent, PolicySet):
            if policy not in agent.policies:
                expected = f"one of the policies {listed(agent.policies)}"
                raise InvalidValueError.of("policy", expected=expected, got=repr(policy) if policy else "none")
            return number, agent.policies[policy][0].spec
        if policy:
            raise InvalidValueError.of("policy", expected="none, because there is a single agent", got=repr(policy))
        return number, agent

    def _held(self, number: int | None, worker_index: int) -> tuple[int, AgentSpec]:
        """Return the number of a version, and a worker's agent, or policies by name."""
        versions, num_workers = self._versions.agents, len(self._versions.workers)
        if not versions.number:
            raise NotReadyError("there is no agent yet: call UpdateAgent first", reason=Reason.NO_AGENT)
        number = versions.choose(number, Reason.POLICY_VERSION)
        agents = versions.get(number) or ()
        if len(agents) > 1:  # the number of workers may have changed since
            num_workers = len(agents)
        if not 0 <= worker_index < num_workers:
            expected = f"a number from 0 to {num_workers - 1}"
            raise InvalidValueError.of("worker_index", expected=expected, got=worker_index)
        return number, agents[worker_index if len(agents) > 1 else 0]
