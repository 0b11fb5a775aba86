"""Episodes and fragments of rows with one agent, and the recorder that cuts them out of a column buffer."""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from rollserve_server.sampling.record.columns import (
    MAX_BUFFER_BYTES,
    ColumnBuffer,
    ColumnWriter,
    Piece,
    bytes_of,
    copy_pieces,
)
from rollserve_server.sampling.record.infos import NO_INFOS, InfoKey, InfoRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rollserve_server.sampling.record.columns import ColumnKey
    from rollserve_server.sampling.record.infos import InfoColumn, InfoReader, ResetInfos

__all__ = ["Episode", "Recorder"]

_MAX_BUFFER_STEPS = 1000
"""No power of 2: a step of all rows is written at once, and values that are a power of 2 apart evict each other from
the processor's caches.
"""

_SHARED_BUFFER_BYTES = 64 << 10
"""Bytes of short episodes that are moved into one buffer: own arrays would take far more memory than their steps. The
buffer is freed with the last of the episodes, so it is small.
"""

_MIN_SHARE_TO_KEEP = 0.75
"""Share of a buffer that must be in use for its pieces to keep it. Keeping it saves a copy and takes at most a third
more memory.
"""

_EPISODE_BYTES = 682
"""Memory of an episode's objects without steps, infos and last observations, as measured."""


@dataclass(eq=False, slots=True)
class Episode:
    """An episode, finished or not, or a fragment: the steps of an episode that are made for one call.

    Attributes:
        index: index of the episode in its sequence.
        env_seed: seed of the environment's reset.
        reset_infos: the environment's infos at the reset.
        env_infos: the environment's infos of the steps; empty until the episode is finished.
        dropped_infos: number of values of infos, of the reset and of the steps, that have no place in a column, by
            name.
        pieces: the steps, in order.
        length: number of steps.
        first_step: number of steps that a fragment's episode has before it; 0 for whole episodes.
        terminated: whether the environment terminated the episode.
        truncated: whether the episode was truncated. Fragments whose episodes go on are neither.
        last_observations: for each leaf of the observation space, the observation after the last step.
        last_states: each of the agent's recurrent states after the last step.
        return_before: sum of the rewards that a fragment's episode has before it; 0 for whole episodes.
        discounted_before: discounted return of a fragment's episode before it; 0 for whole episodes, and without a
            discount.
        row: row that ran it, within its worker.
        total_reward: sum of the raw rewards of its episode so far, added up step by step, in this and in earlier calls.
        began: when its episode began (`time.perf_counter`); 0 before its steps are recorded.
        seconds: time from there to its last step.
        column_bytes: bytes of its steps in column buffers; 0 until it is finished.
        num_bytes: approximate memory of the episode; 0 until it is finished.
    """

    index: int
    env_seed: int
    reset_infos: Mapping[InfoKey, Any]
    env_infos: Mapping[InfoKey, InfoColumn] = field(default_factory=lambda: NO_INFOS)
    dropped_infos: Counter[str] = field(default_factory=Counter)
    pieces: list[Piece] = field(default_factory=list)
    length: int = 0
    first_step: int = 0
    terminated: bool = False
    truncated: bool = False
    last_observations: Sequence[np.ndarray] = ()
    last_states: Sequence[np.ndarray] = ()
    return_before: float = 0.0
    discounted_before: float = 0.0
    row: int = 0
    total_reward: float = 0.0
    began: float = 0.0
    seconds: float = 0.0
    column_bytes: int = 0
    num_bytes: int = 0

    @classmethod
    def begin(
        cls,
        index: int,
        env_seed: int,
        reset: ResetInfos,
        first_step: int = 0,
        total_reward: float = 0.0,
        began: float = 0.0,
        discounted_before: float = 0.0,
    ) -> Episode:
        """Return an episode or a fragment without steps. A fragment has the sums and time of the one before it."""
        dropped = Counter(reset.dropped) if reset.dropped else Counter()  # many times as fast as from an empty mapping
        return cls(
            index,
            env_seed,
            reset.values,
            dropped_infos=dropped,
            first_step=first_step,
            return_before=total_reward,
            discounted_before=discounted_before,
            total_reward=total_reward,
            began=began,
        )

    @property
    def num_agent_steps(self) -> int:
        """Number of the agent's steps, the only one's."""
        return self.length

    @property
    def ended(self) -> bool:
        """Whether the episode has ended, with the last of these steps."""
        return self.terminated or self.truncated


