"""An episode with many agents that a row runs: lives that begin, act, get rewards, and end."""

from __future__ import annotations

import enum
from collections import Counter
from typing import TYPE_CHECKING, Any

from rollserve_server.sampling.record.episodes import Episode
from rollserve_server.sampling.record.infos import NO_RESET_INFOS
from rollserve_server.sampling.record.lives import Life, ManyEpisode, PendingStep, finish_step

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from rollserve_server.envs import AgentTurn, ManyEnvs
    from rollserve_server.errors import AgentFailedError, EpisodeFailedError
    from rollserve_server.sampling.collect.lanes import PolicyLanes
    from rollserve_server.sampling.record.infos import InfoReader, ResetInfos

__all__ = ["RunningEpisode", "Stepped", "act_in_rows"]

_UNDELIVERED = "(rewards of agents that never acted)"
"""Name under which rewards count, among dropped infos, that belong to lives without a step."""

_UNSETTLED = "(last steps of absent agents)"
"""Name under which steps count, among dropped infos, whose agents got no observation after them."""


class Stepped(enum.Enum):
    """The outcome of an environment step for its episode."""

    GOES_ON = enum.auto()
    ENDED = enum.auto()  # by itself
    CUT = enum.auto()  # by a limit


class RunningEpisode:
    """An episode that a row runs, or whose recorded actions it repeats.

    While actions are repeated, no policies act, and nothing is recorded: a life then has the number of its steps, and
    among them at most one whose reward is not known yet.

    Attributes:
        episode: the episode, or the fragment of it that is being recorded.
        alive: the agents that are alive, with their lives.
        awaiting: the agents that act in the next step, with the infos that came with their observations.
        turns: turns of the last step, with those of the agents that waited for theirs where it was cut.
    """

    def __init__(self, episode: ManyEpisode, infos: InfoReader, discount: float | None = None) -> None:
        """Begin before the first turns.

        Args:
            episode: the episode.
            infos: reads the environment's infos.
            discount: discount of the returns that are added up from fragment to fragment; None for none.
        """
        self.episode = episode
        self.alive: dict[int, Life] = {}
        self.awaiting: dict[int, Mapping[Any, Any]] = {}
        self.turns: Sequence[AgentTurn] = ()
        self._infos, self._discount = infos, discount
        # For each agent, the lanes of its policy; and the position of that policy.
        self._lanes: Sequence[PolicyLanes] = ()
        self._policies: Sequence[int] = ()
        self._names: list[tuple[str, int]] = []
        self._num_acted: Counter[int] = Counter()
        self._num_lives: Counter[int] = Counter()
        # The sum of the rewards of each life with a step, by agent and number.
        self._totals: dict[tuple[int, int], float] = {}

    @property
    def index(self) -> int:
        """Index of the episode."""
        return self.episode.index

    @property
    def has_policies(self) -> bool:
        """Whether policies act."""
        return bool(self._lanes)

    def policy_of(self, agent: int) -> int:
        """Return the position of the policy that acts for an agent."""
        return self._policies[agent]

    def use(
        self,
        lanes: Sequence[PolicyLanes],
        policies: Sequence[int],
        names: list[tuple[str, int]],
        root_seed: int,
    ) -> None:
        """Let policies act from now on, as if they had made all actions before.

        Args:
            lanes: lanes of all policies.
            policies: position of the policy of each agent.
            names: name and version of all policies. Those of earlier ones are added that have made a step whose reward
                is not known yet.
            root_seed: root seed of the sequence.
        """
        self._lanes, self._policies, self._names = [lanes[position] for position in policies], policies, names
        for each in dict.fromkeys(self._lanes):
            each.begin(self.episode.row, root_seed, self.index, self._num_acted)
        for agent, life in self.alive.items():
            life.policy = policies[agent]
            self._lanes[agent].recorder.begin(self._lane(agent), life)
        for agent, info in self.awaiting.items():
            self._lanes[agent].await_action(self._lane(agent), info)

    def lanes_of(self, agent: int) -> tuple[PolicyLanes, int]:
        """Return the lanes of an agent's policy, and the agent's lane."""
        return self._lanes[agent], self._lane(agent)

    def follow(self, before: RunningEpisode) -> None:
        """Begin in the state in which an episode was truncated, with the agents that would have acted next.

        Their first observations are known with infos of the step before, which are no infos of a reset.
        """
        for agent, info in before.awaiting.items():
            self._begin(agent, NO_RESET_INFOS)
            self.awaiting[agent] = info
        self.episode.global_states = before.episode.global_states and before.episode.global_states[-1:]

    def take(self, turns: Sequence[AgentTurn], *, cut: bool = False) -> None:
        """Take turns: rewards of the last actions, ends of lives, and the agents that act next.

        Args:
            turns: the turns.
            cut: whether the caller ends the episode, so that nobody acts any more.
        """
        for turn in turns:
            life = self.alive.get(turn.agent)
            if life is None:
                self._begin(turn.agent, self._infos.read_reset(turn.info)).add_before(turn.reward)
            elif life.environment_steps or life.pending is not None:
                self._settle(life, turn)
            else:
                life.add_before(turn.reward)
            if turn.ended:
                self._end(turn.agent, turn.columns, terminated=turn.terminated, truncated=turn.truncated)
            elif not cut:
                self.awaiting[turn.agent] = turn.info
                if self._lanes:
                    self._lanes[turn.agent].await_action(self._lane(turn.agent), turn.info)

    def reset(self, envs: ManyEnvs) -> Sequence[AgentTurn]:
        """Reset the row's environment, and return the first turns; raises EnvFailedError."""
        turns = envs.reset(self.episode.row, self.episode.env_seed)
        self.see(envs)
        return turns

    def step(self, envs: ManyEnvs, actions: Mapping[int, Any], limit: int | None) -> Stepped:
        """Make an environment step with the actions of the agents that act, and take what follows.

        Args:
            envs: the environments.
            actions: action of each agent that acts.
            limit: number of environment steps after which the episode is cut; None for none.

        Raises:
            EnvFailedError: the environment failed.
        """
        self.turns = turns = envs.step(self.episode.row, actions)
        self.see(envs)
        self.episode.length += 1
        self.take(turns)
        if all(turn.ended for turn in turns):
            return Stepped.ENDED
        if self.episode.stop != limit:
            return Stepped.GOES_ON
        cut = envs.cut(self.episode.row)
        self.take(cut, cut=True)
        self.turns = [*turns, *cut]
        return Stepped.CUT

    def see(self, envs: ManyEnvs) -> None:
        """Record the global state, if the environment is asked for it; raises as `ManyEnvs.global_state`."""
        if envs.global_state_leaf is not None:
            states = self.episode.global_states = self.episode.global_states or []
            states.append(envs.global_state(self.episode.row))

    def act(self, agent: int, step: int) -> None:
        """Record that an agent acts in an environment step of the episode."""
        del self.awaiting[agent]
        self._num_acted[agent] += 1
        self.alive[agent].environment_steps.append(step)

    def finish(self, envs: ManyEnvs) -> ManyEpisode:
        """End the episode, and return it. Lives that go on are truncated, because a limit has ended the episode.

        Raises:
            EnvFailedError: no agent has ever acted in it.
        """
        for agent in sorted(self.alive):
            self._end(agent, None, terminated=False, truncated=True)
        self.forget()
        self.episode.ended = True
        if not self._totals:
            raise envs.fail(self.episode.row, "agents: expected some that act before the episode ends, got none")
        return self._finished()

    def cut(self) -> ManyEpisode:
        """End the fragment before the next step, and return it; another one begins.

        A step whose reward is not known yet belongs to the fragment in which the reward arrives.
        """
        for agent in sorted(self.alive):
            self._cut_life(agent)
        fragment = self._finished()
        self.go_on()
        return fragment

    def go_on(self) -> None:
        """Begin the next fragment."""
        before = self.episode
        self.episode = ManyEpisode(before.index, before.env_seed, before.row, before.began, first_step=before.stop)
        self.episode.global_states = before.global_states and before.global_states[-1:]
        self.episode.terminated_at, self.episode.truncated_at = before.terminated_at, before.truncated_at

    def forget(self) -> None:
        """Let no agent act any more, and forget what is recorded of the lives."""
        for each in dict.fromkeys(self._lanes):
            each.forget(self.episode.row)

    def _lane(self, agent: int) -> int:
        return self._lanes[agent].lane(self.episode.row, agent)

    def _finished(self) -> ManyEpisode:
        self.episode.total_reward = sum((self._totals[key] for key in sorted(self._totals)), 0.0)
        self.episode.finish()
        return self.episode

    def _begin(self, agent: int, reset: ResetInfos) -> Life:
        segment = Episode.begin(self.episode.index, self.episode.env_seed, reset)
        segment.row = self.episode.row
        policy = self._policies[agent] if self._policies else 0
        life = self.alive[agent] = Life(agent, self._num_lives[agent], policy, segment, reset)
        self._num_lives[agent] += 1
        if self._lanes:
            lanes, lane = self.lanes_of(agent)
            lanes.recorder.begin(lane, life)
            lanes.states.begin(lane)
        return life

    def _settle(self, life: Life, turn: AgentTurn) -> None:
        """Record what followed an agent's last action."""
        if not self._lanes:
            life.environment_steps.pop()
            life.segment.first_step += 1
            life.segment.total_reward += turn.reward
        elif life.pending is not None:
            self._settle_pending(life, life.pending, turn)
        else:
            lanes, lane = self.lanes_of(turn.agent)
            lanes.take_reward(lane, turn.reward)
            if turn.info:
                lanes.recorder.write_infos(lane, turn.info)
        if self._discount is not None:
            life.discounted = self._discount * life.discounted + turn.reward
        self._totals[life.agent, life.number] = life.segment.total_reward

    def _settle_pending(self, life: Life, pending: PendingStep, turn: AgentTurn) -> None:
        """Make a segment of its own of a step that an earlier fragment has begun."""
        lanes, lane = self.lanes_of(turn.agent)
        name = pending.policy, pending.version
        if name not in self._names:
            self._names.append(name)
        own = self._continued(life, 0)
        own.policy, own.pending = self._names.index(name), pending
        own.segment.last_observations = turn.columns or lanes.observations(lane)
        finish_step(own, turn.reward, turn.info, self._infos)
        lanes.states.take_rewards(turn.reward, lane)
        self.episode.lives.append(own)
        life.pending = None
        life.segment.first_step += 1
        life.segment.total_reward = life.segment.return_before = own.segment.total_reward

    def _continued(self, life: Life, num_steps: int) -> Life:
        """Return a part of a life behind its first part, which has so many steps here."""
        before = life.segment
        segment = Episode.begin(
            before.index,
            before.env_seed,
            life.reset,
            before.first_step + num_steps,
            before.total_reward,
            discounted_before=life.discounted,
        )
        segment.row = before.row
        return Life(
            life.agent,
            life.number,
            life.policy,
            segment,
            life.reset,
            discounted=life.discounted,
        )

    def _end(self, agent: int, observation: Sequence[np.ndarray] | None, *, terminated: bool, truncated: bool) -> None:
        """End an agent's life with an observation; None for the last one. A life without a step is none.

        If the agent is absent, what followed its last action is unknown: the life ends before that action.
        """
        life, episode = self.alive.pop(agent), self.episode
        if not self._lanes:
            return
        lanes, lane = self.lanes_of(agent)
        last_observations, last_states = observation or lanes.observations(lane), lanes.states.of_row(lane)
        if not lanes.recorder.is_settled(lane):
            last_observations, last_states = lanes.recorder.undo(lane)
        if life.pending is not None or not lanes.recorder.is_settled(lane):
            episode.dropped_infos[_UNSETTLED] += 1
        if not (life.environment_steps or life.segment.first_step):
            lanes.recorder.abandon(lane)
            if life.reward_before:
                episode.dropped_infos[_UNDELIVERED] += 1
            return
        if life.environment_steps:
            lanes.recorder.finish(lane, last_observations, last_states)
            episode.lives.append(life)
            last = life
        else:
            lanes.recorder.abandon(lane)
            own = [each for each in episode.lives if (each.agent, each.number) == (agent, life.number)]
            last = own[-1] if own else life
        last.segment.terminated, last.segment.truncated = terminated, truncated
        episode.terminated_at = episode.stop if terminated else episode.terminated_at
        episode.truncated_at = episode.stop if truncated else episode.truncated_at

    def _cut_life(self, agent: int) -> None:
        """End the part of a life in this fragment."""
        life, (lanes, lane), pending = self.alive[agent], self.lanes_of(agent), self.alive[agent].pending
        last_observations, last_states = lanes.observations(lane), lanes.states.of_row(lane)
        if not lanes.recorder.is_settled(lane):
            name, version = self._names[life.policy]
            columns, step = lanes.recorder.current(lane), life.environment_steps[-1]
            pending = PendingStep(name, version, step, columns, last_states, lanes.reward_state)
            last_observations, last_states = lanes.recorder.undo(lane)
        num_steps = len(life.environment_steps)
        if num_steps:
            lanes.recorder.finish(lane, last_observations, last_states)
            self.episode.lives.append(life)
        else:
            lanes.recorder.abandon(lane)
        rest = self.alive[agent] = self._continued(life, num_steps)
        rest.pending = pending
        lanes.recorder.begin(lane, rest)


def act_in_rows(
    policies: Sequence[PolicyLanes],
    running: Mapping[int, RunningEpisode],
    located: Callable[[AgentFailedError, int, int], EpisodeFailedError],
) -> dict[int, dict[int, Any]]:
    """Let all agents act that are to, with one evaluation for each policy; return their actions by row and agent.

    Args:
        policies: lanes of the policies.
        running: the episode of each row that has one.
        located: returns an error of a policy with the episode, given its row and its agent.

    Raises:
        AgentFailedError: a policy failed.
    """
    actions: dict[int, dict[int, Any]] = {row: {} for row in sorted(running)}
    for policy in policies:
        for row, agent, action in policy.act(located):
            actions[row][agent] = action
            running[row].act(agent, running[row].episode.stop)
    return actions
