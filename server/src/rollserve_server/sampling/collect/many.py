"""The loop for environments with many agents: rows stepped one by one, and one evaluation for each policy and step."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.errors import AgentFailedError, EnvFailedError, EpisodeFailedError
from rollserve_server.sampling.collect.attempts import with_episode
from rollserve_server.sampling.collect.lanes import PolicyLanes
from rollserve_server.sampling.collect.rowwise import RowwiseCollector
from rollserve_server.sampling.collect.seeding import EpisodeGenerator
from rollserve_server.sampling.collect.waiting import WaitingForAnyRow
from rollserve_server.sampling.record.columns import MAX_BUFFER_BYTES
from rollserve_server.sampling.record.episodes import Episode
from rollserve_server.sampling.record.infos import InfoReader
from rollserve_server.sampling.record.lives import Life, ManyEpisode, drop_mixed_shapes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_server.agents import PolicyAgents
    from rollserve_server.envs import ManyEnvs, Turn

__all__ = ["ManyCollector"]

_UNDELIVERED = "(rewards of agents that never acted)"
"""Name under which rewards count, among dropped infos, that belong to lives without a step."""

_UNSETTLED = "(last steps of absent agents)"
"""Name under which steps count, among dropped infos, whose agents got no observation after them."""


class ManyCollector(RowwiseCollector[ManyEpisode, "_Running"]):
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
        self._steps = np.zeros(envs.num_rows, np.int64)

    def step(self) -> list[ManyEpisode]:
        """Step all rows that have an episode, and return the episodes that ended."""
        actions: dict[int, dict[int, Any]] = {row: {} for row in sorted(self._running)}
        for policy in self._policies:
            for row, agent, action in policy.act(self._steps, self._agent_failed):
                actions[row][agent] = action
        finished = []
        for row, row_actions in actions.items():
            try:
                turns = self._envs.step(row, row_actions)
                self._record_state(self._running[row].episode)
                self._steps[row] += 1
                self._running[row].episode.length += 1
                self.num_simulated_steps += 1
                self._take(row, turns)
                is_over = all(turn.ended for turn in turns)
                if not is_over and self._steps[row] == self._max_episode_length:
                    self._take(row, self._envs.cut(row), cut=True)
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
        episode = ManyEpisode(index, env_seed, row, time.perf_counter())
        try:
            turns = self._envs.reset(row, env_seed)
            self._record_state(episode)
        except EnvFailedError as error:
            self._retry(row, index, with_episode(error, index, env_seed, 0))
            return False
        self._running[row] = _Running(episode, self._agents.choose(episode.index, numbers))
        self._steps[row] = 0
        for position in set(self._running[row].policies):
            self._policies[position].begin(row, self._root_seed, index)
        self._take(row, turns)
        return True

    def _record_state(self, episode: ManyEpisode) -> None:
        """Record the global state, if the environment is asked for it."""
        if self._envs.global_state_leaf is not None:
            episode.global_states = episode.global_states or []
            episode.global_states.append(self._envs.global_state(episode.row))

    def _take(self, row: int, turns: Sequence[Turn], *, cut: bool = False) -> None:
        """Record turns of a row: rewards of the last actions, ends of lives, and the agents that act next."""
        for turn in turns:
            self._running[row].take(turn, self._policies, self._infos, cut=cut)

    def _finish(self, row: int) -> ManyEpisode:
        """End the row's episode: lives that go on are truncated, because a limit has ended the episode."""
        running = self._running[row]
        for agent in sorted(running.alive):
            running.end(agent, self._policies, terminated=False, truncated=True)
        episode = running.episode
        if not episode.lives:
            raise self._envs.fail(row, "agents: expected some that act before the episode ends, got none")
        self._end(row)
        for position in set(running.policies):
            self._policies[position].forget(row)
        episode.seconds = time.perf_counter() - episode.began
        episode.lives.sort(key=lambda life: (life.agent, life.environment_steps[0]))
        drop_mixed_shapes(episode.lives)
        for life in episode.lives:
            episode.dropped_infos.update(life.segment.dropped_infos)
            episode.num_bytes += life.segment.num_bytes
        episode.num_bytes += sum(state.nbytes for state in episode.global_states or ())
        return episode

    def _forget(self, row: int) -> int:
        running = self._running.pop(row)
        for position in set(running.policies):
            self._policies[position].forget(row)
        return running.episode.length

    def _agent_failed(self, error: AgentFailedError, row: int, agent: int) -> EpisodeFailedError:
        policy = self._agents.policies[self._running[row].policies[agent]]
        text = f"policy {policy.name!r}, version {policy.version}, for agent {self._envs.agents[agent]!r}"
        return self._located(AgentFailedError(f"{text}: {error.message}", row))

    def _located(self, error: EpisodeFailedError) -> EpisodeFailedError:
        episode = self._running[error.row].episode
        return with_episode(error, episode.index, episode.env_seed, episode.length)


class _Running:
    """An episode that a row runs.

    Attributes:
        episode: the episode.
        policies: position of the policy of each agent.
        alive: the agents that are alive, with their lives.
    """

    def __init__(self, episode: ManyEpisode, policies: Sequence[int]) -> None:
        self.episode, self.policies = episode, policies
        self.alive: dict[int, Life] = {}

    @property
    def index(self) -> int:
        """Index of the episode."""
        return self.episode.index

    def take(self, turn: Turn, policies: Sequence[PolicyLanes], infos: InfoReader, *, cut: bool) -> None:
        """Record a turn; where the caller cuts the episode, the agent acts no more."""
        lanes = policies[self.policies[turn.agent]]
        lane, life = lanes.lane(self.episode.row, turn.agent), self.alive.get(turn.agent)
        if life is None:
            life = self._begin(turn, lanes, lane, infos)
        elif life.environment_steps:
            lanes.take_reward(lane, turn.reward)
            if turn.info:
                lanes.recorder.write_infos(lane, turn.info)
        else:
            life.reward_before += turn.reward
        if turn.ended:
            self.end(turn.agent, policies, terminated=turn.terminated, truncated=turn.truncated)
        elif not cut:
            lanes.await_action(lane, turn.info)

    def end(self, agent: int, policies: Sequence[PolicyLanes], *, terminated: bool, truncated: bool) -> None:
        """End an agent's life. A life without a step is none.

        If the agent is absent, what followed its last action is unknown: the life ends before that action.
        """
        lanes, life = policies[self.policies[agent]], self.alive.pop(agent)
        lane = lanes.lane(self.episode.row, agent)
        last_observations, last_states = lanes.observations(lane), lanes.states.of_row(lane)
        if not lanes.recorder.is_settled(lane):
            last_observations, last_states = lanes.recorder.undo(lane)
            self.episode.dropped_infos[_UNSETTLED] += 1
        if not life.environment_steps:
            lanes.recorder.abandon(lane)
            if life.reward_before:
                self.episode.dropped_infos[_UNDELIVERED] += 1
            return
        life.ended_at = self.episode.length
        life.segment.terminated, life.segment.truncated = terminated, truncated
        lanes.recorder.finish(lane, last_observations, last_states)
        self.episode.lives.append(life)

    def _begin(self, turn: Turn, lanes: PolicyLanes, lane: int, infos: InfoReader) -> Life:
        segment = Episode.begin(self.episode.index, self.episode.env_seed, infos.read_reset(turn.info))
        segment.row = self.episode.row
        life = self.alive[turn.agent] = Life(turn.agent, self.policies[turn.agent], segment)
        life.reward_before = turn.reward
        lanes.recorder.begin(lane, life)
        lanes.states.begin(lane)
        return life
