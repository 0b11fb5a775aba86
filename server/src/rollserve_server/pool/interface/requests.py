"""Requests for calls that sample or evaluate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from rollserve_server.agents import DEFAULT_EXPLORATION
from rollserve_server.pool.interface.expectation import ANY_VERSIONS, Expectation
from rollserve_server.sampling import PLAIN

if TYPE_CHECKING:
    import numpy as np

    from rollserve_server.agents import Exploration
    from rollserve_server.pool.interface.targets import Fragments, Target
    from rollserve_server.pool.interface.updates import AgentUpdate
    from rollserve_server.sampling import ColumnFormat
    from rollserve_wire.environments import EnvSpec
    from rollserve_wire.policy_map import PolicyMap

__all__ = ["DISCARD", "EvaluationRequest", "MessageFormat", "PopulationRequest", "SampleRequest", "SamplingOptions"]


@dataclass(frozen=True)
class SamplingOptions:
    """Options of sampling: the episodes that a call samples, and its agent.

    Attributes:
        policy_version: version of the agent that acts; None for the current one.
        min_policy_version: the call fails if the version that would act is older; None for any.
        env_version: version of the environment to act in; None for the current one.
        expected: the call fails if other versions are current.
        seed: root seed of the episodes; None for an own sequence, or the seed that all evaluations share.
        first_index: index of the first episode in the sequence of the seed.
        max_episode_length: number of steps after which an episode is truncated; None for the pool's limit.
        run: name of the sampler's run that versions and seed belong to; None for the present one.
        exploration: how freely the agent acts.
        skip_failed: whether the call goes on without episodes whose environments fail in every attempt.
    """

    policy_version: int | None = None
    min_policy_version: int | None = None
    env_version: int | None = None
    expected: Expectation = ANY_VERSIONS
    seed: int | None = None
    first_index: int = 0
    max_episode_length: int | None = None
    run: str | None = None
    exploration: Exploration = DEFAULT_EXPLORATION
    skip_failed: bool = False


@dataclass(frozen=True)
class MessageFormat:
    """How episodes are written.

    Attributes:
        max_message_bytes: size that no message may exceed.
        columns: how columns may be written; None to discard what is sampled.
    """

    max_message_bytes: int
    columns: ColumnFormat | None = PLAIN

    @property
    def has_values(self) -> bool:
        """Whether values of last observations are written."""
        return self.columns is not None and self.columns.last_values

    @property
    def policies(self) -> tuple[str, ...]:
        """Names of the policies that are delivered, where there are many agents; empty for all."""
        return () if self.columns is None else self.columns.policies


DISCARD = MessageFormat(0, None)
"""For calls that deliver no episodes."""


@dataclass(frozen=True)
class SampleRequest:
    """A request for episodes, or for fragments.

    Attributes:
        target: what to deliver.
        messages: how to write it.
        options: options of sampling.
        num_workers: the call fails if there are more or fewer workers; None for any number.
        prefetch: whether workers go on after the call with what the same request would ask for next.
        agent_update: update for all workers that the call makes first, to sample with the new version.
        return_spaces: whether the beginning has the environment's spaces.
        observation_moments: whether the account has moments of the observations.
        return_discount: discount of the returns that the account has moments of; None for none.
    """

    target: Target | Fragments
    messages: MessageFormat
    options: SamplingOptions = field(default_factory=SamplingOptions)
    num_workers: int | None = None
    prefetch: bool = False
    agent_update: AgentUpdate | None = None
    return_spaces: bool = False
    observation_moments: bool = False
    return_discount: float | None = None


@dataclass(frozen=True)
class EvaluationRequest:
    """A request for returns and lengths of episodes.

    Attributes:
        num_episodes: number of episodes.
        options: options of sampling.
        env: environment to act in instead of the pool's own; None for the pool's.
        messages: how to write the episodes, if they are delivered, too; `DISCARD` if not.
        policy_maps: maps of policies that the episodes have by turns; none for the map of the agent's version.
    """

    num_episodes: int
    options: SamplingOptions = field(default_factory=SamplingOptions)
    env: EnvSpec | None = None
    messages: MessageFormat = DISCARD
    policy_maps: Sequence[PolicyMap] = ()


@dataclass(frozen=True, eq=False)
class PopulationRequest:
    """A request for returns and lengths of episodes of many parameter sets.

    Attributes:
        parameters: by name (K, *shape), the parameters of K members; none in an environment with many agents.
        num_episodes: number of episodes of each member.
        options: options of sampling.
        env: environment to act in instead of the pool's own; None for the pool's.
        shares_episodes: whether all members have the same episodes.
        policies: by policy, the same parameters; none in an environment with one agent.
        policy_maps: maps of policies that the episodes have by turns; none for the map of the agent's version.
        messages: how to write the episodes: not at all.
    """

    parameters: Mapping[str, np.ndarray]
    num_episodes: int
    options: SamplingOptions = field(default_factory=SamplingOptions)
    env: EnvSpec | None = None
    shares_episodes: bool = True
    policies: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    policy_maps: Sequence[PolicyMap] = ()
    messages: ClassVar[MessageFormat] = DISCARD
