"""The step of rows with one agent each, whatever is kept of it and wherever rows begin: observe, act, record."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
from typing_extensions import override

from rollserve_server.sampling.collect.acting import NUMBER, RecurrentStates, act, column_keys, mask_input

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve_server.agents import Agent
    from rollserve_server.envs import Leaf, RowEnvs, VectorEnvs
    from rollserve_server.errors import AgentFailedError, EpisodeFailedError
    from rollserve_server.sampling.collect.acting import MaskInput
    from rollserve_server.sampling.protocol import RecurrentState
    from rollserve_server.sampling.record.columns import ColumnKey, ColumnWriter
    from rollserve_server.sampling.record.infos import InfoKey, InfoReader

__all__ = ["JointRows", "SingleRows"]

_Envs = TypeVar("_Envs", bound="RowEnvs | VectorEnvs")
_Infos = TypeVar("_Infos")
_Ending = tuple[Sequence[np.ndarray], Sequence[np.ndarray], float]


class _Outcome(NamedTuple):
    """A column of what environments make of actions.

    Attributes:
        name: name of the column.
        leaves: its leaves.
        values_of: returns the values of the environments' last step, (M, *shape) for each leaf.
    """

    name: str
    leaves: Sequence[Leaf | InfoKey]
    values_of: Callable[[RowEnvs | VectorEnvs], Sequence[np.ndarray]]


def _outcomes(envs: RowEnvs | VectorEnvs) -> Iterator[_Outcome]:
    """Yield the columns of what environments make of actions, in the order in which messages have them."""
    if envs.environment_action_leaves:
        yield _Outcome("env_actions", envs.environment_action_leaves, lambda envs: envs.environment_actions)
    yield _Outcome("rewards", (NUMBER,), lambda envs: (envs.rewards,))
    if envs.raw_rewards is not envs.rewards:
        yield _Outcome("raw_rewards", (NUMBER,), lambda envs: (envs.raw_rewards,))


class _Rows(ABC, Generic[_Envs, _Infos]):
    """M rows in which an agent acts. Callers begin episodes, step the environments between `act` and `record`, and end.

    Attributes:
        envs: the environments.
        columns: what steps are written to; None if nothing is recorded.
        states: the agent's recurrent states.
        total_rewards: (M,), the sum of the raw rewards of each row's episode so far.
    """

    def __init__(self, envs: _Envs, no_infos: _Infos) -> None:
        """Begin without an agent."""
        self.envs = envs
        self.columns: ColumnWriter | None = None
        self.total_rewards = np.zeros(envs.num_rows)
        # What is recorded of a step after the agent has acted.
        self._outcomes: Sequence[_Outcome] = ()
        # The infos that came with the present observations.
        self._infos: _Infos = no_infos

    def column_keys(self, agent: Agent, reader: InfoReader) -> Iterator[ColumnKey]:
        """Yield the keys of the columns that every step of an agent has; see `acting.column_keys`."""
        self._outcomes = tuple(_outcomes(self.envs))
        outcomes = [(name, leaves) for name, leaves, _ in self._outcomes]
        return column_keys(agent, reader, self.envs.observation_leaves, self.envs.action_leaves, outcomes)

    def set_agent(self, agent: Agent, previous: Sequence[RecurrentState] = ()) -> None:
        """Let an agent act from now on; see `RecurrentStates` about `previous`."""
        self._agent = agent
        self.states = RecurrentStates(self.envs.num_rows, agent, previous)
        self._mask = mask_input(agent, self.envs.num_rows)
        self.read_masks(self._infos)

    def begin(self, rows: int | Sequence[int] | NDArray[np.int64]) -> None:
        """Begin episodes in rows: initial states, and no rewards yet."""
        self.states.begin(rows)
        self.total_rewards[rows] = 0.0

    def act(
        self,
        noise: np.ndarray,
        rows: Callable[[], Sequence[int]],
        located: Callable[[AgentFailedError], EpisodeFailedError],
    ) -> Sequence[np.ndarray]:
        """Record the present observations and what the agent decides, and return its actions, (M, *A) for each leaf.

        Args:
            noise: (M, K), random numbers of the rows' actions.
            rows: returns the rows in use; called only after an error. Errors in other rows are ignored.
            located: returns an error of a row with the episode that it was raised in. It is not kept: the caller would
                be in a cycle, whose buffers and files only a collection frees.

        Raises:
            AgentFailedError: the agent failed in a row in use.
        """
        observations, states, columns = self.envs.observations, self.states.columns, self.columns
        if columns is not None:
            columns.write("observations", observations)
            if states:
                columns.write("states", states)
        actions, infos = act(self._agent, self._mask, observations, noise, states, rows, located)
        if columns is not None:
            columns.write("actions", actions)
            columns.write("agent_infos", infos.values())
        return actions

    def record(self, infos: _Infos) -> None:
        """Record what followed the actions, and read the masks of the observations, given the step's infos."""
        envs, columns = self.envs, self.columns
        self.read_masks(infos)
        if self.states.columns:
            self.states.take_rewards(envs.rewards)
        self.total_rewards += envs.raw_rewards
        if columns is not None:
            for name, _, values_of in self._outcomes:
                columns.write(name, values_of(envs))

    def add_rewards(self, rows: int | NDArray[np.bool_]) -> None:
        """Add the raw rewards of the last step, which is not recorded, of some rows."""
        self.total_rewards[rows] += self.envs.raw_rewards[rows]

    def ending(self, row: int) -> _Ending:
        """Return what an episode or fragment ends with: the last observations and states, and the sum of rewards."""
        return self._last_observations(row), self.states.of_row(row), float(self.total_rewards[row])

    def read_masks(self, infos: _Infos) -> None:
        """Read the masks of all rows from the infos that came with the present observations."""
        self._infos = infos
        if self._mask is not None:
            self._read(self._mask, infos)

    @abstractmethod
    def shown_infos(self) -> Mapping[int, Mapping[Any, Any]]:
        """Return the infos that came with the present observations, by row; rows may be missing."""

    @abstractmethod
    def _read(self, mask: MaskInput, infos: _Infos) -> None:
        """Let a mask be read from infos of all rows."""

    @abstractmethod
    def _last_observations(self, row: int) -> Sequence[np.ndarray]:
        """Return copies of the observations after a row's last step."""


