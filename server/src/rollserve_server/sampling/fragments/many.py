"""Fragments of rows whose environments have many agents.

What a state of a row has beside its actions, recurrent states and pending steps, travels as named arrays, as the
recurrent state of a row with one agent does; the names are lists in JSON.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from typing_extensions import override

from rollserve_server.agents import PolicyAgents
from rollserve_server.envs import AgentTurn
from rollserve_server.errors import AgentFailedError, EnvFailedError, EpisodeFailedError
from rollserve_server.sampling.collect.acting import evaluators_of
from rollserve_server.sampling.collect.collector import with_episode
from rollserve_server.sampling.collect.lanes import PolicyLanes
from rollserve_server.sampling.collect.noise import EpisodeGenerator
from rollserve_server.sampling.collect.running import RunningEpisode, Stepped, act_in_rows
from rollserve_server.sampling.encode.encoder import many_agents
from rollserve_server.sampling.fragments.collector import DivergedError, FragmentCollector, action_log_leaves
from rollserve_server.sampling.fragments.outbox import EpisodeOutbox
from rollserve_server.sampling.protocol import RowsProgress, RowState
from rollserve_server.sampling.record.lives import ManyEpisode, PendingStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rollserve_server.agents import Agent
    from rollserve_server.envs import ManyEnvs
    from rollserve_server.sampling.collect.acting import Evaluator
    from rollserve_server.sampling.collect.lanes import Waiting
    from rollserve_server.sampling.protocol import RecurrentState, RowSequenceSpec
    from rollserve_server.sampling.record.infos import InfoReader

__all__ = ["ManyFragmentCollector"]

_Failed = TypeVar("_Failed", bound=EpisodeFailedError)

_STATE, _STEP, _AFTER = "state", "step", "after"
"""First elements of the names: a recurrent state; a column of a pending step; a recurrent state after that step."""


class ManyFragmentCollector(FragmentCollector):
    """Steps M rows with many agents one by one, all in every step.

    A row is restored by the actions of all its agents since the reset. What these do not give comes with its state: the
    policies' recurrent states, and the steps whose reward is not known yet, which policies have made that may be gone.

    Attributes:
        shown_agents: agents whose turns are kept: none by default.
        turns: their turns of the last step, each with its row; an episode's end truncates those that go on.
    """

    def __init__(
        self,
        sequence: RowSequenceSpec,
        envs: ManyEnvs,
        states: Sequence[RowState],
        num_retries: int,
        memory_bytes: int,
    ) -> None:
        super().__init__(sequence, envs, action_log_leaves(envs.action_leaves), states, num_retries, memory_bytes)
        self._envs = envs
        self._generator = EpisodeGenerator()
        self._indices = [state.episode_index for state in states]
        # For each row, the episode that its environment was reset for, and the steps since then before the present one.
        self._reset_indices = [state.reset_index for state in states]
        self._first_steps = [state.first_step for state in states]
        self._running: dict[int, RunningEpisode] = {}
        # For each row, the step of the call before which its environment was reset.
        self._reset_steps = np.zeros(len(states), np.int64)
        self._agents: PolicyAgents | None = None
        self._policies: Sequence[PolicyLanes] = ()
        # Name and version of each of the policies, and of earlier ones that have made a step which is not complete.
        self._names: list[tuple[str, int]] = []
        # For each agent, the positions of its columns in the log.
        stops = np.cumsum([1, *map(len, envs.action_leaves)]).tolist()
        self._log_columns = [range(start, stop) for start, stop in itertools.pairwise(stops)]
        self.shown_agents: frozenset[int] = frozenset()
        self.turns: list[tuple[int, AgentTurn]] = []
        self._restoring = self._restore_each(states, self._replay, self._reset_next)
        self.outbox: EpisodeOutbox[ManyEpisode] = EpisodeOutbox()

    @property
    def step_bytes(self) -> int:
        """Bytes that the columns of one row's step take, if all agents act."""
        largest = [0] * len(self._envs.agents)
        for policy, lanes in zip(self._agents.policies if self._agents else (), self._policies, strict=True):
            for agent in policy.agents:
                largest[agent] = max(largest[agent], lanes.recorder.step_bytes + 4)
        state = self._envs.global_state_leaf
        return sum(largest) + (0 if state is None else state.dtype.itemsize * math.prod(state.shape))

    def episode_index(self, row: int) -> int:
        """Return the index of the episode that a row runs or begins."""
        return self._indices[row]

    def env_seeds(self) -> NDArray[np.uint64]:
        """Return the seed (M,) of the last reset of each row's environment."""
        return np.array([self._env_seed(row) for row in range(self.num_rows)], np.uint64)

    def waiting(self, policy: int) -> tuple[Waiting, list[Mapping[Any, Any]]]:
        """Return the agents of a policy that act in the next step, which has begun, and the infos that each has got."""
        waiting = self._policies[policy].waiting()
        places = zip(waiting.rows.tolist(), waiting.agents.tolist(), strict=True)
        return waiting, [self._running[row].awaiting[agent] for row, agent in places]

    @override
    def set_agent(self, agent: Agent | PolicyAgents) -> None:
        assert isinstance(agent, PolicyAgents)  # noqa: S101  # the pool has checked that they fit
        states = {row: self._states_of(running) for row, running in self._running.items() if running.has_policies}
        self._agents = agent
        self._names[:] = agent.names
        # Of no method of this collector, which would be in a cycle.
        self.outbox.form = many_agents(agent.agents, self._names, _evaluators_of(agent))
        buffer_bytes = self._buffer_bytes // len(agent.policies)
        self._policies = [
            PolicyLanes(policy, self._envs, self.infos, buffer_bytes, self._spill.keep) for policy in agent.policies
        ]
        for row, its in states.items():
            self._let_act(self._running[row], its)

    @override
    def _begin_step(self) -> None:
        for row in range(self.num_rows):
            if row not in self._running:
                self._begin(row)

    @override
    def _make_step(self) -> None:
        for row in range(self.num_rows):
            if not self._running[row].has_policies:
                self._let_act(self._running[row], {})
        for column in self._call_actions:
            column[self._step] = 0
        self.turns = []
        actions = act_in_rows(self._policies, self._running, self._agent_failed)
        for policy in self._policies:
            self._log(policy)
        for row, of_row in actions.items():
            self._step_row(row, of_row)
        self._step += 1
        if self._step == self.num_steps:
            self._cut()

    def progress(self) -> RowsProgress:
        """Return where the rows stand at the end of a call."""
        first_steps = np.array(self._first_steps)
        rows = [self._running.get(row) for row in range(self.num_rows)]
        num_steps = first_steps + [0 if running is None else running.episode.stop for running in rows]
        return RowsProgress(
            np.array(self._reset_indices),
            np.array(self._indices),
            first_steps,
            num_steps,
            np.where(num_steps > 0, self._step - self._reset_steps, 0),
            self._actions_so_far(),
            [
                _states_after(running, self._states_of(running)) if running is not None and running.has_policies else ()
                for running in rows
            ],
        )

    @override
    def begin_call(self, num_steps: int, *, report_actions: bool) -> None:
        super().begin_call(num_steps, report_actions=report_actions)
        self._reset_steps[:] = 0

    def _begin(self, row: int) -> None:
        """Begin the row's next episode."""
        running = self._new_episode(row)
        turns = self._begun(lambda: running.reset(self._envs), running.index)
        self._running[row] = running
        self._reset_steps[row] = self._step
        self._let_act(running, {})
        running.take(turns)

    def _new_episode(self, row: int) -> RunningEpisode:
        episode = ManyEpisode(self._indices[row], self._env_seed(row), row, time.perf_counter())
        return RunningEpisode(episode, self.infos, self._sequence.return_discount)

    def _let_act(self, running: RunningEpisode, states: dict[int, RecurrentState]) -> None:
        """Let the present policies act in an episode, given the recurrent states of the agents that are alive."""
        assert self._agents is not None  # noqa: S101  # the call has begun
        root_seed = self._sequence.root_seed
        numbers = self._generator.policy_numbers(root_seed, running.index, self._agents.num_numbers)
        running.use(self._policies, self._agents.choose(running.index, numbers), self._names, root_seed)
        for agent in running.alive:
            lanes, lane = running.lanes_of(agent)
            lanes.states.take(lane, states.get(agent, ()))

    def _states_of(self, running: RunningEpisode) -> dict[int, RecurrentState]:
        """Return the recurrent states of the agents that are alive."""
        found = {}
        for agent in running.alive:
            lanes, lane = running.lanes_of(agent)
            found[agent] = lanes.states.named(lane)
        return found

    def _step_row(self, row: int, actions: dict[int, Any]) -> None:
        running, episode = self._running[row], None
        try:
            stepped = running.step(self._envs, actions, self._sequence.max_episode_length)
            if self.shown_agents:
                self.turns += ((row, turn) for turn in _turns(running, stepped) if turn.agent in self.shown_agents)
            if stepped is not Stepped.GOES_ON:
                episode = running.finish(self._envs)
        except EnvFailedError as error:
            # The rows before have made this step: all of them go back to where the call began.
            self._retry(self._with_episode(error), running.index)
            self._strand(error)
        if episode is None:
            return
        self.attempts.succeed(running.index)
        self.outbox.add(episode)
        if stepped is Stepped.CUT and self._sequence.soft_horizon:  # the next episode goes on in the same state
            self._first_steps[row] += episode.stop
            self._indices[row] += self._sequence.stride
            self._running[row] = self._following(row, running)
        else:
            self._reset_next(row)

    def _following(self, row: int, running: RunningEpisode) -> RunningEpisode:
        """Return the episode of a row that goes on where another one was truncated; no policies act in it yet."""
        following = self._new_episode(row)
        following.follow(running)
        return following

    def _cut(self) -> None:
        for row in sorted(self._running):
            if self._running[row].episode.length:
                self.outbox.add(self._running[row].cut())

    def _log(self, policy: PolicyLanes) -> None:
        """Keep the actions of a policy's agents in the current step, if they are reported."""
        if not self._reports_actions:
            return
        rows, agents, columns = policy.acted
        self._call_actions[0][self._step, rows, agents] = True
        for agent in np.unique(agents).tolist():
            its = agents == agent
            for position, column in zip(self._log_columns[agent], columns, strict=True):
                self._call_actions[position][self._step, rows[its]] = column[its]

    def _reset_next(self, row: int) -> None:
        """Let a row begin its next episode with a reset before the next step."""
        self._running.pop(row, None)
        self._indices[row] += self._sequence.stride
        self._reset_indices[row], self._first_steps[row] = self._indices[row], 0

    def _replay(self, row: int, state: RowState) -> Iterator[int]:
        """Reset a row and repeat the state's steps. Yields 1 after each step."""
        limit, running = self._sequence.max_episode_length, self._new_episode(row)
        running.take(self._envs.reset(row, running.episode.env_seed))
        acted, *columns = state.actions
        for step in range(state.num_steps):
            agents = np.flatnonzero(acted[step]).tolist()
            if agents != sorted(running.awaiting):
                raise DivergedError
            for agent in agents:
                running.act(agent, running.episode.stop)
            turns = self._envs.step(row, {agent: self._logged(agent, columns, step) for agent in agents})
            running.episode.length += 1
            running.take(turns)
            yield 1
            if all(turn.ended for turn in turns):
                raise DivergedError
            if running.episode.stop == limit:  # a soft horizon, because others end with a reset
                running.take(self._envs.cut(row), cut=True)
                running = self._following(row, running)
        if running.episode.stop != state.num_steps - state.first_step:
            raise DivergedError
        self._let_act(running, _states_before(running, state.recurrent_state, self.infos))
        running.go_on()
        running.see(self._envs)
        self._running[row] = running

    def _logged(self, agent: int, columns: Sequence[np.ndarray], step: int) -> Any:
        """Return an agent's action in a step of a row, given the columns of the log behind the first."""
        leaves = self._envs.action_leaves[agent]
        its = [columns[position - 1][step : step + 1] for position in self._log_columns[agent]]
        typed = [column.astype(leaf.dtype) for column, leaf in zip(its, leaves, strict=True)]
        return self._envs.actions(agent, typed, num_rows=1)[0]

    def _agent_failed(self, error: AgentFailedError, row: int, agent: int) -> EpisodeFailedError:
        assert self._agents is not None  # noqa: S101  # it has acted
        policy = self._agents.policies[self._running[row].policy_of(agent)]
        return self._with_episode(AgentFailedError(policy.describe(error, self._envs.agents[agent]), row))

    def _with_episode(self, error: _Failed) -> _Failed:
        running = self._running.get(error.row)
        num_steps = 0 if running is None else running.episode.stop
        return with_episode(error, self._indices[error.row], self._env_seed(error.row), num_steps)

    def _env_seed(self, row: int) -> int:
        """Return the seed of the last reset of a row's environment, or of the one that begins its episode."""
        return self._generator.env_seed(self._sequence.root_seed, self._reset_indices[row])


