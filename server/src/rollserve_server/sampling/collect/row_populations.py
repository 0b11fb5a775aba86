"""The loop that runs episodes of a population's members in environments with one agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from rollserve_server.errors import EnvFailedError, EpisodeFailedError
from rollserve_server.sampling.collect.acting import act
from rollserve_server.sampling.collect.attempts import with_episode
from rollserve_server.sampling.collect.inputs import mask_input
from rollserve_server.sampling.collect.noise import RowNoise
from rollserve_server.sampling.collect.populations import PopulationCollector
from rollserve_server.sampling.collect.recurrent_states import RecurrentStates
from rollserve_server.sampling.protocol.orders import Outcome

if TYPE_CHECKING:
    from rollserve_server.agents import PopulationAgent
    from rollserve_server.envs import RowEnvs
    from rollserve_server.sampling.protocol.populations import Population

__all__ = ["RowPopulationCollector"]

_Failed = TypeVar("_Failed", bound=EpisodeFailedError)


class RowPopulationCollector(PopulationCollector):
    """Runs units in rows that are stepped one by one."""

    def __init__(self, population: Population, envs: RowEnvs, agent: PopulationAgent, num_retries: int) -> None:
        super().__init__(population, envs.num_rows, num_retries, side_by_side=agent.side_by_side)
        self._envs = envs
        self._agent = agent
        self._noise = RowNoise(envs.num_rows, agent)
        self._recurrent_states = RecurrentStates(envs.num_rows, agent)
        self._mask = mask_input(agent, envs.num_rows)
        # For each row that has a unit, the seed of the environment's reset.
        self._env_seeds: dict[int, int] = {}
        self._total_rewards = np.zeros(envs.num_rows)
        self._lengths = np.zeros(envs.num_rows, np.int64)

    def step(self) -> list[Outcome]:
        """Step all rows that have a unit, and return the outcomes of units that ended.

        Raises:
            AgentFailedError: the agent failed.
        """
        envs = self._envs
        rows = sorted(self._units)
        noise, states = self._noise.next(), self._recurrent_states.columns
        actions, _ = act(self._agent, self._mask, envs.observations, noise, states, lambda: rows, self._agent_failed)
        infos = envs.step(rows, actions)
        if self._mask is not None:
            self._mask.read_rows(infos)
        self.num_simulated_steps += len(rows) - len(envs.failures)
        for failure in envs.failures:
            rows.remove(failure.row)
            self._retry(self._with_episode(failure), int(self._lengths[failure.row]))
        self._total_rewards += envs.raw_rewards
        if states:
            self._recurrent_states.take_rewards(envs.rewards)
        self._lengths += 1
        if self._population.max_episode_length is not None:
            envs.truncated |= self._lengths == self._population.max_episode_length
        ended = envs.terminated | envs.truncated
        return [self._finish(row) for row in rows if ended[row]] if ended.any() else []

    def _begin_unit(self, row: int, member: int, index: int) -> None:
        self._agent.assign(row, member)
        self._env_seeds[row] = self._noise.begin(row, self._population.root_seed, index)
        self._total_rewards[row] = self._lengths[row] = 0
        self._recurrent_states.begin(row)
        try:
            info = self._envs.reset(row, self._env_seeds[row])
        except EnvFailedError as error:
            raise self._with_episode(error) from error
        if self._mask is not None:
            self._mask.read_row(row, info)

    def _finish(self, row: int) -> Outcome:
        envs = self._envs
        ends = bool(envs.terminated[row]), bool(envs.truncated[row])
        envs.terminated[row] = envs.truncated[row] = False
        return Outcome(self._end(row), float(self._total_rewards[row]), int(self._lengths[row]), *ends)

    def _agent_failed(self, error: EpisodeFailedError) -> EpisodeFailedError:
        return self._with_member(self._with_episode(error))

    def _with_episode(self, error: _Failed) -> _Failed:
        row = error.row
        index = self._population.index_of(self._units[row])
        return with_episode(error, index, self._env_seeds[row], int(self._lengths[row]))
