"""What episodes came to that were run to see how good an agent is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollserve.account import Account, account_from_proto
from rollserve.reproducibility import Reproducibility, reproducibility_from_proto

if TYPE_CHECKING:
    from rollserve.episode_batch import EpisodeBatch
    from rollserve.v1 import evaluation_pb2

__all__ = [
    "Evaluation",
    "PopulationEvaluation",
    "Summary",
    "evaluation_from_proto",
    "population_evaluation_from_proto",
]


@dataclass(frozen=True)
class Summary:
    """What N numbers are like.

    Attributes:
        mean: their mean.
        std: their standard deviation, as an estimate (with N - 1); None for a single one.
        confidence_interval: within which the mean of all that could have been drawn is with a probability of 95 %, by
            Student's t distribution: as good as the numbers are normal or many. None for a single one.
    """

    mean: float
    std: float | None
    confidence_interval: tuple[float, float] | None

    def __str__(self) -> str:
        if self.confidence_interval is None:
            return f"{self.mean:.6g}"
        low, high = self.confidence_interval
        half = (high - low) / 2
        # Two digits of what is not sure, and as many places of the mean.
        num_places = max(0, 1 - math.floor(math.log10(half))) if 0 < half < math.inf else 2
        return f"{self.mean:.{num_places}f} ± {half:.{num_places}f}"


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What N episodes of an agent came to, in the order of their indices.

    Attributes:
        returns: (N,) float64, the sums of their rewards, added up step by step.
        lengths: (N,) int64, in steps.
        terminated: (N,) bool, whether the environment ended them.
        truncated: (N,) bool, whether a limit did.
        return_summary: of the returns.
        length_summary: of the lengths.
        policy_version: the version that acted.
        env_version: the version of the sampler's environment; None if the call brought one.
        seed: the root seed of the episodes.
        first_episode_index: the index of the first one.
        reproducibility: what of this comes again.
        account: what was done. Episodes that did not come count as discarded.
        episodes: the episodes, if the call wanted them.
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

    def __len__(self) -> int:
        return len(self.returns)

    def __str__(self) -> str:
        of = f"{len(self)} episodes of policy version {self.policy_version}"
        return f"return {self.return_summary}, length {self.length_summary} ({of})"


@dataclass(frozen=True, eq=False)
class PopulationEvaluation:
    """What M episodes of each of K parameter sets came to.

    Attributes:
        returns: (K, M) float64, the sums of their rewards, added up step by step.
        lengths: (K, M) int64, in steps.
        num_steps: how many steps all of them have.
        policy_version: the version of the agent that the members are like.
        env_version: the version of the sampler's environment; None if the call brought one.
        seed: the root seed of the episodes.
        first_episode_index: the index of the first one of the first member.
        reproducibility: what of this comes again.
        account: what was done. All episodes count as discarded.
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

    def __len__(self) -> int:
        return len(self.returns)

    @property
    def mean_returns(self) -> np.ndarray:
        """(K,), the mean return of each member."""
        means: np.ndarray = self.returns.mean(axis=1)
        return means


def evaluation_from_proto(message: evaluation_pb2.Evaluation, episodes: EpisodeBatch | None) -> Evaluation:
    """The evaluation that the message holds."""
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
    )


def population_evaluation_from_proto(message: evaluation_pb2.PopulationEvaluation) -> PopulationEvaluation:
    """The evaluation that the message holds.

    Raises:
        ValueError: there are not as many numbers as it says.
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
    )


def _summary(message: evaluation_pb2.Summary) -> Summary:
    return Summary(
        message.mean,
        message.standard_deviation if message.HasField("standard_deviation") else None,
        (message.confidence_low, message.confidence_high) if message.HasField("confidence_low") else None,
    )
