"""What is asked of an evaluation, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollserve_server.agents import AS_THE_AGENT_SAYS, Exploration

if TYPE_CHECKING:
    import numpy as np

    from rollserve import EnvSpec, Reproducibility
    from rollserve_server.pool.accounts.account import Account
    from rollserve_server.sampling import ColumnFormat, Outcome

__all__ = [
    "EpisodeDelivery",
    "Evaluation",
    "EvaluationOptions",
    "EvaluationRequest",
    "PopulationRequest",
]


@dataclass(frozen=True)
class EvaluationOptions:
    """What all evaluations can be asked for.

    Attributes:
        policy_version: which policy acts; None for the current one.
        env_version: which of the pool's environments it acts in; None for the current one.
        env: another environment to act in instead; None for the pool's own.
        seed: the root seed of the episodes; None for that of all evaluations.
        first_index: the index of the first episode.
        max_episode_length: how many steps an episode may have; None for what the pool allows.
        exploration: how freely the agent acts.
        run: the run of the pool that versions are of; None for this one.
        expected_policy_version: fail if the current one is another; None for any.
        min_policy_version: fail if the one that would act is older; None for any.
        skip_failed: whether it goes on without episodes whose environments fail again and again.
    """

    policy_version: int | None = None
    env_version: int | None = None
    env: EnvSpec | None = None
    seed: int | None = None
    first_index: int = 0
    max_episode_length: int | None = None
    exploration: Exploration = AS_THE_AGENT_SAYS
    run: str | None = None
    expected_policy_version: int | None = None
    min_policy_version: int | None = None
    skip_failed: bool = False


@dataclass(frozen=True)
class EpisodeDelivery:
    """How episodes are to be delivered: the size that no message may exceed, and how columns may be written."""

    max_message_bytes: int
    columns: ColumnFormat


@dataclass(frozen=True)
class EvaluationRequest:
    """Asks for an evaluation.

    Attributes:
        num_episodes: how many.
        options: see there.
        delivery: how the episodes are to be delivered; None for not at all.
    """

    num_episodes: int
    options: EvaluationOptions = field(default_factory=EvaluationOptions)
    delivery: EpisodeDelivery | None = None


@dataclass(frozen=True, eq=False)
class PopulationRequest:
    """Asks for an evaluation of a population.

    Attributes:
        parameters: by name (K, *shape), those of K members.
        num_episodes: how many each of them has.
        options: see there.
        shares_episodes: whether all members have the same ones.
    """

    parameters: Mapping[str, np.ndarray]
    num_episodes: int
    options: EvaluationOptions = field(default_factory=EvaluationOptions)
    shares_episodes: bool = True


@dataclass(frozen=True)
class Evaluation:
    """What episodes came to.

    Attributes:
        outcomes: in the order of their indices, or of their units of a population.
        account: what was done, and in which of the pool's environments; 0 is one that the request brought.
        reproducibility: what of it comes again.
        num_members: of a population, how many members it has; 1 else.
    """

    outcomes: Sequence[Outcome]
    account: Account
    reproducibility: Reproducibility
    num_members: int = 1
