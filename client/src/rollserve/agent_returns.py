"""Returns of each agent in the episodes of an evaluation, and the policies that acted for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from rollserve_wire.representations import briefly
from rollserve_wire.summaries import Summary

if TYPE_CHECKING:
    from rollserve_wire.v1 import evaluation_pb2

__all__ = ["AgentReturns", "PolicyVersion", "agent_returns_from_proto", "means_over_agents"]

_Key = TypeVar("_Key", str, "PolicyVersion")


@briefly
class PolicyVersion(NamedTuple):
    """A version of a policy, printed as `name@version`.

    Attributes:
        policy: name of the policy.
        version: number of the update of the agent that made it; 0 for the members of a population.
    """

    policy: str
    version: int

    def __str__(self) -> str:
        return f"{self.policy}@{self.version}"


@briefly
@dataclass(frozen=True, eq=False)
class AgentReturns:
    """Returns of P agents in N episodes of an environment with many agents, and the K policies that acted.

    >>> result = sampler.evaluate(100)  # doctest: +SKIP
    >>> print(result.agent_returns)  # doctest: +SKIP
    player_0  0.88 ± 0.09
    player_1  -0.88 ± 0.09
    main@3    0.88 ± 0.09
    random@1  -0.88 ± 0.09

    Attributes:
        agents: names of the environment's possible agents.
        policies: the versions of policies that acted.
        returns: (N, P) float64, sum of the rewards of each agent; NaN for an agent that made no step, or whose rewards
            have a NaN, which its means keep.
        policy_positions: (N, P) int64, position among `policies` of what acted for each agent; -1 for an agent that
            made no step.
    """

    agents: tuple[str, ...]
    policies: tuple[PolicyVersion, ...]
    returns: np.ndarray
    policy_positions: np.ndarray

    def __len__(self) -> int:
        return len(self.returns)

    def __str__(self) -> str:
        rows = {**self.by_agent(), **{str(policy): each for policy, each in self.by_policy().items()}}
        width = max(map(len, rows))
        return "\n".join(f"{name:{width}}  {summary}" for name, summary in rows.items())

    def by_agent(self) -> dict[str, Summary]:
        """Return the summary of each agent's returns, over the episodes in which it made a step."""
        acted = self.policy_positions >= 0
        return self._summaries(
            {agent: acted & (np.arange(len(self.agents)) == column) for column, agent in enumerate(self.agents)}
        )

    def by_policy(self) -> dict[PolicyVersion, Summary]:
        """Return the summary of each policy's returns.

        Of an episode in which a policy acts for several agents, the mean of their returns counts: they depend on each
        other.
        """
        return self._summaries(
            {policy: self.policy_positions == position for position, policy in enumerate(self.policies)}
        )

    def _summaries(self, masks: dict[_Key, np.ndarray]) -> dict[_Key, Summary]:
        """Return for each mask, (N, P), the summary of the episodes' means over these agents; nothing without any."""
        return {
            key: Summary.of(means_over_agents(self.returns, mask)[mask.any(axis=1)])
            for key, mask in masks.items()
            if mask.any()
        }


def means_over_agents(returns: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the mean over some agents in each episode, (N,), given (N, P) returns and a mask; NaN for none."""
    counts = np.count_nonzero(mask, axis=1)
    sums = np.where(mask, returns, 0.0).sum(axis=1)
    means: np.ndarray = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return means


def agent_returns_from_proto(message: evaluation_pb2.AgentReturns) -> AgentReturns:
    """Return the returns that a message describes.

    Raises:
        ValueError: a number of returns or positions other than episodes times agents, or an unknown position.
    """
    shape = -1, len(message.agents)
    returns = np.array(message.returns, np.float64).reshape(shape)
    positions = np.array(message.policy_positions, np.int64).reshape(returns.shape)
    policies = tuple(PolicyVersion(each.policy, each.version) for each in message.policies)
    if positions.size and not -1 <= positions.min() <= positions.max() < len(policies):
        raise ValueError(f"policy_positions: expected positions among {len(policies)} policies, got {positions.max()}")
    return AgentReturns(tuple(message.agents), policies, returns, positions)
