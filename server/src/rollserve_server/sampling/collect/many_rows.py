"""Rows with many agents, stepped one by one, with one evaluation for each policy and step."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rollserve_server.errors import AgentFailedError, EnvFailedError, EpisodeFailedError
from rollserve_server.sampling.collect.attempts import with_episode
from rollserve_server.sampling.collect.lanes import PolicyLanes
from rollserve_server.sampling.collect.running import RunningEpisode
from rollserve_server.sampling.collect.seeding import EpisodeGenerator
from rollserve_server.sampling.record.columns import MAX_BUFFER_BYTES
from rollserve_server.sampling.record.infos import InfoReader
from rollserve_server.sampling.record.lives import ManyEpisode

if TYPE_CHECKING:
    from rollserve_server.agents import PolicyAgents
    from rollserve_server.envs import ManyEnvs

__all__ = ["ManyRows"]

_Failed = TypeVar("_Failed", bound=EpisodeFailedError)


class _Stepped(NamedTuple):
    """Result of a step of all rows.

    Attributes:
        num_steps: number of environment steps.
        episodes: episodes that have ended; each still has its row.
        failures: errors of environments, each with its row and episode, which the caller has to forget.
    """

    num_steps: int
    episodes: list[ManyEpisode]
    failures: list[EnvFailedError]


class ManyRows:
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
            turns = self._envs.reset(row, env_seed)
            running.see(self._envs)
        except EnvFailedError as error:
            raise with_episode(error, index, env_seed, 0) from error
        running.use(self.policies, self._agents.choose(index, numbers), self._names, self._root_seed)
        running.take(turns)
        self.running[row] = running

    def step(self) -> _Stepped:
        """Step all rows that have an episode.

        Raises:
            AgentFailedError: a policy failed; the error has the row and the episode.
        """
        num_steps, episodes, failures = 0, list[ManyEpisode](), list[EnvFailedError]()
        for row, actions in self._actions().items():
            running = self.running[row]
            try:
                turns = self._envs.step(row, actions)
                running.see(self._envs)
                running.episode.length += 1
                num_steps += 1
                running.take(turns)
                if self._is_over(row, running, all(turn.ended for turn in turns)):
                    episodes.append(self._finish(row, running))
            except EnvFailedError as error:
                failures.append(self._located(error))
        return _Stepped(num_steps, episodes, failures)

    def forget(self, row: int) -> int:
        """Forget the episode that a row runs, and return the number of its steps."""
        running = self.running.pop(row)
        running.forget()
        return running.episode.length

    def _actions(self) -> dict[int, dict[int, Any]]:
        """Let all agents act that are to, and return their actions by row."""
        actions: dict[int, dict[int, Any]] = {row: {} for row in sorted(self.running)}
        for policy in self.policies:
            for row, agent, action in policy.act(self._agent_failed):
                actions[row][agent] = action
                self.running[row].act(agent, self.running[row].episode.length)
        return actions

    def _is_over(self, row: int, running: RunningEpisode, has_ended: bool) -> bool:
        """Return whether an episode is over, by itself or by the limit, which cuts it."""
        if has_ended or running.episode.length != self._max_episode_length:
            return has_ended
        running.take(self._envs.cut(row), cut=True)
        return True

    def _finish(self, row: int, running: RunningEpisode) -> ManyEpisode:
        episode = running.finish()
        if episode is None:
            raise self._envs.fail(row, "agents: expected some that act before the episode ends, got none")
        return episode

    def _agent_failed(self, error: AgentFailedError, row: int, agent: int) -> EpisodeFailedError:
        policy = self._agents.policies[self.running[row].policy_of(agent)]
        return self._located(AgentFailedError(policy.describe(error, self._envs.agents[agent]), row))

    def _located(self, error: _Failed) -> _Failed:
        episode = self.running[error.row].episode
        return with_episode(error, episode.index, episode.env_seed, episode.length)
