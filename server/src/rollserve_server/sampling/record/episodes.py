"""Columns that rows write into step by step, and episodes as pieces of them."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rollserve_server.sampling.record.info_columns import InfoColumn, InfoRecorder
from rollserve_server.sampling.record.infos import NO_INFOS, InfoKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rollserve_server.sampling.record.infos import InfoReader

__all__ = ["ColumnBuffer", "ColumnKey", "Episode", "Piece", "Recorder"]

ColumnKey = tuple[str, InfoKey]
"""A column: its group (`observations`, `actions`, `rewards`, `agent_infos`, `states`, `env_infos` or `episode_infos`),
and its name, dtype and shape. States are what the agent remembered before each step.
"""

_BUFFER_BYTES = 30 << 20
"""Two of them fit into the 64 MiB, less a little, that glibc gets at a time for threads."""
_MIN_BUFFER_STEPS, _MAX_BUFFER_STEPS = 4, 1000
"""The most is no power of 2: a step of all rows is written at once, and at such distances its values would drive each
other out of the processor's caches.
"""
_SHARED_BUFFER_BYTES = 64 << 10
"""How much short episodes put into one block when they move: arrays of their own would take far more than their steps.
It is freed with the last of them, so it is not to be much.
"""
_MOST_OF_A_BUFFER = 0.75
"""How much of a block is to be wanted still for it to be left to those that want it: that saves to copy them, and takes
a third more memory at most.
"""
_EPISODE_BYTES = 512
"""What the objects of an episode take, measured: all but its steps, infos and last observations."""


@dataclass(eq=False, slots=True)
class ColumnBuffer:
    """Columns for M rows and a number of steps.

    Attributes:
        columns: (M, steps, *shape) each, so that a piece of a row is contiguous.
    """

    columns: Mapping[ColumnKey, np.ndarray]

    def columns_of(self, group: str) -> list[np.ndarray]:
        """The columns of a group, in the order of the keys."""
        return [column for (its_group, _), column in self.columns.items() if its_group == group]


class Piece(NamedTuple):
    """Consecutive steps of one row in a block."""

    buffer: ColumnBuffer
    row: int
    start: int
    stop: int

    @property
    def num_steps(self) -> int:
        """How many they are."""
        return self.stop - self.start


@dataclass(eq=False, slots=True)
class Episode:
    """One episode, finished or not, or a fragment of one: the steps of it that are made for one call.

    Attributes:
        index: its index in the stream.
        env_seed: what its environment was reset with.
        reset_infos: the environment's infos at the reset.
        env_infos: those of its steps, once it is finished.
        pieces: its steps, in order.
        length: how many.
        first_step: of a fragment, how many steps the episode has before it; 0 else.
        terminated, truncated: how it ended; neither while it goes on, nor if it is cut and goes on with another call.
        last_observations: for each leaf, the observation after the last step.
        num_bytes: about how much memory it takes, once it is finished.
    """

    index: int
    env_seed: int
    reset_infos: Mapping[InfoKey, Any]
    env_infos: Mapping[InfoKey, InfoColumn] = field(default_factory=lambda: NO_INFOS)
    pieces: list[Piece] = field(default_factory=list)
    length: int = 0
    first_step: int = 0
    terminated: bool = False
    truncated: bool = False
    last_observations: Sequence[np.ndarray] = ()
    num_bytes: int = 0

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self.terminated or self.truncated

    @property
    def total_reward(self) -> float:
        """The sum of its rewards, added up from 0 step by step."""
        rewards = [piece.buffer.columns_of("rewards")[0][piece.row, piece.start : piece.stop] for piece in self.pieces]
        return float(np.add.accumulate(np.concatenate([np.zeros(1), *rewards]))[-1])


class Recorder:
    """Writes the steps of M rows into a block, and cuts episodes, or fragments of some, out of it.

    There is one block, used over and over: when it is full, pieces that are still wanted move out; or, if they are most
    of it, it is left to them, and another one takes its place. The environments' infos, of which nobody knows what
    comes, have columns of their own for each episode.
    """

    def __init__(self, num_rows: int, keys: Iterable[ColumnKey], reader: InfoReader) -> None:
        """Takes the columns that every step has, and what reads the infos of steps."""
        keys = list(keys)
        self._reader = reader
        self._step_bytes = sum(key.dtype.itemsize * math.prod(key.shape) for _, key in keys)
        steps = _BUFFER_BYTES // max(self._step_bytes * num_rows, 1)
        self._num_steps = max(_MIN_BUFFER_STEPS, min(steps, _MAX_BUFFER_STEPS))
        self._num_rows = num_rows
        self._keys = keys
        self._buffer = self._new_buffer()
        self._columns: dict[str, list[np.ndarray]] = {}
        self._step = 0
        self._open: dict[int, _OpenEpisode] = {}
        self._finished: set[Episode] = set()

    @property
    def step_bytes(self) -> int:
        """How many bytes the columns of a row's step take."""
        return self._step_bytes

    def begin(self, row: int, episode: Episode) -> None:
        """Makes the row's next steps the episode's."""
        self._open[row] = _OpenEpisode(episode, self._step)

    def columns(self, group: str) -> list[np.ndarray]:
        """The columns of a group, in the order of the keys. `write` needs this very list: it changes with the block."""
        return self._columns.setdefault(group, self._buffer.columns_of(group))

    def write(self, columns: Iterable[np.ndarray], values: Iterable[np.ndarray]) -> None:
        """Writes the current step of every row, (M, *shape) for each column."""
        for column, value in zip(columns, values, strict=True):
            column[:, self._step] = value

    def last_written(self, group: str) -> list[np.ndarray]:
        """What was written as the current step of every row, (M, *shape) for each column of the group."""
        return [column[:, self._step] for column in self.columns(group)]

    def write_infos(self, row: int, info: Mapping[Any, Any]) -> None:
        """Writes an environment's infos of the current step of a row."""
        running = self._open[row]
        if running.infos is None:
            running.infos = InfoRecorder(self._reader)
        running.infos.write(running.num_moved + self._step - running.start, info)

    def advance(self) -> None:
        """Ends the current step. Episodes that end with it have to be finished before."""
        self._step += 1
        if self._step == self._num_steps:
            self._clear()

    def length(self, row: int) -> int:
        """How many steps the row's episode has, the current one not counted."""
        running = self._open[row]
        return running.num_moved + self._step - running.start

    def finish(self, row: int, terminated: bool, truncated: bool, last_observations: Sequence[np.ndarray]) -> Episode:
        """Ends the row's episode with the current step, and returns it."""
        return self._finish(row, self._step + 1, terminated, truncated, last_observations)

    def cut(self, row: int, last_observations: Sequence[np.ndarray]) -> Episode:
        """Ends the row's fragment with the step before the current one, and returns it. It has to have one."""
        return self._finish(row, self._step, False, False, last_observations)

    def _finish(
        self, row: int, stop: int, terminated: bool, truncated: bool, last_observations: Sequence[np.ndarray]
    ) -> Episode:
        running = self._open.pop(row)
        episode = running.episode
        episode.length = running.num_moved + stop - running.start
        episode.terminated, episode.truncated = terminated, truncated
        episode.last_observations = last_observations
        if running.infos is not None:
            episode.env_infos = running.infos.finish(episode.length)
        episode.num_bytes = self._num_bytes(episode)
        if stop > running.start:  # else it has all moved out of the block
            episode.pieces.append(Piece(self._buffer, row, running.start, stop))
            self._finished.add(episode)
        return episode

    def abandon(self, row: int) -> None:
        """Forgets what the row's episode has so far."""
        del self._open[row]

    def release(self, episode: Episode) -> None:
        """Forgets a finished episode."""
        self._finished.discard(episode)

    def _num_bytes(self, episode: Episode) -> int:
        num_bytes = _EPISODE_BYTES + episode.length * self._step_bytes
        num_bytes += sum(map(sys.getsizeof, episode.last_observations))
        if episode.reset_infos:
            num_bytes += sys.getsizeof(episode.reset_infos) + sum(map(sys.getsizeof, episode.reset_infos.values()))
        if episode.env_infos:
            num_bytes += sys.getsizeof(episode.env_infos)
            num_bytes += sum(column.num_bytes for column in episode.env_infos.values())
        return num_bytes

    def _new_buffer(self) -> ColumnBuffer:
        shape = (self._num_rows, self._num_steps)
        return ColumnBuffer({(group, key): np.empty((*shape, *key.shape), key.dtype) for group, key in self._keys})

    def _clear(self) -> None:
        """Makes room for steps, without losing those that are still wanted."""
        num_open = sum(self._step - running.start for running in self._open.values())
        num_finished = sum(episode.pieces[-1].num_steps for episode in self._finished)
        most = _MOST_OF_A_BUFFER * self._num_rows * self._num_steps
        # PerWorker are kept whole, and long episodes keep their pieces for long: of several rows, they must have the
        # most.
        open_stay = num_open + (num_finished if self._num_rows == 1 else 0) >= most
        finished_stay = open_stay or num_finished >= most
        for row, running in self._open.items():
            if running.start < self._step:
                piece = Piece(self._buffer, row, running.start, self._step)
                running.episode.pieces.extend([piece] if open_stay else _moved([piece]))
                running.num_moved += piece.num_steps
            running.start = 0
        if finished_stay:
            self._buffer = self._new_buffer()
            for group, columns in self._columns.items():
                columns[:] = self._buffer.columns_of(group)
        else:
            self._move_finished()
        self._finished.clear()
        self._step = 0

    def _move_finished(self) -> None:
        # In the order in which they are going to be released.
        finished = sorted(self._finished, key=lambda episode: episode.index)
        for together in _together(finished, _SHARED_BUFFER_BYTES // self._step_bytes):
            for episode, piece in zip(together, _moved([each.pieces[-1] for each in together]), strict=True):
                episode.pieces[-1] = piece


@dataclass(eq=False, slots=True)
class _OpenEpisode:
    """An episode that is running.

    Attributes:
        episode: which.
        start: where in the block its steps begin that stand there.
        num_moved: how many steps it has that were moved out of the block.
        infos: those of its steps, as soon as there are any.
    """

    episode: Episode
    start: int
    num_moved: int = 0
    infos: InfoRecorder | None = None


def _together(episodes: Iterable[Episode], max_steps: int) -> Iterator[list[Episode]]:
    """Consecutive episodes whose last pieces have at most so many steps together; longer ones are for themselves."""
    members: list[Episode] = []
    room = max_steps
    for episode in episodes:
        num_steps = episode.pieces[-1].num_steps
        if members and num_steps > room:
            yield members
            members, room = [], max_steps
        members.append(episode)
        room -= num_steps
    if members:
        yield members


def _moved(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """The same steps of one block in a block of their own, one piece behind the other."""
    columns = {
        key: np.concatenate([column[row, start:stop] for _, row, start, stop in pieces])[np.newaxis]
        for key, column in pieces[0].buffer.columns.items()
    }
    buffer, stop = ColumnBuffer(columns), 0
    for piece in pieces:
        start, stop = stop, stop + piece.num_steps
        yield Piece(buffer, 0, start, stop)
