"""Policies by name, built for the rows of an environment with many agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollserve_server.agents.policies import choices_of_agents

if TYPE_CHECKING:
    import numpy as np

    from rollserve_server.agents.agent import Agent
    from rollserve_server.agents.specs.kinds import PolicySpec
    from rollserve_server.agents.specs.policies import HeldPolicy, PolicySet
    from rollserve_server.errors import AgentFailedError

__all__ = ["BuiltPolicy", "PolicyAgents"]


@dataclass(frozen=True, eq=False)
class BuiltPolicy:
    """A version of a policy.

    Attributes:
        name: name of the policy.
        version: number of the version.
        agents: positions of the agents that it may act for, rising.
        num_places: K, the number of agents of all rows that it can act for at once.
        agent: what acts, built for K rows.
    """

    name: str
    version: int
    agents: tuple[int, ...]
    num_places: int
    agent: Agent

    def describe(self, error: AgentFailedError, agent: str) -> str:
        """Return the text of an error of the policy, with the agent for which it acted."""
        return f"policy {self.name!r}, version {self.version}, for agent {agent!r}: {error.message}"


class PolicyAgents:
    """Versions of policies that may act in an environment, and which of them acts for which agent of an episode.

    Attributes:
        agents: names of the environment's possible agents.
        policies: the versions of policies.
        num_numbers: number of random numbers that `choose` takes for an episode.
    """

    def __init__(
        self,
        policy_set: PolicySet[PolicySpec],
        agents: Sequence[str],
        max_acting: int,
        num_rows: int,
        build: Callable[[PolicySpec, int, int], Agent],
    ) -> None:
        """Build the policies.

        Args:
            policy_set: the policies, which have been checked to fit the agents.
            agents: names of the environment's possible agents.
            max_acting: largest number of agents that act at once in a row.
            num_rows: number of rows.
            build: returns an agent for a policy, given the position of an agent with its spaces and the number of
                places.
        """
        self._rules = choices_of_agents(policy_set.policy_map, agents)
        self._policy_map = policy_set.policy_map
        self.agents = tuple(agents)
        self.num_numbers = len(policy_set.policy_map.rules)
        held: dict[int, HeldPolicy[PolicySpec]] = {}
        names: dict[int, str] = {}
        acts_for: dict[int, list[int]] = {}
        # For each rule that has agents, the identity of the version that each choice names.
        self._named: dict[int, dict[object, int]] = {}
        for agent, rule in enumerate(self._rules):
            named = self._named.setdefault(rule, {})
            for choice in policy_set.policy_map.rules[rule].choices:
                found = policy_set.find(choice)
                held[id(found)], names[id(found)] = found, choice.policy
                named[choice] = id(found)
            for identity in dict.fromkeys(named.values()):
                acts_for.setdefault(identity, []).append(agent)
        self.policies: list[BuiltPolicy] = []
        self._positions: Mapping[int, int] = {identity: position for position, identity in enumerate(held)}
        for identity, each in held.items():
            its = tuple(acts_for[identity])
            num_places = num_rows * min(len(its), max_acting)
            built = build(each.spec, its[0], num_places)
            self.policies.append(BuiltPolicy(names[identity], each.version, its, num_places, built))

    @property
    def names(self) -> list[tuple[str, int]]:
        """Name and version of each of the policies."""
        return [(policy.name, policy.version) for policy in self.policies]

    def choose(self, numbers: np.ndarray) -> list[int]:
        """Return the position of the policy of each agent in an episode.

        Args:
            numbers: (num_numbers,), random numbers of the episode from 0 up to 1.
        """
        rules = self._policy_map.rules
        chosen = {rule: named[rules[rule].choose(float(numbers[rule]))] for rule, named in self._named.items()}
        return [self._positions[chosen[rule]] for rule in self._rules]
