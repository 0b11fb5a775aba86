"""Whole episodes of environments with many agents: rows, and the loops of sequences and of populations."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from rollserve_server.errors import AgentFailedError, EnvFailedError, EpisodeFailedError
from rollserve_server.sampling.collect.collector import with_episode
from rollserve_server.sampling.collect.lanes import PolicyLanes
from rollserve_server.sampling.collect.noise import EpisodeGenerator
from rollserve_server.sampling.collect.populations import PopulationCollector
from rollserve_server.sampling.collect.rows import RowwiseCollector, WaitingForAnyRow
from rollserve_server.sampling.collect.running import RunningEpisode, Stepped, act_in_rows
from rollserve_server.sampling.protocol import AgentOutcome, Outcome
from rollserve_server.sampling.record.columns import MAX_BUFFER_BYTES
from rollserve_server.sampling.record.infos import InfoReader
from rollserve_server.sampling.record.lives import ManyEpisode

if TYPE_CHECKING:
    from rollserve_server.agents import PolicyAgents
    from rollserve_server.envs import ManyEnvs
    from rollserve_server.sampling.protocol import Population

__all__ = ["ManyCollector", "ManyPopulationCollector", "outcomes_of_agents"]

_Failed = TypeVar("_Failed", bound=EpisodeFailedError)


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
        self._rows = _ManyRows(root_seed, envs, agents, max_episode_length)
        self._running = self._rows.running
        self._waiting = WaitingForAnyRow(envs.num_rows)

    def step(self) -> list[ManyEpisode]:
        """Step all rows that have an episode, and return the episodes that ended."""
        stepped = self._rows.step()
        self.num_simulated_steps += stepped.num_steps
        for error in stepped.failures:
            self._abandon(error)
        for episode in stepped.episodes:
            self._end(episode.row)
        return stepped.episodes

    def release(self, episode: ManyEpisode) -> None:
        """Forget a finished episode, whose steps are its own."""

    def _begin_episode(self, row: int, index: int) -> bool:
        try:
            self._rows.begin(row, index)
        except EnvFailedError as error:
            self._retry(row, index, error)
            return False
        return True

    def _forget(self, row: int) -> int:
        return self._rows.forget(row)


class ManyPopulationCollector(PopulationCollector):
    """Runs units in rows with many agents; some of the policies act as the member of a row's unit."""

    def __init__(self, population: Population, envs: ManyEnvs, agents: PolicyAgents, num_retries: int) -> None:
        self._rows = _ManyRows(population.root_seed, envs, agents, population.max_episode_length)
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


def outcomes_of_agents(agents: PolicyAgents, episode: ManyEpisode) -> tuple[AgentOutcome, ...]:
    """Return the outcomes of the agents that made a step in a finished episode."""
    outcomes: dict[int, AgentOutcome] = {}
    for life in episode.lives:
        policy, before = agents.policies[life.policy], outcomes.get(life.agent)
        total_reward = (before.total_reward if before else 0.0) + life.segment.total_reward
        outcomes[life.agent] = AgentOutcome(life.agent, policy.name, policy.version, total_reward)
    return tuple(outcomes.values())


class _ManyRows:
    """Rows that run whole episodes, each up to its end or a number of environment steps.

    Attributes:
        running: the episode of each row that has one.
        policies: lanes of the policies.
    """

    def __init__(
        self, root_seed: int, envs: ManyEnvs, agents: PolicyAgents, max_episode_length: int | None = None
    ) -> None:
        """Begin without episodes, given the root seed of the sequence."""
        self.running: dict[int, RunningEpisode] = {}
        self._root_seed = root_seed
        self._max_episode_length = max_episode_length
        self._envs, self._agents = envs, agents
        self._infos = InfoReader(envs.text_info_bytes)
        buffer_bytes = MAX_BUFFER_BYTES // len(agents.policies)
        self.policies = [PolicyLanes(policy, envs, self._infos, buffer_bytes) for policy in agents.policies]
        self._generator = EpisodeGenerator()
        self._names = agents.names

    def begin(self, row: int, index: int) -> None:
        """Begin an episode in a row that has none.

        Raises:
            EnvFailedError: its environment fails; the error has the episode.
        """
        env_seed = self._generator.env_seed(self._root_seed, index)
        numbers = self._generator.policy_numbers(self._root_seed, index, self._agents.num_numbers)
        running = RunningEpisode(ManyEpisode(index, env_seed, row, time.perf_counter()), self._infos)
        try:
            turns = running.reset(self._envs)
        except EnvFailedError as error:
            raise with_episode(error, index, env_seed, 0) from error
        running.use(self.policies, self._agents.choose(index, numbers), self._names, self._root_seed)
        running.take(turns)
        self.running[row] = running

    def step(self) -> _RowsStep:
        """Step all rows that have an episode.

        Raises:
            AgentFailedError: a policy failed; the error has the row and the episode.
        """
        num_steps, episodes, failures = 0, list[ManyEpisode](), list[EnvFailedError]()
        for row, actions in act_in_rows(self.policies, self.running, self._agent_failed).items():
            running = self.running[row]
            length = running.episode.length
            try:
                if running.step(self._envs, actions, self._max_episode_length) is not Stepped.GOES_ON:
                    episodes.append(running.finish(self._envs))
            except EnvFailedError as error:
                failures.append(self._located(error))
            num_steps += running.episode.length - length
        return _RowsStep(num_steps, episodes, failures)

    def forget(self, row: int) -> int:
        """Forget the episode that a row runs, and return the number of its steps."""
        running = self.running.pop(row)
        running.forget()
        return running.episode.length

    def _agent_failed(self, error: AgentFailedError, row: int, agent: int) -> EpisodeFailedError:
        policy = self._agents.policies[self.running[row].policy_of(agent)]
        return self._located(AgentFailedError(policy.describe(error, self._envs.agents[agent]), row))

    def _located(self, error: _Failed) -> _Failed:
        episode = self.running[error.row].episode
        return with_episode(error, episode.index, episode.env_seed, episode.length)


class _RowsStep(NamedTuple):
    """Result of a step of all rows.

    Attributes:
        num_steps: number of environment steps.
        episodes: episodes that have ended; each still has its row.
        failures: errors of environments, each with its row and episode, which the caller has to forget.
    """

    num_steps: int
    episodes: list[ManyEpisode]
    failures: list[EnvFailedError]
