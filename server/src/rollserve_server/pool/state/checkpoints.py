"""Checkpoints: where the rows of a row sequence stand between two calls, and the actions that lead there."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.sampling import RecurrentState, RowProgress, RowState

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["ActionLog", "Checkpoint", "RowPoint"]

_MAX_LOG_BYTES = 64 << 20
"""Limit of the memory for the actions of one worker's rows."""


class ActionLog:
    """The actions of a row's environment since its reset. Later actions may overwrite its end.

    Attributes:
        num_bytes: memory of the columns.
    """

    def __init__(self, columns: Sequence[np.ndarray]) -> None:
        """Copy the first actions: for each leaf of the action space, a column (steps, *A)."""
        self._columns = [column.copy() for column in columns]
        self.num_bytes = sum(column.nbytes for column in self._columns)

    @property
    def columns(self) -> Sequence[np.ndarray]:
        """Actions of the log: for each leaf of the action space, a column (steps, *A)."""
        return self._columns

    def first(self, num_steps: int) -> list[np.ndarray]:
        """Return the first actions: for each leaf of the action space, a view (num_steps, *A)."""
        return [column[:num_steps] for column in self._columns]

    def go_on(self, start: int, columns: Sequence[np.ndarray]) -> None:
        """Write actions behind the first ones, over any that follow these.

        Args:
            start: number of first actions that stay.
            columns: new actions: for each leaf of the action space, a column (steps, *A).
        """
        for position, new in enumerate(columns):
            column, stop = self._columns[position], start + len(new)
            if stop > len(column):
                # Twice the size, so that each action is copied only a few times.
                larger = np.empty((max(stop, 2 * len(column)), *column.shape[1:]), column.dtype)
                larger[:start] = column[:start]
                self.num_bytes += larger.nbytes - column.nbytes
                column = self._columns[position] = larger
            column[start:stop] = new

    def copy(self) -> ActionLog:
        """Return an independent copy."""
        return ActionLog(self._columns)


@dataclass  # not frozen, because a frozen one takes three times as long to make, once for each row and call
class RowPoint:
    """The state of one row, as `RowState`, with its actions in a log.

    Attributes:
        reset_index: index of the episode that the environment was reset for, or will be if it has made no steps.
        episode_index: index of the episode that the row runs; differs from `reset_index` only after a soft horizon.
        first_step: number of steps that the environment made between its reset and the start of that episode.
        num_steps: number of steps that the environment has made since its reset.
        log: actions since the reset; only the first `num_steps` count. None if they are not known.
        recurrent_state: recurrent state of the agent.
    """

    reset_index: int
    episode_index: int
    first_step: int = 0
    num_steps: int = 0
    log: ActionLog | None = None
    recurrent_state: RecurrentState = ()

    @property
    def is_restorable(self) -> bool:
        """Whether the row can be brought back to this state."""
        return not self.num_steps or self.log is not None


@dataclass(frozen=True)
class Checkpoint:
    """The states of all rows of a row sequence between two calls.

    Attributes:
        clock: number of steps that each row has made; for rows that stopped early in a call, as if they had not.
        workers: for each worker, the states of its rows.
    """

    clock: int
    workers: Sequence[Sequence[RowPoint]]

    @classmethod
    def initial(cls, num_workers: int, num_rows: int) -> Checkpoint:
        """Return the states before the first step: each row begins the episode whose index is the row's number."""
        firsts = range(0, num_workers * num_rows, num_rows)
        return cls(0, [[RowPoint(index, index) for index in range(first, first + num_rows)] for first in firsts])

    @property
    def stride(self) -> int:
        """Number of rows of all workers, which is the distance between the indices of a row's episodes."""
        return sum(map(len, self.workers))

    @property
    def is_restorable(self) -> bool:
        """Whether all rows can be brought back to these states."""
        return all(point.is_restorable for points in self.workers for point in points)

    def states(self, worker: int) -> tuple[list[RowState], int]:
        """Return states that a worker can bring its rows to.

        A row that cannot be brought back to its state begins its next episode.

        Returns:
            The states, and the number of rows that begin their next episodes.
        """
        states, num_broken_off = [], 0
        for point in self.workers[worker]:
            if not point.is_restorable:
                num_broken_off += 1
                index = point.episode_index + self.stride
                states.append(RowState(index, index, 0, 0, ()))
            else:
                actions = point.log.first(point.num_steps) if point.log else ()
                indices = point.reset_index, point.episode_index
                states.append(RowState(*indices, point.first_step, point.num_steps, actions, point.recurrent_state))
        return states, num_broken_off

    def after(self, num_row_steps: int, progress: Sequence[Collection[RowProgress]]) -> Checkpoint:
        """Return the states after a call. The logs are shared: at most one call may continue a checkpoint.

        Args:
            num_row_steps: number of steps of each row that the call was for; some rows may have stopped before.
            progress: for each worker, what it reported of its rows; empty for a worker whose rows have not moved.
        """
        workers = [
            _within_limit([_moved(*pair) for pair in zip(points, reported, strict=True)]) if reported else points
            for points, reported in zip(self.workers, progress, strict=True)
        ]
        return Checkpoint(self.clock + num_row_steps, workers)

    def copy(self) -> Checkpoint:
        """Return an independent copy, for another sequence."""
        workers = [
            [dataclasses.replace(point, log=point.log and point.log.copy()) for point in points]
            for points in self.workers
        ]
        return Checkpoint(self.clock, workers)


def _moved(point: RowPoint, progress: RowProgress) -> RowPoint:
    log, new = point.log, progress.new_actions
    if new is None or not progress.num_steps:
        log = None
    elif progress.reset_index != point.reset_index or not point.num_steps:
        log = ActionLog(new)
    elif log is not None:
        log.go_on(point.num_steps, new)
    indices = progress.reset_index, progress.episode_index
    return RowPoint(*indices, progress.first_step, progress.num_steps, log, progress.recurrent_state)


def _within_limit(points: Sequence[RowPoint]) -> list[RowPoint]:
    """Return the states without the longest logs, if all logs together exceed the limit."""
    kept = list(points)
    sizes = [point.log.num_bytes if point.log else 0 for point in points]
    total = sum(sizes)
    while total > _MAX_LOG_BYTES:
        longest = max(range(len(sizes)), key=sizes.__getitem__)
        kept[longest] = dataclasses.replace(kept[longest], log=None)
        total -= sizes[longest]
        sizes[longest] = 0
    return kept
