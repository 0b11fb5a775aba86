"""Loops that run episodes of a population's members, and keep nothing but their outcomes."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from rollserve_server.errors import EnvFailedError, EpisodeFailedError
from rollserve_server.sampling.collect.collector import Attempts, with_episode
from rollserve_server.sampling.collect.noise import RowNoise
from rollserve_server.sampling.collect.stepping import SingleRows
from rollserve_server.sampling.protocol import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rollserve_server.agents import PopulationAgent
    from rollserve_server.envs import RowEnvs
    from rollserve_server.sampling.protocol import Population

__all__ = ["PopulationCollector", "RowPopulationCollector"]

_Failed = TypeVar("_Failed", bound=EpisodeFailedError)


class PopulationCollector(ABC):
    """Runs units of a population, each in any row.

    Attributes:
        attempts: failed attempts at units.
        num_simulated_steps: number of steps that rows have made.
    """

    def __init__(self, population: Population, num_rows: int, num_retries: int, *, side_by_side: bool) -> None:
        """Begin without units.

        Args:
            population: the population.
            num_rows: number of rows.
            num_retries: how often a unit may run again whose environment failed.
            side_by_side: whether rows may act as different members at the same time.
        """
        self.attempts = Attempts(num_retries)
        self.num_simulated_steps = 0
        self._population = population
        self._side_by_side = side_by_side
        self._waiting: list[int] = []
        self._free = list(reversed(range(num_rows)))
        # The unit of each row that has one.
        self._units: dict[int, int] = {}

    @property
    def num_waiting(self) -> int:
        """Number of units that wait for a row."""
        return len(self._waiting)

    def episode_index(self, row: int) -> int | None:
        """Return the index of the episode that a row runs; None if it has none."""
        return self._population.index_of(self._units[row]) if row in self._units else None

    def enqueue(self, ranges: Iterable[range]) -> None:
        """Add units, which begin when rows are free, the lowest first."""
        for units in ranges:
            for unit in units:
                heapq.heappush(self._waiting, unit)

    def begin(self) -> bool:
        """Begin waiting units in free rows, up to one whose environment fails; return whether rows have units."""
        while self._free and self._waiting and self._can_begin(self._waiting[0]):
            row, unit = self._free.pop(), heapq.heappop(self._waiting)
            self._units[row] = unit
            try:
                self._begin_unit(row, self._population.member_of(unit), self._population.index_of(unit))
            except EnvFailedError as error:
                self._retry(error, 0)
                break
        return bool(self._units)

    @abstractmethod
    def step(self) -> list[Outcome]:
        """Step all rows that have a unit, and return the outcomes of units that ended.

        Raises:
            AgentFailedError: the agent failed.
        """

    @abstractmethod
    def _begin_unit(self, row: int, member: int, index: int) -> None:
        """Begin an episode of a member in a row; raises EnvFailedError, with the episode, if its environment fails."""

    def _can_begin(self, unit: int) -> bool:
        """Return whether the unit's member may act beside the members that act now."""
        if self._side_by_side or not self._units:
            return True
        other = next(iter(self._units.values()))
        return self._population.member_of(unit) == self._population.member_of(other)

    def _end(self, row: int) -> int:
        """Free the row of a unit that has ended, and return the unit."""
        unit = self._units.pop(row)
        self.attempts.succeed(unit)
        self._free.append(row)
        return unit

    def _retry(self, error: EpisodeFailedError, num_lost_steps: int) -> None:
        """Free the row of a failed unit, which waits for a row again unless it has failed too often.

        Args:
            error: the error, with the episode.
            num_lost_steps: number of the episode's steps.
        """
        located = self._with_member(error)
        unit = self._units.pop(error.row)
        self._free.append(error.row)
        if self.attempts.fail(unit, [unit], located, num_lost_steps):
            heapq.heappush(self._waiting, unit)

    def _with_member(self, error: _Failed) -> _Failed:
        """Return an error that has the episode with the member and the unit, too."""
        unit = self._units[error.row]
        return type(error)(f"member {self._population.member_of(unit)}, {error.text}", error.row, unit)


class RowPopulationCollector(PopulationCollector):
    """Runs units in rows that are stepped one by one."""

    def __init__(self, population: Population, envs: RowEnvs, agent: PopulationAgent, num_retries: int) -> None:
        super().__init__(population, envs.num_rows, num_retries, side_by_side=agent.side_by_side)
        self._envs = envs
        self._agent = agent
        self._rows = SingleRows(envs)
        self._rows.set_agent(agent)
        self._noise = RowNoise(envs.num_rows, agent)
        # For each row that has a unit, the seed of the environment's reset.
        self._env_seeds: dict[int, int] = {}
        self._lengths = np.zeros(envs.num_rows, np.int64)

    def step(self) -> list[Outcome]:
        """Step all rows that have a unit, and return the outcomes of units that ended.

        Raises:
            AgentFailedError: the agent failed.
        """
        envs = self._envs
        rows = sorted(self._units)
        actions = self._rows.act(self._noise.next(), lambda: rows, self._agent_failed)
        self._rows.record(envs.step(rows, actions))
        self.num_simulated_steps += len(rows) - len(envs.failures)
        for failure in envs.failures:
            rows.remove(failure.row)
            self._retry(self._with_episode(failure), int(self._lengths[failure.row]))
        self._lengths += 1
        if self._population.max_episode_length is not None:
            envs.truncated |= self._lengths == self._population.max_episode_length
        ended = envs.terminated | envs.truncated
        return [self._finish(row) for row in rows if ended[row]] if ended.any() else []

    def _begin_unit(self, row: int, member: int, index: int) -> None:
        self._agent.assign(row, member)
        self._env_seeds[row] = self._noise.begin(row, self._population.root_seed, index)
        self._lengths[row] = 0
        self._rows.begin(row)
        try:
            info = self._envs.reset(row, self._env_seeds[row])
        except EnvFailedError as error:
            raise self._with_episode(error) from error
        self._rows.read_mask(row, info)

    def _finish(self, row: int) -> Outcome:
        envs = self._envs
        ends = bool(envs.terminated[row]), bool(envs.truncated[row])
        envs.terminated[row] = envs.truncated[row] = False
        return Outcome(self._end(row), float(self._rows.total_rewards[row]), int(self._lengths[row]), *ends)

    def _agent_failed(self, error: EpisodeFailedError) -> EpisodeFailedError:
        return self._with_member(self._with_episode(error))

    def _with_episode(self, error: _Failed) -> _Failed:
        row = error.row
        index = self._population.index_of(self._units[row])
        return with_episode(error, index, self._env_seeds[row], int(self._lengths[row]))
