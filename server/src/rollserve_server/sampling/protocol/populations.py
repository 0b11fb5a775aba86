"""What passes between the pool and its workers about populations: plain values that can be pickled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollserve_server.agents import DEFAULT_EXPLORATION, Exploration
from rollserve_server.sampling.protocol.episodes import EpisodeFailure, Outcome, WorkOrder

if TYPE_CHECKING:
    from rollserve_server.errors import DomainError

__all__ = ["Population", "PopulationOrder", "PopulationReport"]


@dataclass(frozen=True)
class Population:
    """What a population's episodes are a function of, beside the parameters of its members.

    Its units of work are counted through: episode j of member k is the unit k * `num_episodes` + j.

    Attributes:
        work_id: the pool's name for it; it comes only once, and no stream has the same.
        root_seed: from 0 to 2**64 - 1.
        policy_version: which agent the members are like.
        env_version: which environment they act in.
        num_members: how many members there are.
        num_episodes: how many episodes each has.
        first_index: the index of the first episode of the first member.
        shares_episodes: whether the episodes of all members have the same indices.
        max_episode_length: how many steps an episode may have, or None for what the environment allows.
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
        """All episodes of all members."""
        return self.num_members * self.num_episodes

    def member_of(self, unit: int) -> int:
        """Whose episode a unit is."""
        return unit // self.num_episodes

    def index_of(self, unit: int) -> int:
        """The index of a unit's episode in the sequence of the root seed."""
        return self.first_index + (unit % self.num_episodes if self.shares_episodes else unit)


@dataclass(frozen=True)
class PopulationOrder(WorkOrder["PopulationReport"]):
    """A slice of work for a population that the worker has.

    Attributes:
        work_id: which one.
        begin: units to begin when rows are free, the lowest first.
        seconds: how long to step environments at most; at least one step of each row that has a unit.
    """

    work_id: int
    begin: tuple[range, ...]
    seconds: float


@dataclass(frozen=True)
class PopulationReport:
    """What came of an order.

    Attributes:
        outcomes: of the units that ended; their `episode_index` is the unit.
        num_simulated_steps: steps made.
        sampling_seconds: time spent on that.
        failure: what went wrong, after which the population is to be closed.
        env_failures: errors of environments; their `indices` are units.
        num_lost_steps: steps thrown away for that.
    """

    outcomes: tuple[Outcome, ...]
    num_simulated_steps: int
    sampling_seconds: float
    failure: DomainError | None = None
    env_failures: tuple[EpisodeFailure, ...] = ()
    num_lost_steps: int = 0
