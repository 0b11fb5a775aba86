"""A policy of an environment with many agents: its lanes, one for each agent of each row that it may act for."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rollserve_server.agents import PopulationAgent
from rollserve_server.sampling.collect.acting import RecurrentStates, act, column_keys, mask_input
from rollserve_server.sampling.collect.noise import LaneNoise, unused_noise
from rollserve_server.sampling.record.lives import LifeRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from rollserve_server.agents import BuiltPolicy
    from rollserve_server.envs import ManyEnvs
    from rollserve_server.errors import AgentFailedError, EpisodeFailedError
    from rollserve_server.sampling.record.columns import ColumnBuffer
    from rollserve_server.sampling.record.infos import InfoReader

__all__ = ["PolicyLanes", "Waiting"]


class Waiting(NamedTuple):
    """Agents of a policy that wait for their next actions, by row and agent.

    Attributes:
        rows, agents: (K,), where they are.
        observations: for each leaf (K, *O).
    """

    rows: NDArray[np.int64]
    agents: NDArray[np.int64]
    observations: Sequence[np.ndarray]


class PolicyLanes:
    """The lanes of one version of a policy. All agents of all rows that act in a step are one evaluation.

    Attributes:
        recorder: recorder of the lives in the lanes.
        states: recurrent states of the lanes.
        acted: rows and agents (K,) that acted in the last step, and for each leaf of the action space (K, *A).
    """

    acted: tuple[NDArray[np.int64], NDArray[np.int64], Sequence[np.ndarray]]

    def __init__(
        self,
        policy: BuiltPolicy,
        envs: ManyEnvs,
        reader: InfoReader,
        buffer_bytes: int,
        keep: Callable[[ColumnBuffer, int], object] = lambda buffer, num_steps: None,
    ) -> None:
        """Make lanes in which nobody acts; see `LifeRecorder` about the last two arguments."""
        agent, num_rows = policy.agent, envs.num_rows
        self._agent, self._envs, self._num_agents = agent, envs, len(envs.agents)
        self._of_agent = {position: number for number, position in enumerate(policy.agents)}
        num_lanes = num_rows * len(policy.agents)
        # For each lane, its place in the environments' columns.
        self._places = (np.arange(num_rows)[:, np.newaxis] * self._num_agents + np.array(policy.agents)).ravel()
        self._first = policy.agents[0]  # all agents of a policy have the same columns
        self._num_places, self._row_places = policy.num_places, policy.row_places
        self._noise = LaneNoise(num_lanes, agent)
        self.states = RecurrentStates(num_lanes, agent)
        self._mask = mask_input(agent, policy.num_places)
        self._infos: dict[int, Mapping[Any, Any]] = {}
        keys = column_keys(agent, reader, envs.agent_leaves(self._first), envs.action_leaves[self._first])
        self.recorder = LifeRecorder(num_lanes, keys, reader, buffer_bytes, keep)
        self._acting: list[int] = []
        self._unused_noise = unused_noise(policy.num_places, agent)

    def lane(self, row: int, agent: int) -> int:
        """Return the lane of an agent of a row."""
        return row * len(self._of_agent) + self._of_agent[agent]

    def row_and_agent(self, lane: int) -> tuple[int, int]:
        """Return the row and the agent of a lane."""
        row, agent = divmod(int(self._places[lane]), self._num_agents)
        return row, agent

    @property
    def may_mix_members(self) -> bool:
        """Whether rows may act as different members of a population at the same time."""
        return not isinstance(self._agent, PopulationAgent) or self._agent.side_by_side

    def assign(self, row: int, member: int) -> None:
        """Let the agents of a row act as a member, if the policy is a population's."""
        if isinstance(self._agent, PopulationAgent):
            for place in range(row * self._row_places, (row + 1) * self._row_places):
                self._agent.assign(place, member)

    @property
    def reward_state(self) -> int | None:
        """Position of the recurrent state that is the last reward; None if there is none."""
        return self._agent.reward_state

    def begin(self, row: int, root_seed: int, episode_index: int, num_acted: Mapping[int, int]) -> None:
        """Begin an episode in the lanes of a row, after so many actions of each agent in it."""
        for agent in self._of_agent:
            self._noise.begin(self.lane(row, agent), root_seed, episode_index, agent, num_acted.get(agent, 0))

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

    def waiting(self) -> Waiting:
        """Return the agents that act in the next step, and their observations."""
        places = self._places[sorted(self._acting)]
        observations = [column[places] for column in self._envs.observations(self._first)]
        rows, agents = np.divmod(places, self._num_agents)
        return Waiting(rows, agents, observations)

    def act(
        self, located: Callable[[AgentFailedError, int, int], EpisodeFailedError]
    ) -> Iterator[tuple[int, int, Any]]:
        """Act in all lanes that wait for it, record what was decided, and yield rows, agents and actions.

        Args:
            located: returns an error of the agent with the episode, given its row and its agent.

        Raises:
            AgentFailedError: the agent failed.
        """
        if not self._acting:
            nobody = np.empty(0, np.int64)
            self.acted = nobody, nobody, ()
            return
        lanes = np.array(sorted(self._acting))
        self._acting = []
        slots = self._slots(lanes)
        padded = np.full(self._num_places, lanes[-1])
        padded[slots] = lanes
        observations = [column[self._places[padded]] for column in self._envs.observations(self._first)]
        states = self.states.of_rows(padded)
        noise = self._unused_noise.copy()
        noise[slots] = self._noise.next(lanes)

        def used() -> list[int]:
            places: list[int] = np.arange(self._num_places)[slots].tolist()
            return places

        if self._mask is not None:
            self._mask.read_rows(zip(used(), map(self._infos.pop, lanes.tolist()), strict=True))
        recorder = self.recorder
        recorder.advance(lanes)
        recorder.write("observations", lanes, [column[slots] for column in observations])
        recorder.write("states", lanes, [column[slots] for column in states])

        def at_lane(error: AgentFailedError) -> EpisodeFailedError:
            return located(error, *self.row_and_agent(int(padded[error.row])))

        actions, infos = act(self._agent, self._mask, observations, noise, states, used, at_lane)
        actions = [column[slots] for column in actions]
        recorder.write("actions", lanes, actions)
        recorder.write("agent_infos", lanes, [column[slots] for column in infos.values()])
        for column, after in zip(self.states.columns, states, strict=True):
            column[lanes] = after[slots]
        # Copied, because environments may keep their actions.
        values = self._envs.actions(self._first, [column.copy() for column in actions], len(lanes))
        rows, agents = np.divmod(self._places[lanes], self._num_agents)
        self.acted = rows, agents, actions
        yield from zip(rows.tolist(), agents.tolist(), values, strict=True)

    def _slots(self, lanes: NDArray[np.int64]) -> slice | NDArray[np.int64]:
        """Return the places in an evaluation where lanes act: the first ones; in a population, places of their rows."""
        if not isinstance(self._agent, PopulationAgent):
            return slice(len(lanes))
        rows = lanes // len(self._of_agent)
        slots: NDArray[np.int64] = rows * self._row_places + np.arange(len(lanes)) - np.searchsorted(rows, rows)
        return slots

    def take_reward(self, lane: int, reward: float) -> None:
        """Record the reward of the current step of a lane."""
        self.recorder.write_reward(lane, reward)
        self.states.take_rewards(reward, lane)
