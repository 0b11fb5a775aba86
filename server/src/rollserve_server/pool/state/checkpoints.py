"""Where the rows of a sequence stand between two calls, and what it takes to bring them there again. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollserve_server.sampling import RecurrentState, RowProgress, RowState

__all__ = ["ActionLog", "Checkpoint", "RowPoint"]

_MOST_LOG_BYTES = 64 << 20
"""How much the actions of the rows of one worker may take."""


class ActionLog:
    """What a row's environment was given since its reset. It can go on from any of its steps."""

    def __init__(self, columns: Sequence[np.ndarray]) -> None:
        """Takes the actions so far, for each leaf of the action space (steps, *A), and copies them."""
        self._columns = [column.copy() for column in columns]

    def __reduce__(self) -> tuple[type[ActionLog], tuple[Sequence[np.ndarray]]]:
        # What is read from Ray's object store cannot be written to: the constructor copies it.
        return ActionLog, (self._columns,)

    @property
    def num_bytes(self) -> int:
        """How much memory it takes."""
        return sum(column.nbytes for column in self._columns)

    def first(self, num_steps: int) -> list[np.ndarray]:
        """The first so many actions, as views."""
        return [column[:num_steps] for column in self._columns]

    def go_on(self, start: int, columns: Sequence[np.ndarray]) -> None:
        """Puts actions behind the first `start` ones, in the place of any that are there."""
        for position, new in enumerate(columns):
            column, stop = self._columns[position], start + len(new)
            if stop > len(column):
                # Twice as much, so that each action is copied only a few times.
                larger = np.empty((max(stop, 2 * len(column)), *column.shape[1:]), column.dtype)
                larger[:start] = column[:start]
                column = self._columns[position] = larger
            column[start:stop] = new

    def copy(self) -> ActionLog:
        """Another one that goes on by itself."""
        return ActionLog(self._columns)


@dataclass(frozen=True)
class RowPoint:
    """Where a row stands.

    Attributes:
        reset_index, episode_index, first_step, num_steps, memory: see RowState.
        log: the actions since the environment's reset, its first `num_steps` ones; None if they are not known.
    """

    reset_index: int
    episode_index: int
    first_step: int = 0
    num_steps: int = 0
    log: ActionLog | None = None
    recurrent_state: RecurrentState = ()

    @property
    def is_restorable(self) -> bool:
        """Whether there is a way back to where it stands."""
        return not self.num_steps or self.log is not None


@dataclass(frozen=True)
class Checkpoint:
    """Where all rows stand after so many steps of each.

    Attributes:
        clock: how many; of calls that some rows stopped in early, as many as were asked for.
        workers: of each worker, its rows.
    """

    clock: int
    workers: Sequence[Sequence[RowPoint]]

    @classmethod
    def initial(cls, num_workers: int, num_rows: int) -> Checkpoint:
        """Before the first step: each row is to begin the episode that has its number."""
        firsts = range(0, num_workers * num_rows, num_rows)
        return cls(0, [[RowPoint(index, index) for index in range(first, first + num_rows)] for first in firsts])

    @property
    def stride(self) -> int:
        """How many rows there are: what the index of a row's next episode is greater by."""
        return sum(map(len, self.workers))

    @property
    def is_restorable(self) -> bool:
        """Whether there is a way back to where all rows stand."""
        return all(point.is_restorable for points in self.workers for point in points)

    def states(self, worker: int) -> tuple[list[RowState], int]:
        """What a worker's rows can be made from.

        Returns:
            The states, and how many of them are those of next episodes, because there is no way back to where the row
            stands.
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

    def after(self, num_row_steps: int, progress: Sequence[Sequence[RowProgress]]) -> Checkpoint:
        """Where they stand after a call of so many steps of each, given what each worker told of its rows.

        Rows of which nothing is told stand where they stood; and others may have stopped before. The count is a name.

        Checkpoints that came of another call after this one are of no use any more.
        """
        workers = [
            _within_limit([_moved(*pair) for pair in zip(points, told, strict=True)]) if told else points
            for points, told in zip(self.workers, progress, strict=True)
        ]
        return Checkpoint(self.clock + num_row_steps, workers)

    def copy(self) -> Checkpoint:
        """The same for a sequence that goes on by itself."""
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
    """The rows without the longest logs, where all of them take too much."""
    kept = list(points)
    sizes = [point.log.num_bytes if point.log else 0 for point in points]
    total = sum(sizes)
    while total > _MOST_LOG_BYTES:
        longest = max(range(len(sizes)), key=sizes.__getitem__)
        kept[longest] = dataclasses.replace(kept[longest], log=None)
        total -= sizes[longest]
        sizes[longest] = 0
    return kept