class SingleRows(_Rows["RowEnvs", list[tuple[int, Mapping[Any, Any]]]]):
    """Rows that are stepped one by one."""

    def __init__(self, envs: RowEnvs) -> None:
        super().__init__(envs, [])

    def read_mask(self, row: int, info: Mapping[Any, Any]) -> None:
        """Read the mask of a row whose environment was reset, from its infos."""
        self._infos.append((row, info))
        if self._mask is not None:
            self._mask.read_row(row, info)

    @override
    def shown_infos(self) -> Mapping[int, Mapping[Any, Any]]:
        return dict(self._infos)

    def _read(self, mask: MaskInput, infos: list[tuple[int, Mapping[Any, Any]]]) -> None:
        mask.read_rows(infos)

    def _last_observations(self, row: int) -> Sequence[np.ndarray]:
        return tuple(column[row].copy() for column in self.envs.observations)


class JointRows(_Rows["VectorEnvs", Mapping[str, Any]]):
    """Rows that are stepped together."""

    def __init__(self, envs: VectorEnvs) -> None:
        super().__init__(envs, {})

    @override
    def shown_infos(self) -> Mapping[int, Mapping[Any, Any]]:
        fresh, others = np.flatnonzero(self.envs.fresh), np.flatnonzero(~self.envs.fresh)
        return {
            **dict(self.envs.step_infos(self._infos, others.tolist())),
            **self.envs.reset_infos(self._infos, fresh),
        }

    def _read(self, mask: MaskInput, infos: Mapping[str, Any]) -> None:
        mask.read_vector(self.envs, infos)

    def _last_observations(self, row: int) -> Sequence[np.ndarray]:
        return [column[0] for column in self.envs.last_observations(np.array([row]))]