class Recorder(ColumnWriter):
    """Records the steps of M rows in a column buffer, and cuts episodes or fragments out of it.

    The buffer is used over and over. When it is full, pieces that are still in use move to buffers of their own; if
    they are most of the buffer, they keep it, and the recorder takes a new one. Infos of environments can have any
    names, so each episode has its own columns for them. Of observations that are stacks of frames, each frame is
    recorded once.
    """

    def __init__(
        self,
        num_rows: int,
        keys: Iterable[ColumnKey],
        reader: InfoReader,
        buffer_bytes: int = MAX_BUFFER_BYTES,
        keep: Callable[[ColumnBuffer, int], object] = lambda buffer, num_steps: None,
    ) -> None:
        """Allocate the buffer; `reader` reads the infos of steps. See `ColumnWriter` about the others."""
        super().__init__(num_rows, keys, buffer_bytes, keep)
        self._reader = reader
        self._count_bytes()
        self._write_to(ColumnBuffer({}), self._num_fitting())
        self._open: dict[int, _OpenEpisode] = {}
        # Finished episodes whose last piece is in the buffer.
        self._finished: set[Episode] = set()

    def begin(self, row: int, episode: Episode) -> None:
        """Record the row's next steps as steps of the episode."""
        episode.row = row
        episode.began = episode.began or time.perf_counter()
        self._open[row] = _OpenEpisode(episode, self._position)
        self._in_use[row] = self._begins[row] = True

    def write_infos(self, row: int, info: Mapping[Any, Any]) -> None:
        """Write an environment's infos of the current step of a row."""
        running = self._open[row]
        if running.infos is None:
            running.infos = InfoRecorder(self._reader, running.episode.dropped_infos)
        running.infos.write(running.num_moved + self._position - running.start, info)

    def length(self, row: int) -> int:
        """Return the number of steps of the row's episode before the current step."""
        running = self._open[row]
        return running.num_moved + self._position - running.start

    def finish(
        self,
        row: int,
        terminated: bool,
        truncated: bool,
        last_observations: Sequence[np.ndarray],
        last_states: Sequence[np.ndarray] = (),
        total_reward: float = 0.0,
        *,
        before: bool = False,
    ) -> Episode:
        """End the row's episode or fragment, which has at least one step, with the current step, and return it.

        Args:
            row: the row.
            terminated: whether the environment terminated the episode.
            truncated: whether the episode was truncated.
            last_observations: for each leaf of the observation space, the observation after the last step.
            last_states: each of the agent's recurrent states after the last step.
            total_reward: sum of the raw rewards of the episode so far.
            before: whether to end it before the current step instead.
        """
        running, stop = self._open.pop(row), self._position + (not before)
        self._in_use[row] = False
        episode = running.episode
        episode.length = running.num_moved + stop - running.start
        episode.terminated, episode.truncated, episode.total_reward = terminated, truncated, total_reward
        episode.seconds = time.perf_counter() - episode.began
        episode.last_observations, episode.last_states = last_observations, last_states
        if running.infos is not None:
            episode.env_infos = running.infos.finish(episode.length)
        if stop > running.start:  # else all steps have moved out of the buffer
            episode.pieces.append(Piece(self._buffer, row, running.start, stop))
            self._finished.add(episode)
        self._count_bytes_of(episode)
        return episode

    def abandon(self, row: int) -> None:
        """Forget the steps of the row's episode so far."""
        del self._open[row]
        self._in_use[row] = False

    def release(self, episode: Episode) -> None:
        """Forget a finished episode: its steps may be overwritten."""
        self._finished.discard(episode)

    def _count_bytes_of(self, episode: Episode) -> None:
        episode.column_bytes = episode.length * self._plain_bytes
        for key in self._stack_keys:
            episode.column_bytes += sum(piece.num_bytes_of(key) for piece in episode.pieces)
        num_bytes = episode.column_bytes + _EPISODE_BYTES
        num_bytes += sum(map(sys.getsizeof, episode.last_observations))
        num_bytes += sum(map(sys.getsizeof, episode.last_states))
        if episode.reset_infos:
            num_bytes += sys.getsizeof(episode.reset_infos) + sum(map(sys.getsizeof, episode.reset_infos.values()))
        if episode.env_infos:
            num_bytes += sys.getsizeof(episode.env_infos)
            num_bytes += sum(column.num_bytes for column in episode.env_infos.values())
        episode.num_bytes = num_bytes

    @override
    def _count_bytes(self) -> None:
        self._plain_bytes = bytes_of(set(self.keys) - self._stack_keys)
        self.step_bytes = bytes_of(self.keys, self._stack_keys)

    @override
    def _num_fitting(self) -> int:
        return min(super()._num_fitting(), _MAX_BUFFER_STEPS)

    @override
    def _add_column(self, key: ColumnKey, num_steps: int) -> np.ndarray:
        column = self._buffer.columns[key] = np.empty((self._num_rows, num_steps, *key[1].shape), key[1].dtype)
        return column

    @override
    def _make_room(self) -> None:
        """Make the whole buffer free for new steps, without losing those in use."""
        buffer, stop = self._buffer, self._position
        num_open = sum(stop - running.start for running in self._open.values())
        num_finished = sum(episode.pieces[-1].num_steps for episode in self._finished)
        min_to_keep = _MIN_SHARE_TO_KEEP * self._num_rows * self._room
        # A buffer is freed as a whole, and open episodes may hold it for long: among several rows, they keep it only if
        # they use most of it themselves.
        open_keep = num_open + (num_finished if self._num_rows == 1 else 0) >= min_to_keep
        finished_keep = open_keep or num_finished >= min_to_keep
        for row, running in self._open.items():
            if running.start < stop:
                piece = Piece(buffer, row, running.start, stop)
                running.episode.pieces += [piece] if open_keep else self._copied([piece])
                running.num_moved += piece.num_steps
            running.start = 0
        if finished_keep:
            self._keep(buffer, stop)
            self._write_to(ColumnBuffer({}), self._num_fitting())
        else:
            self._move_finished()
            self._write_to(buffer, self._room)
        self._finished.clear()

    def _move_finished(self) -> None:
        # In the order in which they will be released.
        finished = sorted(self._finished, key=lambda episode: episode.index)
        for group in _group(finished, _SHARED_BUFFER_BYTES // self.step_bytes):
            for episode, piece in zip(group, self._copied([member.pieces[-1] for member in group]), strict=True):
                episode.pieces[-1] = piece

    def _copied(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """Return copies of pieces of the buffer, in a buffer of their own."""
        copies = list(copy_pieces(pieces))
        self._keep(copies[0].buffer, copies[-1].stop)
        return copies


@dataclass(eq=False, slots=True)
class _OpenEpisode:
    """An episode that a row runs.

    Attributes:
        episode: the episode.
        start: position in the buffer of its first step there.
        num_moved: number of its steps that have moved out of the buffer.
        infos: recorder of the environment's infos; None before the first ones.
    """

    episode: Episode
    start: int
    num_moved: int = 0
    infos: InfoRecorder | None = None


def _group(episodes: Iterable[Episode], max_steps: int) -> Iterator[list[Episode]]:
    """Group consecutive episodes whose last pieces have at most `max_steps` in all. Longer ones are alone."""
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
