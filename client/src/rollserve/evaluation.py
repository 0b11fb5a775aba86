"""Results of evaluations: returns and lengths of episodes, by agent and policy where there are many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from rollserve.account import Account, account_from_proto
from rollserve.multi_agent_batch import Batch
from rollserve_wire.environments import Reproducibility, reproducibility_from_proto
from rollserve_wire.errors import mismatch
from rollserve_wire.representations import briefly, value_html
from rollserve_wire.summaries import Summary

if TYPE_CHECKING:
    from rollserve_wire.v1 import evaluation_pb2


__all__ = [
    "AgentReturns",
    "Evaluation",
    "PolicyVersion",
    "PopulationEvaluation",
    "evaluation_from_proto",
    "means_over_agents",
    "population_evaluation_from_proto",
]


_Key = TypeVar("_Key", str, "PolicyVersion")


@briefly
@dataclass(frozen=True, eq=False)
class Evaluation(Generic[Batch]):
    """Result of evaluating an agent on N episodes, in the order of their indices.

    >>> result = sampler.evaluate(100, deterministic=True)  # doctest: +SKIP
    >>> print(result)  # doctest: +SKIP
    return 487.2 ± 4.1, length 487.2 ± 4.1 (100 episodes of policy version 12)

    Attributes:
        returns: (N,) float64, sums of the episodes' rewards, added step by step; of many agents, of all of them.
        lengths: (N,) int64, number of steps of the episodes; of many agents, of environment steps.
        terminated: (N,) bool, whether the environment ended the episode.
        truncated: (N,) bool, whether a limit ended the episode.
        return_summary: summary of the returns.
        length_summary: summary of the lengths.
        policy_version: version that acted.
        env_version: version of the sampler's environment; None if the call brought its own.
        seed: root seed of the episodes.
        first_episode_index: index of the first episode.
        reproducibility: which unit of work the same seed gives again.
        account: account of the call. Episodes that are not returned count as discarded.
        episodes: the episodes, if the call asked for them; a MultiAgentBatch from `sampler.multi_agent`.
        agent_returns: what each agent got, in an environment with many agents; None in others.
    """

    returns: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    return_summary: Summary
    length_summary: Summary
    policy_version: int
    env_version: int | None
    seed: int
    first_episode_index: int
    reproducibility: Reproducibility
    account: Account
    episodes: Batch | Any = None
    agent_returns: AgentReturns | Any = None

    def _repr_html_(self) -> str:
        return value_html(self)

    def __len__(self) -> int:
        return len(self.returns)

    def __str__(self) -> str:
        episodes = f"{len(self)} episodes of policy version {self.policy_version}"
        total = f"return {self.return_summary}, length {self.length_summary} ({episodes})"
        return total if self.agent_returns is None else f"{total}\n{self.agent_returns}"


@briefly
@dataclass(frozen=True, eq=False)
class PopulationEvaluation:
    """Result of evaluating K members of a population on M episodes each.

    Attributes:
        returns: (K, M) float64, sums of the episodes' rewards, added step by step; of many agents, of all of them.
        lengths: (K, M) int64, number of steps of the episodes; of many agents, of environment steps.
        num_steps: number of steps of all episodes.
        policy_version: version of the agent whose structure and other parameters the members share.
        env_version: version of the sampler's environment; None if the call brought its own.
        seed: root seed of the episodes.
        first_episode_index: index of the first episode of the first member.
        reproducibility: which unit of work the same seed gives again.
        account: account of the call. All episodes count as discarded.
        agent_returns: what each agent got, for each member, in an environment with many agents; None in others. The
            members' policies have version 0.
    """

    returns: np.ndarray
    lengths: np.ndarray
    num_steps: int
    policy_version: int
    env_version: int | None
    seed: int
    first_episode_index: int
    reproducibility: Reproducibility
    account: Account
    agent_returns: tuple[AgentReturns, ...] | Any = None

    def __len__(self) -> int:
        return len(self.returns)

    def by_agent(self) -> dict[str, np.ndarray]:
        """Return the returns of each agent, (K, M) float64; NaN for an episode in which it made no step.

        Raises:
            ValueError: the environment has one agent.
        """
        members = self._members()
        return {
            agent: np.stack([each.returns[:, column] for each in members])
            for column, agent in enumerate(members[0].agents)
        }

    def by_policy(self) -> dict[PolicyVersion, np.ndarray]:
        """Return the returns of each policy, (K, M) float64; NaN for an episode in which it acted for no agent.

        Of an episode in which a policy acts for several agents, the mean of their returns counts.

        Raises:
            ValueError: the environment has one agent.
        """
        members = self._members()
        return {
            policy: np.stack([means_over_agents(each.returns, each.policy_positions == position) for each in members])
            for position, policy in enumerate(members[0].policies)
        }

    def _members(self) -> tuple[AgentReturns, ...]:
        if self.agent_returns is None:
            raise ValueError(f"agent_returns: {mismatch('an environment with many agents', 'one with one agent')}")
        return self.agent_returns

    @property
    def mean_returns(self) -> np.ndarray:
        """Mean return of each member, (K,) float64."""
        means: np.ndarray = self.returns.mean(axis=1)
        return means


def evaluation_from_proto(message: evaluation_pb2.Evaluation, episodes: Batch | None) -> Evaluation[Batch]:
    """Return the evaluation that a message describes, with the episodes that were received before, if any."""
    return Evaluation(
        returns=np.array(message.returns, np.float64),
        lengths=np.array(message.lengths, np.int64),
        terminated=np.array(message.terminated, np.bool_),
        truncated=np.array(message.truncated, np.bool_),
        return_summary=_summary(message.return_summary),
        length_summary=_summary(message.length_summary),
        policy_version=message.policy_version,
        env_version=message.environment_version or None,
        seed=message.seed,
        first_episode_index=message.first_episode_index,
        reproducibility=reproducibility_from_proto(message.reproducibility),
        account=account_from_proto(message.account),
        episodes=episodes,
        agent_returns=agent_returns_from_proto(message.agent_returns) if message.HasField("agent_returns") else None,
    )


def population_evaluation_from_proto(message: evaluation_pb2.PopulationEvaluation) -> PopulationEvaluation:
    """Return the evaluation that a message describes.

    Raises:
        ValueError: a number of returns or lengths other than members times episodes.
    """
    shape = message.member_count, message.episode_count
    return PopulationEvaluation(
        returns=np.array(message.returns, np.float64).reshape(shape),
        lengths=np.array(message.lengths, np.int64).reshape(shape),
        num_steps=message.step_count,
        policy_version=message.policy_version,
        env_version=message.environment_version or None,
        seed=message.seed,
        first_episode_index=message.first_episode_index,
        reproducibility=reproducibility_from_proto(message.reproducibility),
        account=account_from_proto(message.account),
        agent_returns=_returns_of_members(message) if message.HasField("agent_returns") else None,
    )


def _returns_of_members(message: evaluation_pb2.PopulationEvaluation) -> tuple[AgentReturns, ...]:
    """Return what each agent got, for each member."""
    agent_returns, num_members = agent_returns_from_proto(message.agent_returns), message.member_count
    if len(agent_returns) != num_members * message.episode_count:
        expected = f"returns in {num_members * message.episode_count} episodes"
        raise ValueError(f"agent_returns.returns: {mismatch(expected, f'returns in {len(agent_returns)}')}")
    parts = np.split(agent_returns.returns, num_members), np.split(agent_returns.policy_positions, num_members)
    return tuple(AgentReturns(agent_returns.agents, agent_returns.policies, *part) for part in zip(*parts, strict=True))


def _summary(message: evaluation_pb2.Summary) -> Summary:
    return Summary(
        message.mean,
        message.standard_deviation if message.HasField("standard_deviation") else None,
        (message.confidence_low, message.confidence_high) if message.HasField("confidence_low") else None,
    )


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
