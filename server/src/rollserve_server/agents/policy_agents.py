"""Policies by name, built for the rows of an environment with many agents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollserve_server.agents.policies import choices_of_agents
from rollserve_server.agents.specs.policies import MEMBER_VERSION

if TYPE_CHECKING:
    import numpy as np

    from rollserve_server.agents.agent import Agent
    from rollserve_server.agents.specs.kinds import PolicySpec
    from rollserve_server.agents.specs.policies import HeldPolicy, PolicySet
    from rollserve_server.errors import AgentFailedError
    from rollserve_wire.policy_map import PolicyChoice, PolicyMap

__all__ = ["BuiltPolicy", "PolicyAgents"]


@dataclass(frozen=True, eq=False)
class BuiltPolicy:
    """A version of a policy.

    Attributes:
        name: name of the policy.
        version: number of the version; 0 for the members of a population.
        agents: positions of the agents that it may act for, rising.
        num_places: K, the number of agents of all rows that it can act for at once.
        row_places: number of these agents in each row.
        agent: what acts, built for K rows.
    """

    name: str
    version: int
    agents: tuple[int, ...]
    num_places: int
    row_places: int
    agent: Agent

    def describe(self, error: AgentFailedError, agent: str) -> str:
        """Return the text of an error of the policy, with the agent for which it acted."""
        version = f", version {self.version}" if self.version else ""
        return f"policy {self.name!r}{version}, for agent {agent!r}: {error.message}"


class PolicyAgents:
    """Versions of policies that may act in an environment, and which of them acts for which agent of an episode.

    Attributes:
        agents: names of the environment's possible agents.
        policies: the versions of policies.
        num_numbers: number of random numbers that `choose` takes for an episode, at most.
    """

    def __init__(
        self,
        policy_set: PolicySet[PolicySpec],
        agents: Sequence[str],
        max_acting: int,
        num_rows: int,
        build: Callable[[str, HeldPolicy[PolicySpec], int, int], Agent],
    ) -> None:
        """Build the policies.

        Args:
            policy_set: the policies, which have been checked to fit the agents.
            agents: names of the environment's possible agents.
            max_acting: largest number of agents that act at once in a row.
            num_rows: number of rows.
            build: returns an agent for a policy, given its name and version, the position of an agent with its spaces,
                and the number of places.
        """
        self.agents = tuple(agents)
        self.num_numbers = max(len(policy_map.rules) for policy_map in policy_set.policy_maps)
        held: dict[int, HeldPolicy[PolicySpec]] = {}
        names: dict[int, str] = {}
        acts_for: dict[int, dict[int, None]] = {}
        for policy_map in policy_set.policy_maps:
            for agent, rule in enumerate(choices_of_agents(policy_map, agents)):
                for choice in policy_map.rules[rule].acting_choices:
                    found = policy_set.find(choice)
                    held[id(found)], names[id(found)] = found, choice.policy
                    acts_for.setdefault(id(found), {})[agent] = None
        self.policies: list[BuiltPolicy] = []
        for identity, each in held.items():
            its = tuple(sorted(acts_for[identity]))
            row_places = min(len(its), max_acting)
            num_places = num_rows * row_places
            built = build(names[identity], each, its[0], num_places)
            version = 0 if each.version == MEMBER_VERSION else each.version
            self.policies.append(BuiltPolicy(names[identity], version, its, num_places, row_places, built))
        positions = {identity: position for position, identity in enumerate(held)}
        self._lineups = [
            _Lineup(policy_map, agents, lambda choice: positions[id(policy_set.find(choice))])
            for policy_map in policy_set.policy_maps
        ]

    @property
    def names(self) -> list[tuple[str, int]]:
        """Name and version of each of the policies."""
        return [(policy.name, policy.version) for policy in self.policies]

    def choose(self, index: int, numbers: np.ndarray) -> list[int]:
        """Return the position of the policy of each agent in an episode.

        Args:
            index: index of the episode.
            numbers: (num_numbers,), random numbers of the episode from 0 up to 1.
        """
        return self._lineups[index % len(self._lineups)].choose(numbers)


class _Lineup:
    """A map, with the position of the policy behind each of its choices."""

    def __init__(self, policy_map: PolicyMap, agents: Sequence[str], find: Callable[[PolicyChoice], int]) -> None:
        self._rules = choices_of_agents(policy_map, agents)
        # The rules that have agents.
        self._used = {rule: policy_map.rules[rule] for rule in self._rules}
        self._positions = {choice: find(choice) for rule in self._used.values() for choice in rule.acting_choices}

    def choose(self, numbers: np.ndarray) -> list[int]:
        """Return the position of the policy of each agent, given a random number for each rule."""
        chosen = {rule: self._positions[its.choose(float(numbers[rule]))] for rule, its in self._used.items()}
        return [chosen[rule] for rule in self._rules]
