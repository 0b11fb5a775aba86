"""Orders for the episodes of a population, and reports about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.agents import DEFAULT_EXPLORATION, Exploration
from rollserve_server.sampling.protocol.orders import EpisodeFailure, Outcome, WorkOrder

if TYPE_CHECKING:
    from rollserve_server.errors import DomainError

__all__ = ["NO_MEMBERS", "Members", "Population", "PopulationOrder", "PopulationReport"]

Members = Mapping[str, Mapping[str, np.ndarray]]
"""Parameters (K, *shape) of K members by policy and name; the policy of an environment with one agent is ''."""

NO_MEMBERS: Members = MappingProxyType({})
"""Parameters of no population."""


@dataclass(frozen=True)
class Population:
    """The episodes of a population, which are a function of these values (except `work_id`) and of the parameters.

    Work units are numbered through: episode j of member k is unit k * `num_episodes` + j.

    Attributes:
        work_id: the pool's number for the work, never used twice, for any kind of work.
        root_seed: root seed of the sequence, from 0 to 2**64 - 1.
        policy_version: version of the agent that the members differ from in their parameters only.
        env_version: version of the environment.
        num_members: number of members.
        num_episodes: number of episodes of each member.
        first_index: index of the first episode of the first member.
        shares_episodes: whether the episodes of all members have the same indices.
        max_episode_length: number of steps after which an episode is truncated; None for the environment's own limit.
        exploration: how freely the members act.
    """

    work_id: int
    root_seed: int
    policy_version: int
    env_version: int
    num_members: int
    num_episodes: int
    first_index: int
    shares_episodes: bool
    max_episode_length: int | None = None
    exploration: Exploration = DEFAULT_EXPLORATION

    @property
    def num_units(self) -> int:
        """Number of episodes of all members."""
        return self.num_members * self.num_episodes

    def member_of(self, unit: int) -> int:
        """Return the member that runs a unit."""
        return unit // self.num_episodes

    def index_of(self, unit: int) -> int:
        """Return the index of a unit's episode in the sequence of the root seed."""
        return self.first_index + (unit % self.num_episodes if self.shares_episodes else unit)


@dataclass(frozen=True)
class PopulationOrder(WorkOrder["PopulationReport"]):
    """A slice of work on a population that the worker has.

    Attributes:
        work_id: number of the work.
        begin: units to begin when rows are free, the lowest first.
        seconds: upper bound for the time to step environments. Every row with a unit makes at least one step.
    """

    work_id: int
    begin: tuple[range, ...]
    seconds: float


@dataclass(frozen=True)
class PopulationReport:
    """Answer to a `PopulationOrder`.

    Attributes:
        outcomes: outcomes of the units that ended; each `episode_index` is a unit.
        num_simulated_steps: number of steps that rows made.
        sampling_seconds: time spent on the order.
        environment_seconds, policy_seconds: as in `Report`.
        failure: error after which the pool has to close the work; None if there was none.
        env_failures: errors of environments; their `indices` are units.
        num_lost_steps: number of steps that were thrown away because environments failed.
    """

    outcomes: tuple[Outcome, ...]
    num_simulated_steps: int
    sampling_seconds: float
    failure: DomainError | None = None
    env_failures: tuple[EpisodeFailure, ...] = ()
    num_lost_steps: int = 0
    environment_seconds: float = 0.0
    policy_seconds: float = 0.0
