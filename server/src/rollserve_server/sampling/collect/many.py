"""The loop for environments with many agents: rows stepped one by one, and one evaluation for each policy and step."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rollserve_server.errors import AgentFailedError, EnvFailedError, EpisodeFailedError
from rollserve_server.sampling.collect.attempts import with_episode
from rollserve_server.sampling.collect.lanes import PolicyLanes
from rollserve_server.sampling.collect.rowwise import RowwiseCollector
from rollserve_server.sampling.collect.running import RunningEpisode
from rollserve_server.sampling.collect.seeding import EpisodeGenerator
from rollserve_server.sampling.collect.waiting import WaitingForAnyRow
from rollserve_server.sampling.record.columns import MAX_BUFFER_BYTES
from rollserve_server.sampling.record.infos import InfoReader
from rollserve_server.sampling.record.lives import ManyEpisode

if TYPE_CHECKING:
    from rollserve_server.agents import PolicyAgents
    from rollserve_server.envs import ManyEnvs

__all__ = ["ManyCollector"]


class ManyCollector(RowwiseCollector[ManyEpisode, RunningEpisode]):
    """Runs each episode in a row of its own, up to its end or a number of environment steps.

    Any row may run any episode, which is a function of the root seed, its index, the policies and the environment.
    """

    def __init__(
        self,
        root_seed: int,
        envs: ManyEnvs,
        agents: PolicyAgents,
        max_episode_length: int | None = None,
        num_retries: int = 0,
    ) -> None:
        super().__init__(root_seed, num_retries)
        self._max_episode_length = max_episode_length
        self._envs, self._agents = envs, agents
        self._infos = InfoReader(envs.text_info_bytes)
        buffer_bytes = MAX_BUFFER_BYTES // len(agents.policies)
        self._policies = [PolicyLanes(policy, envs, self._infos, buffer_bytes) for policy in agents.policies]
        self._waiting = WaitingForAnyRow(envs.num_rows)
        self._generator = EpisodeGenerator()
        self._names = agents.names

    def step(self) -> list[ManyEpisode]:
        """Step all rows that have an episode, and return the episodes that ended."""
        actions: dict[int, dict[int, Any]] = {row: {} for row in sorted(self._running)}
        for policy in self._policies:
            for row, agent, action in policy.act(self._agent_failed):
                actions[row][agent] = action
                self._running[row].act(agent, self._running[row].episode.length)
        finished = []
        for row, row_actions in actions.items():
            running = self._running[row]
            try:
                turns = self._envs.step(row, row_actions)
                running.see(self._envs)
                running.episode.length += 1
                self.num_simulated_steps += 1
                running.take(turns)
                is_over = all(turn.ended for turn in turns)
                if not is_over and running.episode.length == self._max_episode_length:
                    running.take(self._envs.cut(row), cut=True)
                    is_over = True
                if is_over:
                    finished.append(self._finish(row))
            except EnvFailedError as error:
                self._abandon(error)
        return finished

    def release(self, episode: ManyEpisode) -> None:
        """Forget a finished episode, whose steps are its own."""

    def _begin_episode(self, row: int, index: int) -> bool:
        env_seed = self._generator.env_seed(self._root_seed, index)
        numbers = self._generator.policy_numbers(self._root_seed, index, self._agents.num_numbers)
        running = RunningEpisode(ManyEpisode(index, env_seed, row, time.perf_counter()), self._infos)
        try:
            turns = self._envs.reset(row, env_seed)
            running.see(self._envs)
        except EnvFailedError as error:
            self._retry(row, index, with_episode(error, index, env_seed, 0))
            return False
        running.use(self._policies, self._agents.choose(index, numbers), self._names, self._root_seed)
        running.take(turns)
        self._running[row] = running
        return True

    def _finish(self, row: int) -> ManyEpisode:
        episode = self._running[row].finish()
        if episode is None:
            raise self._envs.fail(row, "agents: expected some that act before the episode ends, got none")
        self._end(row)
        return episode

    def _forget(self, row: int) -> int:
        running = self._running.pop(row)
        running.forget()
        return running.episode.length

    def _agent_failed(self, error: AgentFailedError, row: int, agent: int) -> EpisodeFailedError:
        policy = self._agents.policies[self._running[row].policy_of(agent)]
        return self._located(AgentFailedError(policy.describe(error, self._envs.agents[agent]), row))

    def _located(self, error: EpisodeFailedError) -> EpisodeFailedError:
        episode = self._running[error.row].episode
        return with_episode(error, episode.index, episode.env_seed, episode.length)
