"""The writer of a column buffer: writes steps of all rows, one after the other."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from rollserve_server.sampling.record.stacks import StackColumn, StackRecorder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rollserve_server.sampling.record.columns import ColumnBuffer, ColumnKey

__all__ = ["BufferWriter"]


class BufferWriter:
    """Writes a column buffer from its first step on.

    Attributes:
        buffer: the buffer.
        num_steps: number of steps that it has room for, if stacks continue.
        step: number of the current step.
        begins: (M,) bool, rows whose episode or fragment begins with the current step; false after each step.
        in_use: (M,) bool, rows whose steps will be read.
    """

    def __init__(
        self, buffer: ColumnBuffer, num_steps: int, begins: NDArray[np.bool_], in_use: NDArray[np.bool_]
    ) -> None:
        self.buffer = buffer
        self.num_steps = num_steps
        self.step = 0
        self.begins, self.in_use = begins, in_use
        self._stacks = {
            key: StackRecorder(column) for key, column in buffer.columns.items() if isinstance(column, StackColumn)
        }
        self._set_groups()

    @property
    def is_full(self) -> bool:
        """Whether there may be no room for another step."""
        return self.step >= self.num_steps or any(stacks.is_full for stacks in self._stacks.values())

    def write(self, group: str, values: Iterable[np.ndarray]) -> None:
        """Write the current step of every row, (M, *shape) for each column of the group."""
        for column, value in zip(self._groups.get(group, ()), values, strict=True):
            if isinstance(column, StackRecorder):
                column.write(self.step, value, self.begins, self.in_use)
            else:
                column[:, self.step] = value

    def written(self, group: str) -> list[np.ndarray]:
        """Return what was written as the current step of every row, (M, *shape) for each column of the group."""
        return [
            column.column.step(self.step) if isinstance(column, StackRecorder) else column[:, self.step]
            for column in self._groups.get(group, ())
        ]

    def advance(self) -> Collection[ColumnKey]:
        """Go on to the next step; return the keys of columns that have turned out to be no stacks."""
        self.step += 1
        if not self._stacks:
            return ()
        self.begins[:] = False
        for stacks in self._stacks.values():
            stacks.advance()
        return [key for key, stacks in self._stacks.items() if stacks.are_no_stacks]

    def replace_stacks(self, key: ColumnKey, column: np.ndarray) -> None:
        """Replace a column of stacks by an array (M, steps, *shape), which gets what was written so far."""
        stacks = self._stacks.pop(key).column
        for step in range(self.step):
            column[:, step] = stacks.step(step)
        self.buffer.columns[key] = column
        self._set_groups()

    def _set_groups(self) -> None:
        self._groups: dict[str, list[np.ndarray | StackRecorder]] = {}
        for key, column in self.buffer.columns.items():
            writer = self._stacks[key] if isinstance(column, StackColumn) else column
            self._groups.setdefault(key[0], []).append(writer)
