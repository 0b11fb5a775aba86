"""The loop that runs episodes of a population's members in environments with many agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve_server.errors import AgentFailedError
from rollserve_server.sampling.collect.agent_outcomes import outcomes_of_agents
from rollserve_server.sampling.collect.many_rows import ManyRows
from rollserve_server.sampling.collect.populations import PopulationCollector
from rollserve_server.sampling.protocol.orders import Outcome

if TYPE_CHECKING:
    from rollserve_server.agents import PolicyAgents
    from rollserve_server.envs import ManyEnvs
    from rollserve_server.sampling.protocol.populations import Population
    from rollserve_server.sampling.record.lives import ManyEpisode

__all__ = ["ManyPopulationCollector"]


class ManyPopulationCollector(PopulationCollector):
    """Runs units in rows with many agents; some of the policies act as the member of a row's unit."""

    def __init__(self, population: Population, envs: ManyEnvs, agents: PolicyAgents, num_retries: int) -> None:
        self._rows = ManyRows(population.root_seed, envs, agents, population.max_episode_length)
        self._agents = agents
        may_mix = all(policy.may_mix_members for policy in self._rows.policies)
        super().__init__(population, envs.num_rows, num_retries, side_by_side=may_mix)

    def step(self) -> list[Outcome]:
        """Step all rows that have a unit, and return the outcomes of units that ended.

        Raises:
            AgentFailedError: a policy failed.
        """
        try:
            stepped = self._rows.step()
        except AgentFailedError as error:
            raise self._with_member(error) from error
        self.num_simulated_steps += stepped.num_steps
        for failure in stepped.failures:
            self._retry(failure, self._rows.forget(failure.row))
        return [self._finish(episode) for episode in stepped.episodes]

    def _begin_unit(self, row: int, member: int, index: int) -> None:
        for policy in self._rows.policies:
            policy.assign(row, member)
        self._rows.begin(row, index)

    def _finish(self, episode: ManyEpisode) -> Outcome:
        del self._rows.running[episode.row]
        unit = self._end(episode.row)
        ends = episode.terminated, episode.truncated
        return Outcome(unit, episode.total_reward, episode.length, *ends, outcomes_of_agents(self._agents, episode))
