"""Blocks of columns that rows write into step by step, and episodes as pieces of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rollserve_server.sampling.infos import InfoKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


__all__ = ["Block", "ColumnKey", "Episode", "Piece", "Recorder"]

ColumnKey = tuple[str, InfoKey]
"""A column of steps: its group (`observations`, `actions`, `rewards`, `agent_infos` or `env_infos`) and its name,
dtype and
shape."""

_BLOCK_BYTES = 32 << 20
_MIN_BLOCK_STEPS, _MAX_BLOCK_STEPS = 4, 1024


@dataclass(eq=False)
class Block:
    """Columns for M rows and a number of steps.

    Attributes:
        columns: (M, steps, *shape) each, so that a piece of a row is contiguous.
        present: for columns of infos that have gaps, (M, steps), where there is a value.
    """

    columns: dict[ColumnKey, np.ndarray] = field(default_factory=dict)
    present: dict[ColumnKey, np.ndarray] = field(default_factory=dict)


class Piece(NamedTuple):
    """Consecutive steps of one row in a block."""

    block: Block
    row: int
    start: int
    stop: int

    def detached(self) -> Piece:
        """The same steps in a block of their own."""
        rows, steps = slice(self.row, self.row + 1), slice(self.start, self.stop)
        columns = {key: array[rows, steps].copy() for key, array in self.block.columns.items()}
        present = {key: array[rows, steps].copy() for key, array in self.block.present.items()}
        for key, array in present.items():
            if not array.any():  # another episode's info
                del columns[key]
        present = {key: array for key, array in present.items() if key in columns}
        return Piece(Block(columns, present), 0, 0, self.stop - self.start)


@dataclass(eq=False, slots=True)
class Episode:
    """One episode, finished or not.

    Attributes:
        index: its index in the stream.
        env_seed: what its environment was reset with.
        reset_infos: the environment's infos at the reset.
        pieces: its steps, in order.
        length: how many.
        terminated, truncated: how it ended; neither while it goes on.
        last_observations: for each leaf, the observation after the last step.
    """

    index: int
    env_seed: int
    reset_infos: Mapping[InfoKey, Any]
    pieces: list[Piece] = field(default_factory=list)
    length: int = 0
    terminated: bool = False
    truncated: bool = False
    last_observations: Sequence[np.ndarray] = ()


class Recorder:
    """Writes the steps of M rows into a block, and cuts episodes out of it.

    There is one block, used over and over: when it is full, pieces that are still wanted move out.
    """

    def __init__(self, num_rows: int, keys: Iterable[ColumnKey]) -> None:
        """Takes the columns that every step has; those of environments' infos come as they come."""
        keys = list(keys)
        self._num_rows = num_rows
        row_bytes = sum(key.dtype.itemsize * int(np.prod(key.shape)) for _, key in keys)
        steps = _BLOCK_BYTES // max(row_bytes * num_rows, 1)
        self._num_steps = max(_MIN_BLOCK_STEPS, min(steps, _MAX_BLOCK_STEPS))
        self._block = Block({key: self._empty(key) for key in keys})
        self._info_columns: dict[InfoKey, tuple[np.ndarray, np.ndarray]] = {}
        self.step_bytes = row_bytes
        self._step = 0
        self._open: dict[int, tuple[Episode, int]] = {}
        self._finished: set[Episode] = set()

    def begin(self, row: int, episode: Episode) -> None:
        """Makes the row's next steps the episode's."""
        self._open[row] = (episode, self._step)

    def columns(self, group: str) -> list[np.ndarray]:
        """The columns of a group, in the order of the keys, to be given to `write`."""
        return [column for (its_group, _), column in self._block.columns.items() if its_group == group]

    def write(self, columns: Iterable[np.ndarray], values: Iterable[np.ndarray]) -> None:
        """Writes the current step of every row, (M, *shape) for each column."""
        for column, value in zip(columns, values, strict=True):
            column[:, self._step] = value

    def write_info(self, row: int, key: InfoKey, value: Any) -> None:
        """Writes an environment's info into the current step of a row."""
        known = self._info_columns.get(key)
        if known is None:
            known = self._info_columns[key] = self._add_info_column(key)
        column, present = known
        column[row, self._step] = value
        present[row, self._step] = True

    def advance(self) -> None:
        """Ends the current step. Episodes that end with it have to be finished before."""
        self._step += 1
        if self._step == self._num_steps:
            self._clear()

    def length(self, row: int) -> int:
        """How many steps the row's episode has, the current one not counted."""
        episode, start = self._open[row]
        return sum(piece.stop - piece.start for piece in episode.pieces) + self._step - start

    def finish(self, row: int) -> None:
        """Ends the row's episode with the current step."""
        episode, start = self._open.pop(row)
        episode.pieces.append(Piece(self._block, row, start, self._step + 1))
        episode.length = sum(piece.stop - piece.start for piece in episode.pieces)
        self._finished.add(episode)

    def release(self, episode: Episode) -> None:
        """Forgets a finished episode."""
        self._finished.discard(episode)

    def _clear(self) -> None:
        """Moves what is still wanted out of the block, and begins it anew."""
        for row, (episode, start) in self._open.items():
            if start < self._step:
                episode.pieces.append(Piece(self._block, row, start, self._step).detached())
            self._open[row] = (episode, 0)
        for episode in self._finished:
            episode.pieces = [piece.detached() if piece.block is self._block else piece for piece in episode.pieces]
        self._finished.clear()
        for present in self._block.present.values():
            present[...] = False
        self._step = 0

    def _add_info_column(self, key: InfoKey) -> tuple[np.ndarray, np.ndarray]:
        column_key = ("env_infos", key)
        column = self._block.columns[column_key] = self._empty(column_key)
        present = self._block.present[column_key] = np.zeros((self._num_rows, self._num_steps), np.bool_)
        return column, present

    def _empty(self, key: ColumnKey) -> np.ndarray:
        _, info = key
        return np.empty((self._num_rows, self._num_steps, *info.shape), info.dtype)
