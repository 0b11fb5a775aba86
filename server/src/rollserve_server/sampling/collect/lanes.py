"""A policy of an environment with many agents: its lanes, one for each agent of each row that it may act for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.sampling.collect.acting import act
from rollserve_server.sampling.collect.inputs import mask_input
from rollserve_server.sampling.collect.noise import LaneNoise
from rollserve_server.sampling.collect.recurrent_states import RecurrentStates
from rollserve_server.sampling.record.lives import LifeRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from numpy.typing import NDArray

    from rollserve_server.agents import BuiltPolicy
    from rollserve_server.envs import ManyEnvs
    from rollserve_server.errors import AgentFailedError, EpisodeFailedError
    from rollserve_server.sampling.record.columns import ColumnKey
    from rollserve_server.sampling.record.infos import InfoReader

__all__ = ["PolicyLanes"]


class PolicyLanes:
    """The lanes of one version of a policy. All agents of all rows that act in a step are one evaluation.

    Attributes:
        recorder: recorder of the lives in the lanes.
        states: recurrent states of the lanes.
    """

    def __init__(self, policy: BuiltPolicy, envs: ManyEnvs, reader: InfoReader, buffer_bytes: int) -> None:
        agent, num_rows = policy.agent, envs.num_rows
        self._agent, self._envs, self._num_agents = agent, envs, len(envs.agents)
        self._of_agent = {position: number for number, position in enumerate(policy.agents)}
        num_lanes = num_rows * len(policy.agents)
        # For each lane, its place in the environments' columns.
        self._places = (np.arange(num_rows)[:, np.newaxis] * self._num_agents + np.array(policy.agents)).ravel()
        self._first = policy.agents[0]  # all agents of a policy have the same columns
        self._num_places = policy.num_places
        self._noise = LaneNoise(num_lanes, agent)
        self.states = RecurrentStates(num_lanes, agent)
        self._mask = mask_input(agent, policy.num_places)
        self._infos: dict[int, Mapping[Any, Any]] = {}
        self.recorder = LifeRecorder(num_lanes, _column_keys(envs, self._first, policy, reader), reader, buffer_bytes)
        self._acting: list[int] = []
        self._unused_noise = np.zeros((policy.num_places, agent.noise_width))
        if agent.factors is not None:
            self._unused_noise[:, 0] = agent.factors[0]

    def lane(self, row: int, agent: int) -> int:
        """Return the lane of an agent of a row."""
        return row * len(self._of_agent) + self._of_agent[agent]

    def row_and_agent(self, lane: int) -> tuple[int, int]:
        """Return the row and the agent of a lane."""
        row, agent = divmod(int(self._places[lane]), self._num_agents)
        return row, agent

    def begin(self, row: int, root_seed: int, episode_index: int) -> None:
        """Begin an episode in the lanes of a row."""
        for agent in self._of_agent:
            self._noise.begin(self.lane(row, agent), root_seed, episode_index, agent)

    def await_action(self, lane: int, info: Mapping[Any, Any]) -> None:
        """Let a lane act in the next step; `info` came with its observation."""
        self._acting.append(lane)
        if self._mask is not None:
            self._infos[lane] = info

    def forget(self, row: int) -> None:
        """Let no lane of a row act, and forget its lives."""
        lanes = {self.lane(row, agent) for agent in self._of_agent}
        self._acting = [lane for lane in self._acting if lane not in lanes]
        for lane in lanes:
            self.recorder.abandon(lane)

    def observations(self, lane: int) -> list[np.ndarray]:
        """Return a copy of the last observation of a lane, for each leaf."""
        return [column[self._places[lane]].copy() for column in self._envs.observations(self._first)]

    def act(
        self, steps: NDArray[np.int64], located: Callable[[AgentFailedError, int, int], EpisodeFailedError]
    ) -> Iterator[tuple[int, int, Any]]:
        """Act in all lanes that wait for it, record what was decided, and yield rows, agents and actions.

        Args:
            steps: (M,), the environment step that each row makes.
            located: returns an error of the agent with the episode, given its row and its agent.

        Raises:
            AgentFailedError: the agent failed.
        """
        if not self._acting:
            return
        lanes = np.array(sorted(self._acting))
        self._acting = []
        count = len(lanes)
        slots = np.minimum(np.arange(self._num_places), count - 1)  # the last one is repeated
        padded = lanes[slots]
        observations = [column[self._places[padded]] for column in self._envs.observations(self._first)]
        states = [column[padded] for column in self.states.columns]
        noise = self._unused_noise.copy()
        noise[:count] = self._noise.next(lanes)
        if self._mask is not None:
            self._mask.read_rows([(slot, self._infos.pop(lane)) for slot, lane in enumerate(lanes.tolist())])
        recorder = self.recorder
        recorder.advance(lanes)
        recorder.write("observations", lanes, [column[:count] for column in observations])
        recorder.write("states", lanes, [column[:count] for column in states])

        def at_lane(error: AgentFailedError) -> EpisodeFailedError:
            return located(error, *self.row_and_agent(int(lanes[min(error.row, count - 1)])))

        actions, infos = act(self._agent, self._mask, observations, noise, states, lambda: range(count), at_lane)
        recorder.write("actions", lanes, [column[:count] for column in actions])
        recorder.write("agent_infos", lanes, [column[:count] for column in infos.values()])
        for column, after in zip(self.states.columns, states, strict=True):
            column[lanes] = after[:count]
        # Copied, because environments may keep their actions.
        values = self._envs.actions(self._first, [column[:count].copy() for column in actions])
        for lane, value in zip(lanes.tolist(), values, strict=True):
            row, agent = self.row_and_agent(lane)
            recorder.life(lane).environment_steps.append(int(steps[row]))
            yield row, agent, value

    def take_reward(self, lane: int, reward: float) -> None:
        """Record the reward of the current step of a lane."""
        self.recorder.write_reward(lane, reward)
        if self._agent.reward_state is not None:
            self.states.columns[self._agent.reward_state][lane] = reward


def _column_keys(envs: ManyEnvs, agent: int, policy: BuiltPolicy, reader: InfoReader) -> Iterator[ColumnKey]:
    """Yield the keys of the columns that every step has."""
    for leaf in envs.agent_leaves(agent):
        yield "observations", reader.key(leaf.name, leaf.dtype, leaf.shape)
    for leaf in envs.action_leaves[agent]:
        yield "actions", reader.key(leaf.name, leaf.dtype, leaf.shape)
    yield "rewards", reader.key("", np.dtype(np.float64), ())
    for info in policy.agent.infos:
        yield "agent_infos", reader.key(info.name, info.dtype, info.shape)
    for name, initial in policy.agent.states:
        yield "states", reader.key(name, initial.dtype, initial.shape)