def _turns(running: RunningEpisode, stepped: Stepped) -> Iterator[AgentTurn]:
    """Yield the turns of a step, where an episode's end truncates the agents that are alive."""
    if stepped is Stepped.GOES_ON:
        yield from running.turns
        return
    last = {turn.agent: turn for turn in running.turns if not turn.ended}
    yield from (turn for turn in running.turns if turn.ended)
    for agent in sorted(running.alive):
        yield last.get(agent, AgentTurn(agent, None, 0.0, False, True, {}))._replace(truncated=True)


def _evaluators_of(agents: PolicyAgents) -> Callable[[str, int], Evaluator | None]:
    """Return a function that returns the evaluator of a policy's version, or of its newest; None if it is gone."""
    present, find = agents.names, evaluators_of(agents)

    def evaluator_of(name: str, version: int) -> Evaluator | None:
        if (name, version) not in present:
            version = max((each for policy, each in present if policy == name), default=0)
        return find(name, version) if version else None

    return evaluator_of


def _states_after(running: RunningEpisode, states: Mapping[int, RecurrentState]) -> RecurrentState:
    """Return what the state of a row has at the end of a fragment.

    Args:
        running: the row's episode.
        states: recurrent states of the agents that are alive.
    """
    return tuple((json.dumps(name), value) for name, value in _named(running, states))


