"""Rows that a client drives: its actions take the place of an agent's, and it gets to know what follows."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from rollserve_server.agents import Agent
from rollserve_server.sampling.encode.fields import Rows, array_field, episode_info_columns, named_tensor_field
from rollserve_server.sampling.protocol import DrivenRows
from rollserve_wire.protobuf import keys_of
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rollserve_server.agents import Decision
    from rollserve_server.envs import Leaf, RowEnvs, VectorEnvs
    from rollserve_server.sampling.encode.fields import Part
    from rollserve_server.sampling.fragments.collector import AgentFragmentCollector
    from rollserve_server.sampling.protocol import DrivenActions, External

__all__ = ["Driving"]

_KEYS = keys_of(pb.DrivenRows.DESCRIPTOR)


class Driving:
    """A client's acting in the rows of one call.

    Attributes:
        agent: what acts in the rows.
    """

    def __init__(self, external: External, collector: AgentFragmentCollector, envs: RowEnvs | VectorEnvs) -> None:
        """Begin without actions."""
        self.agent = _ExternalAgent(external, envs)
        self._collector, self._envs = collector, envs
        collector.shows_infos = external.shows_infos
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
        self.agent.use(actions)
        self._collector.idle = actions.idle
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
        return DrivenRows(collector.num_steps - collector.num_steps_left, self._encoded_observations() + outcome)

    def _encoded_observations(self) -> bytes:
        parts = _columns("observations", self._envs.observation_leaves, self._envs.observations)
        parts += array_field(_KEYS["episode_indices"], self._collector.episode_indices())
        parts += array_field(_KEYS["environment_seeds"], self._collector.env_seeds())
        if self._collector.shows_infos:
            parts += self._infos("infos", self._collector.shown_infos())
        return _joined(parts)

    def _encoded_outcome(self) -> bytes:
        ended = self._collector.ended
        parts = array_field(_KEYS["rewards"], self._envs.rewards)
        if ended is not None:
            parts += array_field(_KEYS["ended_rows"], ended.rows)
            parts += array_field(_KEYS["terminated"], ended.terminated)
            parts += array_field(_KEYS["truncated"], ended.truncated)
            parts += _columns("last_observations", self._envs.observation_leaves, ended.last_observations)
            if self._collector.shows_infos:
                parts += self._infos("last_infos", ended.infos)
        return _joined(parts)

    def _infos(self, field: str, infos: Sequence[Mapping[Any, Any]]) -> list[Part]:
        """Return a field of infos of rows."""
        values = [self._collector.infos.read_reset(info).values for info in infos]
        keys = dict.fromkeys(("episode_infos", key) for row in values for key in row)
        parts: list[Part] = []
        for column in episode_info_columns(values, keys):
            parts += named_tensor_field(_KEYS[field], column.name, column.rows)
        return parts


class _ExternalAgent(Agent):
    """An agent whose actions and infos come from outside, for one step at a time."""

    def __init__(self, external: External, envs: RowEnvs | VectorEnvs) -> None:
        self.noise_width = 0
        self.infos = external.infos
        self._actions = [(leaf.dtype, (envs.num_rows, *leaf.shape)) for leaf in envs.action_leaves]
        self._infos = [(info.name, info.dtype, (envs.num_rows, *info.shape)) for info in external.infos]
        self._decision: tuple[Sequence[np.ndarray], Mapping[str, np.ndarray]] = ((), {})

    def use(self, given: DrivenActions) -> None:
        """Take the actions and infos of the next step, whose sizes have been checked."""
        actions = [
            np.frombuffer(data, dtype).reshape(shape)
            for (dtype, shape), data in zip(self._actions, given.actions, strict=True)
        ]
        infos = {
            name: np.frombuffer(data, dtype).reshape(shape)
            for (name, dtype, shape), data in zip(self._infos, given.infos, strict=True)
        }
        self._decision = actions, infos

    @override
    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        pass

    @override
    def act(self, observations: Sequence[np.ndarray], noise: np.ndarray, states: Sequence[np.ndarray] = ()) -> Decision:
        return self._decision


def _columns(field: str, leaves: Sequence[Leaf], columns: Sequence[np.ndarray]) -> list[Part]:
    """Return a field of named tensors, (rows, *shape) for each leaf."""
    parts: list[Part] = []
    for leaf, column in zip(leaves, columns, strict=True):
        parts += named_tensor_field(_KEYS[field], leaf.name, Rows.of(column))
    return parts


def _joined(parts: Sequence[Part]) -> bytes:
    return b"".join(part if isinstance(part, bytes) else part.contiguous().tobytes() for part in parts)
