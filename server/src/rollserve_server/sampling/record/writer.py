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
    """

    def __init__(
        self, buffer: ColumnBuffer, num_steps: int, begins: NDArray[np.bool_], in_use: NDArray[np.bool_]
    ) -> None:
        """Begin with the first step.

        Args:
            buffer: the buffer, whose contents are overwritten.
            num_steps: number of steps that it has room for, if stacks continue.
            begins: (M,), rows whose episode or fragment begins with the current step. All are false after a step.
            in_use: (M,), rows whose steps will be read.
        """
        self.buffer = buffer
        self.num_steps = num_steps
        self.step = 0
        self._begins = begins
        self._stacks = {
            key: StackRecorder(column, begins, in_use)
            for key, column in buffer.columns.items()
            if isinstance(column, StackColumn)
        }
        self._set_targets()

    @property
    def is_full(self) -> bool:
        """Whether there may be no room for another step."""
        if self.step >= self.num_steps:
            return True
        return bool(self._stacks) and any(stacks.is_full for stacks in self._stacks.values())

    def write(self, group: str, values: Iterable[np.ndarray]) -> None:
        """Write the current step of every row, (M, *shape) for each column of the group."""
        for target, value in zip(self._targets.get(group, ()), values, strict=True):
            target[self.step] = value

    def written(self, group: str) -> list[np.ndarray]:
        """Return what was written as the current step of every row, (M, *shape) for each column of the group."""
        return [target[self.step] for target in self._targets.get(group, ())]

    def advance(self) -> Collection[ColumnKey]:
        """Go on to the next step; return the keys of columns that have turned out to be no stacks."""
        self.step += 1
        if not self._stacks:
            return ()
        self._begins[:] = False
        for stacks in self._stacks.values():
            stacks.advance()
        return [key for key, stacks in self._stacks.items() if stacks.are_no_stacks]

    def replace_stacks(self, key: ColumnKey, column: np.ndarray) -> None:
        """Replace a column of stacks by an array (M, steps, *shape), which gets what was written so far."""
        stacks = self._stacks.pop(key)
        for step in range(self.step):
            column[:, step] = stacks[step]
        self.buffer.columns[key] = column
        self._set_targets()

    def _set_targets(self) -> None:
        """Set what the columns of each group are written to: a step of all rows by one assignment."""
        self._targets: dict[str, list[np.ndarray | StackRecorder]] = {}
        for key, column in self.buffer.columns.items():
            target = self._stacks[key] if isinstance(column, StackColumn) else column.swapaxes(0, 1)
            self._targets.setdefault(key[0], []).append(target)