def _states_before(running: RunningEpisode, state: RecurrentState, infos: InfoReader) -> dict[int, RecurrentState]:
    """Give an episode whose actions were repeated its pending steps; return the agents' recurrent states.

    Raises:
        DivergedError: the state does not fit the episode.
    """
    try:
        named = [(json.loads(name), value) for name, value in state]
        found = {agent: _pending(agent, named, infos) for agent in running.alive}
    except (ValueError, TypeError, IndexError) as error:
        raise DivergedError from error
    for agent, life in running.alive.items():
        pending, segment = found[agent], life.segment
        unsettled = life.environment_steps.pop() if life.environment_steps else None
        if unsettled != (pending and pending.environment_step):
            raise DivergedError
        life.pending = pending
        segment.return_before, segment.discounted_before = segment.total_reward, life.discounted
    return {agent: tuple((name[2], value) for name, value in named if name[:2] == [_STATE, agent]) for agent in found}


def _named(running: RunningEpisode, states: Mapping[int, RecurrentState]) -> Iterator[tuple[list[Any], np.ndarray]]:
    for agent, life in running.alive.items():
        for name, value in states[agent]:
            yield [_STATE, agent, name], value
        if (pending := life.pending) is None:
            continue
        step = [pending.policy, pending.version, pending.environment_step]
        for (group, key), value in pending.columns.items():
            yield [_STEP, agent, group, key.name, *step], value
        for position, value in enumerate(pending.states):
            yield [_AFTER, agent, position == pending.reward_state], value


def _pending(agent: int, named: list[tuple[list[Any], np.ndarray]], infos: InfoReader) -> PendingStep | None:
    """Return the pending step of an agent, if it has one; raises what malformed names cause."""
    columns = [(name, value) for name, value in named if name[:2] == [_STEP, agent]]
    if not columns:
        return None
    policy, version, step = columns[0][0][4:]
    after = [(name[2], value) for name, value in named if name[:2] == [_AFTER, agent]]
    rewards = [position for position, (is_reward, _) in enumerate(after) if is_reward]
    return PendingStep(
        policy,
        version,
        step,
        {(name[2], infos.key(name[3], value.dtype, value.shape)): value for name, value in columns},
        [value for _, value in after],
        rewards[0] if rewards else None,
    )
