"""A worker's part in a population: rows that run episodes of its members, of which only what they came to is kept."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.errors import DomainError, EnvFailedError, EpisodeFailedError
from rollserve_server.sampling.collect.acting import act
from rollserve_server.sampling.collect.attempts import Attempts
from rollserve_server.sampling.collect.noise import RowNoise
from rollserve_server.sampling.collect.rows import located
from rollserve_server.sampling.protocol.episodes import Outcome
from rollserve_server.sampling.protocol.populations import Population, PopulationOrder, PopulationReport

if TYPE_CHECKING:
    from rollserve_server.agents import PopulationAgent
    from rollserve_server.envs import RowEnvs

__all__ = ["PopulationWork"]


class PopulationWork:
    """Runs units of a population, each in any row.

    Attributes:
        spec: which population.
        envs: the environments, which it has for itself.
    """

    def __init__(self, population: Population, envs: RowEnvs, agent: PopulationAgent, num_retries: int = 0) -> None:
        """Takes also how often a unit runs again whose environment raised an error."""
        self._attempts = Attempts(num_retries)
        self.spec = population
        self.envs = envs
        self._agent = agent
        self._noise = RowNoise(envs.num_rows, agent)
        self._states = [np.repeat(state.initial[np.newaxis], envs.num_rows, axis=0) for state in agent.states]
        self._waiting: list[int] = []
        self._free = list(reversed(range(envs.num_rows)))
        # Of each row that has one: its unit, and the seed of that episode's environment.
        self._running: dict[int, tuple[int, int]] = {}
        self._total_rewards = np.zeros(envs.num_rows)
        self._lengths = np.zeros(envs.num_rows, np.int64)
        self._num_simulated_steps = 0

    def episode_of(self, row: int) -> int | None:
        """The index of the episode that a row runs."""
        running = self._running.get(row)
        return None if running is None else self.spec.index_of(running[0])

    def run(self, order: PopulationOrder, is_stopped: Callable[[], bool]) -> PopulationReport:
        """Steps until the time is over, nothing runs, or rows get idle because no unit waits any more.

        Args:
            order: what to do.
            is_stopped: asked before each step; nothing more is done once it says so.
        """
        self._enqueue(order.begin)
        began, steps_before = time.perf_counter(), self._num_simulated_steps
        had_waiting = bool(self._waiting)
        outcomes: list[Outcome] = []
        failure = None
        try:
            num_failures = self._attempts.num_failures
            while not is_stopped():
                ended: list[Outcome] = []
                if self._begin():
                    ended = self._step()
                elif self._attempts.num_failures == num_failures:
                    break
                num_failures = self._attempts.num_failures
                outcomes += ended
                ran_dry = ended and had_waiting and not self._waiting
                if ran_dry or time.perf_counter() - began >= order.seconds:
                    break
        except DomainError as error:
            failure = error
        num_steps, seconds = self._num_simulated_steps - steps_before, time.perf_counter() - began
        return PopulationReport(tuple(outcomes), num_steps, seconds, failure, *self._attempts.take())

    def _enqueue(self, ranges: Iterable[range]) -> None:
        for units in ranges:
            for unit in units:
                heapq.heappush(self._waiting, unit)

    def _begin(self) -> bool:
        """Begins waiting units in rows that are free, up to one whose environment fails.

        Returns whether there is anything to be stepped.
        """
        while self._free and self._waiting and self._can_begin(self._waiting[0]):
            row, unit = self._free.pop(), heapq.heappop(self._waiting)
            self._agent.assign(row, self.spec.member_of(unit))
            env_seed = self._noise.begin(row, self.spec.root_seed, self.spec.index_of(unit))
            self._running[row] = unit, env_seed
            self._total_rewards[row] = self._lengths[row] = 0
            for state, kind in zip(self._states, self._agent.states, strict=True):
                state[row] = kind.initial
            try:
                self.envs.reset(row, env_seed)
            except EnvFailedError as error:
                self._retry(error)
                break
        return bool(self._running)

    def _can_begin(self, unit: int) -> bool:
        """Whether the member may act beside those that do."""
        if self._agent.side_by_side or not self._running:
            return True
        other, _ = next(iter(self._running.values()))
        return self.spec.member_of(unit) == self.spec.member_of(other)

    def _step(self) -> list[Outcome]:
        """Steps all rows that have a unit; returns what those came to that ended."""
        envs = self.envs
        rows = sorted(self._running)
        try:
            actions, _ = act(self._agent, envs.observations, self._noise.next(), self._states, lambda: rows)
        except EpisodeFailedError as error:
            raise self._located(error) from error
        envs.step(rows, actions)
        self._num_simulated_steps += len(rows) - len(envs.failures)
        for failure in envs.failures:
            rows.remove(failure.row)
            self._retry(failure)
        self._total_rewards += envs.rewards
        self._lengths += 1
        if self.spec.max_episode_length is not None:
            envs.truncated |= self._lengths == self.spec.max_episode_length
        ended = envs.terminated | envs.truncated
        return [self._finish(row) for row in rows if ended[row]] if ended.any() else []

    def _finish(self, row: int) -> Outcome:
        unit, _ = self._running.pop(row)
        self._attempts.succeed(unit)
        self._free.append(row)
        envs = self.envs
        ends = bool(envs.terminated[row]), bool(envs.truncated[row])
        envs.terminated[row] = envs.truncated[row] = False
        return Outcome(unit, float(self._total_rewards[row]), int(self._lengths[row]), *ends)

    def _retry(self, error: EpisodeFailedError) -> None:
        """Has the unit of a row whose environment failed wait for one again, unless it has failed too often."""
        located_error = self._located(error)
        unit, _ = self._running.pop(error.row)
        self._free.append(error.row)
        if self._attempts.fail(unit, [unit], located_error, int(self._lengths[error.row])):
            heapq.heappush(self._waiting, unit)

    def _located(self, error: EpisodeFailedError) -> EpisodeFailedError:
        unit, env_seed = self._running[error.row]
        where = located(error, self.spec.index_of(unit), env_seed, int(self._lengths[error.row]))
        return type(error)(f"member {self.spec.member_of(unit)}, {where.text}", error.row, unit)
