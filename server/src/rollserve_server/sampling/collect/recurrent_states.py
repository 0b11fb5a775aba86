"""Recurrent states of agents. Agents are shared, so the code that steps rows keeps their states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve_server.agents import Agent, StateSpec
    from rollserve_server.sampling.protocol.fragments import RecurrentState

__all__ = ["RecurrentStates"]


class RecurrentStates:
    """An agent's recurrent states of M rows.

    Attributes:
        columns: for each state (M, *S), read and updated by `Agent.act`; empty if the agent has no states.
    """

    def __init__(self, num_rows: int, agent: Agent | None, previous: Sequence[RecurrentState] = ()) -> None:
        """Begin with the initial states, or go on with previous ones.

        Args:
            num_rows: M.
            agent: agent that has the states; None for no states.
            previous: for each row, the states of an agent, perhaps another one. They are taken over where their names,
                dtypes and shapes match the agent's.
        """
        self._agent = agent
        self._num_rows = num_rows
        specs = self._specs
        self.columns = [np.repeat(spec.initial[np.newaxis], num_rows, axis=0) for spec in specs]
        kinds = {spec.name: (spec.initial.dtype, spec.initial.shape) for spec in specs}
        for row, recurrent_state in enumerate(previous if kinds else ()):
            if kinds == {name: (state.dtype, state.shape) for name, state in recurrent_state}:
                states = dict(recurrent_state)
                for column, spec in zip(self.columns, specs, strict=True):
                    column[row] = states[spec.name]

    def take_rewards(self, rewards: np.ndarray) -> None:
        """Keep the rewards (M,) of a step for agents that get them at the next one."""
        if self._agent is not None and self._agent.reward_state is not None:
            self.columns[self._agent.reward_state][...] = rewards

    @property
    def _specs(self) -> Sequence[StateSpec]:
        # Read at each use: members of a population may have initial states of their own.
        return self._agent.states if self._agent else ()

    def begin(self, rows: int | Sequence[int] | NDArray[np.int64]) -> None:
        """Set the agent's initial states in rows that begin an episode."""
        for column, spec in zip(self.columns, self._specs, strict=True):
            column[rows] = spec.initial

    def of_row(self, row: int) -> Sequence[np.ndarray]:
        """Return a copy of each state of a row, (*S)."""
        return [column[row].copy() for column in self.columns] if self.columns else ()

    def of_rows(self, rows: NDArray[np.int64]) -> Sequence[np.ndarray]:
        """Return a copy of each state of some rows, (rows, *S)."""
        return [column[rows] for column in self.columns]

    def copies(self) -> list[RecurrentState]:
        """Return a copy of each row's states."""
        if not self.columns:
            return [()] * self._num_rows
        names = [spec.name for spec in self._specs]
        copies = [column.copy() for column in self.columns]
        return [tuple(zip(names, (copy[row] for copy in copies), strict=True)) for row in range(self._num_rows)]
