"""What agents remember of rows. Agents are shared; what steps rows keeps their states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve_server.agents import StateSpec

__all__ = ["RecurrentState", "RowStates"]

RecurrentState = tuple[tuple[str, np.ndarray], ...]
"""What an agent remembers of one row: its states, with their names."""


class RowStates:
    """An agent's states of M rows.

    Attributes:
        columns: for each state (M, *S), as `Agent.act` takes and leaves them; empty if there are none.
    """

    def __init__(self, num_rows: int, specs: Sequence[StateSpec], before: Sequence[RecurrentState] = ()) -> None:
        """Begins with the initial states.

        Args:
            num_rows: M.
            specs: the agent's states.
            before: what an agent remembers of each row, perhaps another one. Where its states are of the same names,
                types and shapes as these, they go on.
        """
        self._specs = specs
        self._num_rows = num_rows
        self.columns = [np.repeat(spec.initial[np.newaxis], num_rows, axis=0) for spec in specs]
        wanted = {spec.name: (spec.initial.dtype, spec.initial.shape) for spec in specs}
        for row, recurrent_state in enumerate(before):
            if wanted == {name: (state.dtype, state.shape) for name, state in recurrent_state}:
                states = dict(recurrent_state)
                for column, spec in zip(self.columns, specs, strict=True):
                    column[row] = states[spec.name]

    def begin(self, rows: int | Sequence[int] | NDArray[np.int64]) -> None:
        """Gives rows the initial states, as at an episode's start."""
        for column, spec in zip(self.columns, self._specs, strict=True):
            column[rows] = spec.initial

    def recurrent_states(self) -> list[RecurrentState]:
        """What is remembered of each row, to keep."""
        if not self.columns:
            return [()] * self._num_rows
        names = [spec.name for spec in self._specs]
        copies = [column.copy() for column in self.columns]
        return [tuple(zip(names, (copy[row] for copy in copies), strict=True)) for row in range(self._num_rows)]
