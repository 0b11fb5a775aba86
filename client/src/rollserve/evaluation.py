"""Results of evaluations: returns and lengths of episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollserve.account import Account, account_from_proto
from rollserve.agent_returns import AgentReturns, agent_returns_from_proto, means_over_agents
from rollserve_wire.environments import Reproducibility, reproducibility_from_proto
from rollserve_wire.errors import mismatch
from rollserve_wire.representations import briefly, value_html
from rollserve_wire.summaries import Summary

if TYPE_CHECKING:
    from rollserve.agent_returns import PolicyVersion
    from rollserve.episode_batch import EpisodeBatch
    from rollserve_wire.v1 import evaluation_pb2

__all__ = [
    "Evaluation",
    "PopulationEvaluation",
    "evaluation_from_proto",
    "population_evaluation_from_proto",
]


@briefly
@dataclass(frozen=True, eq=False)
class Evaluation:
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
        episodes: the episodes, if the call asked for them; a MultiAgentBatch in an environment with many agents.
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
    episodes: EpisodeBatch | None = None
    agent_returns: AgentReturns | None = None

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
    agent_returns: tuple[AgentReturns, ...] | None = None

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


def evaluation_from_proto(message: evaluation_pb2.Evaluation, episodes: EpisodeBatch | None) -> Evaluation:
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
