"""The loop that runs episodes of a population's members, and keeps nothing but their outcomes."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.errors import EnvFailedError, EpisodeFailedError
from rollserve_server.sampling.collect.acting import act
from rollserve_server.sampling.collect.attempts import Attempts, with_episode
from rollserve_server.sampling.collect.inputs import mask_input
from rollserve_server.sampling.collect.noise import RowNoise
from rollserve_server.sampling.collect.recurrent_states import RecurrentStates
from rollserve_server.sampling.protocol.orders import Outcome

if TYPE_CHECKING:
    from rollserve_server.agents import PopulationAgent
    from rollserve_server.envs import RowEnvs
    from rollserve_server.sampling.protocol.populations import Population

__all__ = ["PopulationCollector"]


class PopulationCollector:
    """Runs units of a population, each in any row.

    Attributes:
        attempts: failed attempts at units.
        num_simulated_steps: number of steps that rows have made.
    """

    def __init__(self, population: Population, envs: RowEnvs, agent: PopulationAgent, num_retries: int) -> None:
        self.attempts = Attempts(num_retries)
        self.num_simulated_steps = 0
        self._population = population
        self._envs = envs
        self._agent = agent
        self._noise = RowNoise(envs.num_rows, agent)
        self._recurrent_states = RecurrentStates(envs.num_rows, agent)
        self._mask = mask_input(agent, envs.num_rows)
        self._waiting: list[int] = []
        self._free = list(reversed(range(envs.num_rows)))
        # For each row that has one: its unit, and the seed of the environment's reset.
        self._running: dict[int, tuple[int, int]] = {}
        self._total_rewards = np.zeros(envs.num_rows)
        self._lengths = np.zeros(envs.num_rows, np.int64)

    @property
    def num_waiting(self) -> int:
        """Number of units that wait for a row."""
        return len(self._waiting)

    def episode_index(self, row: int) -> int | None:
        """Return the index of the episode that a row runs; None if it has none."""
        running = self._running.get(row)
        return None if running is None else self._population.index_of(running[0])

    def enqueue(self, ranges: Iterable[range]) -> None:
        """Add units, which begin when rows are free, the lowest first."""
        for units in ranges:
            for unit in units:
                heapq.heappush(self._waiting, unit)

    def begin(self) -> bool:
        """Begin waiting units in free rows, up to one whose environment fails; return whether rows have units."""
        while self._free and self._waiting and self._can_begin(self._waiting[0]):
            row, unit = self._free.pop(), heapq.heappop(self._waiting)
            self._agent.assign(row, self._population.member_of(unit))
            env_seed = self._noise.begin(row, self._population.root_seed, self._population.index_of(unit))
            self._running[row] = unit, env_seed
            self._total_rewards[row] = self._lengths[row] = 0
            self._recurrent_states.begin(row)
            try:
                info = self._envs.reset(row, env_seed)
            except EnvFailedError as error:
                self._retry(error)
                break
            if self._mask is not None:
                self._mask.read_row(row, info)
        return bool(self._running)

    def step(self) -> list[Outcome]:
        """Step all rows that have a unit, and return the outcomes of units that ended.

        Raises:
            AgentFailedError: the agent failed.
        """
        envs = self._envs
        rows = sorted(self._running)
        noise, states = self._noise.next(), self._recurrent_states.columns
        actions, _ = act(self._agent, self._mask, envs.observations, noise, states, lambda: rows, self._with_member)
        infos = envs.step(rows, actions)
        if self._mask is not None:
            self._mask.read_rows(infos)
        self.num_simulated_steps += len(rows) - len(envs.failures)
        for failure in envs.failures:
            rows.remove(failure.row)
            self._retry(failure)
        self._total_rewards += envs.raw_rewards
        if states:
            self._recurrent_states.take_rewards(envs.rewards)
        self._lengths += 1
        if self._population.max_episode_length is not None:
            envs.truncated |= self._lengths == self._population.max_episode_length
        ended = envs.terminated | envs.truncated
        return [self._finish(row) for row in rows if ended[row]] if ended.any() else []

    def _can_begin(self, unit: int) -> bool:
        """Return whether the unit's member may act beside the members that act now."""
        if self._agent.side_by_side or not self._running:
            return True
        other, _ = next(iter(self._running.values()))
        return self._population.member_of(unit) == self._population.member_of(other)

    def _finish(self, row: int) -> Outcome:
        unit, _ = self._running.pop(row)
        self.attempts.succeed(unit)
        self._free.append(row)
        envs = self._envs
        ends = bool(envs.terminated[row]), bool(envs.truncated[row])
        envs.terminated[row] = envs.truncated[row] = False
        return Outcome(unit, float(self._total_rewards[row]), int(self._lengths[row]), *ends)

    def _retry(self, error: EpisodeFailedError) -> None:
        """Free the row of a failed unit, which waits for a row again unless it has failed too often."""
        located = self._with_member(error)
        unit, _ = self._running.pop(error.row)
        self._free.append(error.row)
        if self.attempts.fail(unit, [unit], located, int(self._lengths[error.row])):
            heapq.heappush(self._waiting, unit)

    def _with_member(self, error: EpisodeFailedError) -> EpisodeFailedError:
        """Return the error with the member, the unit and the episode that it was raised in."""
        unit, env_seed = self._running[error.row]
        index, num_steps = self._population.index_of(unit), int(self._lengths[error.row])
        text = f"member {self._population.member_of(unit)}, {with_episode(error, index, env_seed, num_steps).text}"
        return type(error)(text, error.row, unit)
