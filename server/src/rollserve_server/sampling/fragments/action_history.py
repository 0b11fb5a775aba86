"""What the environments of rows were given since their resets, from call to call."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve_server.sampling.protocol.fragments import RowState

__all__ = ["ActionHistory"]

_MOST_BYTES = 64 << 20
"""How much the actions of calls before may take: the oldest are forgotten."""


class ActionHistory:
    """The actions of M rows, with which environments that fail can be brought to where they stood.

    They stand where the calls have written them: nothing is copied until it is asked for.
    """

    def __init__(self, states: Sequence[RowState]) -> None:
        """Begins with what rows are made from."""
        self._before = [[np.array(column) for column in state.actions] for state in states]
        self._calls: deque[Sequence[np.ndarray]] = deque()
        self._num_forgotten = self._num_bytes = 0
        # Of each row: in which call its environment was reset, and at which step of it.
        self._reset_calls, self._reset_steps = np.zeros((2, len(states)), np.int64)

    def begin_call(self, columns: Sequence[np.ndarray]) -> None:
        """Takes where the call's actions will stand: for each leaf (T, M, *A); nothing if they are not kept."""
        if not columns:
            return
        self._calls.append(columns)
        self._num_bytes += sum(column.nbytes for column in columns)
        oldest = self._reset_calls.min()
        while len(self._calls) > 1 and (self._num_forgotten < oldest or self._num_bytes > _MOST_BYTES):
            self._num_bytes -= sum(column.nbytes for column in self._calls.popleft())
            self._num_forgotten += 1

    def shorten(self, columns: Sequence[np.ndarray]) -> None:
        """Takes where the call's actions stand instead, which has fewer steps; nothing if they are not kept."""
        if not columns:
            return
        before = self._calls.pop()
        self._calls.append(columns)
        self._num_bytes += sum(column.nbytes for column in columns) - sum(column.nbytes for column in before)

    def reset(self, rows: int | NDArray[np.int64], step: int) -> None:
        """Takes in that rows were reset before a step of the call."""
        self._reset_calls[rows] = self._num_forgotten + len(self._calls) - 1
        self._reset_steps[rows] = step
        for row in np.atleast_1d(rows).tolist():
            self._before[row] = []

    def since_reset(self, row: int, step: int, num_steps: int) -> list[np.ndarray] | None:
        """What a row was given since its reset, before a step of the call.

        Args:
            row: which row.
            step: before which step.
            num_steps: how many actions those are.

        Returns:
            For each leaf (num_steps, *A), or None if they are not known any more.
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
