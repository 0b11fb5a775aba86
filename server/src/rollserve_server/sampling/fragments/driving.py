"""Rows that a client drives: its actions take the place of an agent's, and it gets to know what follows."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from rollserve_server.agents import ExternalAgent
from rollserve_server.sampling.encode.fields import Rows, array_field, episode_info_columns, named_tensor_field
from rollserve_server.sampling.protocol import DrivenRows
from rollserve_wire.protobuf import keys_of, length_delimited
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rollserve_server.agents import Agent, PolicyAgents
    from rollserve_server.envs import AgentTurn, Leaf, ManyEnvs, RowEnvs, VectorEnvs
    from rollserve_server.sampling.encode.fields import Part
    from rollserve_server.sampling.fragments.collector import AgentFragmentCollector, FragmentCollector
    from rollserve_server.sampling.fragments.many import ManyFragmentCollector
    from rollserve_server.sampling.protocol import DrivenActions, External

__all__ = ["AgentDriving", "Driving", "ManyDriving"]

_KEYS, _TURNS, _RESULTS = map(keys_of, (pb.DrivenRows.DESCRIPTOR, pb.AgentTurns.DESCRIPTOR, pb.AgentResults.DESCRIPTOR))


class Driving(ABC):
    """A client's acting in the rows of one call.

    Attributes:
        agent: what acts in the rows.
    """

    agent: Agent | PolicyAgents
    _collector: FragmentCollector

    def __init__(self) -> None:
        """Begin without actions."""
        self._actions: deque[DrivenActions] = deque()
        self._outcome = b""

    @property
    def has_actions(self) -> bool:
        """Whether there are actions for the next step."""
        return bool(self._actions)

    def add(self, actions: Iterable[DrivenActions]) -> None:
        """Take actions of further steps."""
        self._actions += actions

    def step(self) -> int:
        """Step all rows with the next actions; return the number of idle ones. Raises as `FragmentCollector.step`."""
        actions = self._actions.popleft()
        self._use(actions)
        self._collector.step()
        if not self._actions:
            self._outcome = self._encoded_outcome()
        return len(actions.idle)

    def shown(self) -> DrivenRows | None:
        """Return what the client gets to know now: None if actions are left.

        Raises:
            EnvFailedError: an environment whose episode begins failed too often.
        """
        collector = self._collector
        if self._actions:
            return None
        outcome, self._outcome = self._outcome, b""
        collector.begin_step()
        return DrivenRows(collector.num_steps - collector.num_steps_left, outcome, *self._encoded_observations())

    @abstractmethod
    def _use(self, actions: DrivenActions) -> None:
        """Act in the next step with these actions."""

    @abstractmethod
    def _encoded_observations(self) -> tuple[bytes, tuple[int, ...]]:
        """Return the observations for the next actions, and how many are wanted."""

    @abstractmethod
    def _encoded_outcome(self) -> bytes:
        """Return what followed the last actions."""

    def _infos(self, key: int, infos: Sequence[Mapping[Any, Any]]) -> list[Part]:
        """Return a field of infos."""
        values = [self._collector.infos.read_reset(info).values for info in infos]
        keys = dict.fromkeys(("episode_infos", key) for row in values for key in row)
        parts: list[Part] = []
        for column in episode_info_columns(values, keys):
            parts += named_tensor_field(key, column.name, column.rows)
        return parts


class AgentDriving(Driving):
    """A client's acting in rows with one agent each."""

    def __init__(self, external: External, collector: AgentFragmentCollector, envs: RowEnvs | VectorEnvs) -> None:
        """Begin without actions."""
        super().__init__()
        self.agent: ExternalAgent = ExternalAgent(envs.action_leaves, external.infos, envs.num_rows)
        self._collector: AgentFragmentCollector = collector
        self._envs = envs
        collector.shows_infos = external.shows_infos

    @override
    def _use(self, actions: DrivenActions) -> None:
        self.agent.use(actions.actions, actions.infos)
        self._collector.idle = actions.idle

    @override
    def _encoded_observations(self) -> tuple[bytes, tuple[int, ...]]:
        parts = _columns(_KEYS["observations"], self._envs.observation_leaves, self._envs.observations)
        parts += array_field(_KEYS["episode_indices"], self._collector.episode_indices())
        parts += array_field(_KEYS["environment_seeds"], self._collector.env_seeds())
        if self._collector.shows_infos:
            parts += self._infos(_KEYS["infos"], self._collector.shown_infos())
        return _joined(parts), (self._envs.num_rows,)

    @override
    def _encoded_outcome(self) -> bytes:
        ended = self._collector.ended
        parts = array_field(_KEYS["rewards"], self._envs.rewards)
        if ended is not None:
            parts += array_field(_KEYS["ended_rows"], ended.rows)
            parts += array_field(_KEYS["terminated"], ended.terminated)
            parts += array_field(_KEYS["truncated"], ended.truncated)
            parts += _columns(_KEYS["last_observations"], self._envs.observation_leaves, ended.last_observations)
            if self._collector.shows_infos:
                parts += self._infos(_KEYS["last_infos"], ended.infos)
        return _joined(parts)


