"""Returns of each agent in the episodes of an evaluation, and the policies that acted for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from rollserve.summaries import Summary

if TYPE_CHECKING:
    from rollserve.v1 import evaluation_pb2

__all__ = ["AgentReturns", "PolicyVersion", "agent_returns_from_proto", "means_over_agents"]

_Key = TypeVar("_Key", str, "PolicyVersion")


class PolicyVersion(NamedTuple):
    """A version of a policy, printed as `name@version`.

    Attributes:
        policy: name of the policy.
        version: number of the update of the agent that made it.
    """

    policy: str
    version: int

    def __str__(self) -> str:
        return f"{self.policy}@{self.version}"


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
        returns: (N, P) float64, sum of the rewards of each agent; NaN for an agent that made no step.
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
        return self._summaries({agent: self.returns[:, [position]] for position, agent in enumerate(self.agents)})

    def by_policy(self) -> dict[PolicyVersion, Summary]:
        """Return the summary of each policy's returns.

        Of an episode in which a policy acts for several agents, the mean of their returns counts: they depend on each
        other.
        """
        return self._summaries(
            {
                policy: np.where(self.policy_positions == position, self.returns, np.nan)
                for position, policy in enumerate(self.policies)
            }
        )

    @staticmethod
    def _summaries(columns: dict[_Key, np.ndarray]) -> dict[_Key, Summary]:
        """Return the summary of each column's means over agents, without the ones that have no episode."""
        means = {key: means_over_agents(values) for key, values in columns.items()}
        return {
            key: Summary.of(values[~np.isnan(values)]) for key, values in means.items() if not np.isnan(values).all()
        }


def means_over_agents(returns: np.ndarray) -> np.ndarray:
    """Return the mean of the agents that have a return in each episode, (N,), given (N, P); NaN for none."""
    counts = np.count_nonzero(~np.isnan(returns), axis=1)
    means: np.ndarray = np.where(counts > 0, np.nansum(returns, axis=1) / np.maximum(counts, 1), np.nan)
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
