"""The actions of rows since the resets of their environments."""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rollserve_server.sampling.protocol import RowState

__all__ = ["ActionHistory"]

_MAX_BYTES = 64 << 20
"""Memory that the actions of earlier calls may take; beyond it, the oldest are forgotten."""


class ActionHistory:
    """The actions of M rows, from which environments that failed are restored.

    The history refers to the arrays that the calls write: nothing is copied before it is needed.
    """

    def __init__(self, states: Sequence[RowState]) -> None:
        """Begin with the actions of the states that the rows are restored from."""
        self._before = [[np.array(column) for column in state.actions] for state in states]
        self._calls: deque[Sequence[np.ndarray]] = deque()
        self._num_forgotten = self._num_bytes = 0
        # For each row: the call in which its environment was reset, and the step of that call.
        self._reset_calls, self._reset_steps = np.zeros((2, len(states)), np.int64)

    def begin_call(self, columns: Sequence[np.ndarray]) -> None:
        """Begin a call, given for each leaf the array (T, M, *A) of its actions; empty if they are not kept."""
        if not columns:
            return
        self._calls.append(columns)
        self._num_bytes += sum(column.nbytes for column in columns)
        oldest = self._reset_calls.min()
        while len(self._calls) > 1 and (self._num_forgotten < oldest or self._num_bytes > _MAX_BYTES):
            self._num_bytes -= sum(column.nbytes for column in self._calls.popleft())
            self._num_forgotten += 1

    def shorten(self, columns: Sequence[np.ndarray]) -> None:
        """Replace the call's arrays by shorter ones; empty if they are not kept."""
        if not columns:
            return
        before = self._calls.pop()
        self._calls.append(columns)
        self._num_bytes += sum(column.nbytes for column in columns) - sum(column.nbytes for column in before)

    def reset(self, rows: int | NDArray[np.int64], step: int) -> None:
        """Forget the rows' actions so far: they were reset before this step of the call."""
        self._reset_calls[rows] = self._num_forgotten + len(self._calls) - 1
        self._reset_steps[rows] = step
        for row in (rows,) if isinstance(rows, int) else rows.tolist():
            self._before[row] = []

    def since_reset(self, row: int, step: int, num_steps: int) -> list[np.ndarray] | None:
        """Return a row's actions from its reset up to a step of the call.

        Args:
            row: index of the row.
            step: number of the step, exclusive.
            num_steps: number of actions that there must be.

        Returns:
            For each leaf (num_steps, *A); None if some of the actions are forgotten.
        """
        first = int(self._reset_calls[row]) - self._num_forgotten
        if not self._calls or first < 0:
            return None
        parts: list[Sequence[np.ndarray]] = [self._before[row]] if self._before[row] else []
        for number, columns in enumerate(itertools.islice(self._calls, first, None), first):
            start = int(self._reset_steps[row]) if number == first else 0
            stop = step if number == len(self._calls) - 1 else None
            parts.append([column[start:stop, row] for column in columns])
        joined = [np.concatenate(leaf) for leaf in zip(*parts, strict=True)]
        return joined if len(joined[0]) == num_steps else None