class ManyDriving(Driving):
    """A client's acting for some agents, or all, in rows with many."""

    def __init__(
        self, external: External, collector: ManyFragmentCollector, envs: ManyEnvs, agents: PolicyAgents
    ) -> None:
        """Begin without actions, given what acts in the rows: the client's policies, and others."""
        super().__init__()
        self.agent: PolicyAgents = agents
        self._collector: ManyFragmentCollector = collector
        self._envs, self._shows_infos = envs, external.shows_infos
        # The client's policies, one for each kind of agents: position among all, agents, and what acts.
        self._kinds = [
            (position, policy.agents, policy.agent)
            for position, policy in enumerate(agents.policies)
            if isinstance(policy.agent, ExternalAgent)
        ]
        collector.shown_agents = frozenset(agent for _, its_agents, _ in self._kinds for agent in its_agents)

    @override
    def _use(self, actions: DrivenActions) -> None:
        columns, infos = iter(actions.actions), iter(actions.infos)
        for _, _, agent in self._kinds if actions.actions else ():
            agent.use(
                list(itertools.islice(columns, agent.num_leaves)), list(itertools.islice(infos, len(agent.infos)))
            )

    @override
    def _encoded_observations(self) -> tuple[bytes, tuple[int, ...]]:
        collector = self._collector
        indices = [collector.episode_index(row) for row in range(collector.num_rows)]
        parts = array_field(_KEYS["episode_indices"], np.array(indices))
        parts += array_field(_KEYS["environment_seeds"], collector.env_seeds())
        wanted = []
        for position, agents, _ in self._kinds:
            waiting, infos = collector.waiting(position)
            turns = array_field(_TURNS["agent_positions"], waiting.agents.astype("<u4"))
            turns += array_field(_TURNS["rows"], waiting.rows.astype("<u4"))
            turns += _columns(_TURNS["observations"], self._envs.agent_leaves(agents[0]), waiting.observations)
            if self._shows_infos:
                turns += self._infos(_TURNS["infos"], infos)
            parts += length_delimited(_KEYS["turns"], turns)
            wanted.append(len(infos))
        return _joined(parts), tuple(wanted)

    @override
    def _encoded_outcome(self) -> bytes:
        parts: list[Part] = []
        for _, agents, _ in self._kinds:
            its = [(row, turn) for row, turn in self._collector.turns if turn.agent in agents]
            if its:
                parts += length_delimited(_KEYS["results"], self._results(its))
        return _joined(parts)

    def _results(self, turns: Sequence[tuple[int, AgentTurn]]) -> list[Part]:
        """Return the content of a field of what agents of one kind have got."""
        parts = array_field(_RESULTS["agent_positions"], np.array([turn.agent for _, turn in turns], "<u4"))
        parts += array_field(_RESULTS["rows"], np.array([row for row, _ in turns], "<u4"))
        parts += array_field(_RESULTS["rewards"], np.array([turn.reward for _, turn in turns], "<f8"))
        parts += array_field(_RESULTS["terminated"], np.array([turn.terminated for _, turn in turns]))
        parts += array_field(_RESULTS["truncated"], np.array([turn.truncated for _, turn in turns]))
        ended = [(row, turn) for row, turn in turns if turn.ended]
        if ended:
            last = [turn.columns or self._envs.observation(row, turn.agent) for row, turn in ended]
            columns = [np.stack(column) for column in zip(*last, strict=True)]
            parts += _columns(_RESULTS["last_observations"], self._envs.agent_leaves(ended[0][1].agent), columns)
            if self._shows_infos:
                parts += self._infos(_RESULTS["last_infos"], [turn.info for _, turn in ended])
        return parts


def _columns(key: int, leaves: Sequence[Leaf], columns: Sequence[np.ndarray]) -> list[Part]:
    """Return a field of named tensors, (rows, *shape) for each leaf."""
    parts: list[Part] = []
    for leaf, column in zip(leaves, columns, strict=True):
        parts += named_tensor_field(key, leaf.name, Rows.of(column))
    return parts


def _joined(parts: Sequence[Part]) -> bytes:
    return b"".join(part if isinstance(part, bytes) else part.contiguous().tobytes() for part in parts)
