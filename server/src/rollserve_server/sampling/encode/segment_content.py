"""Content of a message whose segments were recorded one by one."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.sampling.encode.columns import (
    Column,
    Headers,
    Observations,
    empty_info_column,
    episode_info_columns,
    info_columns,
    keys_by_name,
    step_column_name,
)
from rollserve_server.sampling.encode.endings import endings_of
from rollserve_server.sampling.encode.fields import Gathered, Rows
from rollserve_server.sampling.encode.frame_stacks import frames_once
from rollserve_server.sampling.encode.segments import info_keys
from rollserve_server.sampling.record.columns import bytes_of
from rollserve_server.sampling.record.stacks import StackColumn

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve_server.sampling.encode.segments import Segment
    from rollserve_server.sampling.record.columns import ColumnKey, Piece

__all__ = ["SegmentContent"]


_MAX_GATHERED_BYTES = 4 << 10
"""Bytes of a column's pieces, on average, up to which their steps are gathered: a copy of each piece takes about 1 µs
more, and is faster for long ones.
"""


class _Run:
    """Consecutive pieces of one column buffer, whose steps are gathered."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._buffer = pieces[0].buffer
        lengths = np.array([piece.stop - piece.start for piece in pieces])
        # Of each step: the row, and the position in the buffer.
        self._rows = np.repeat([piece.row for piece in pieces], lengths)
        self._steps = np.arange(len(self._rows))
        self._steps += np.repeat([piece.stop for piece in pieces] - np.cumsum(lengths), lengths)
        # By the number of steps that a column has room for.
        self._places: dict[int, NDArray[np.int64]] = {}

    def part(self, key: ColumnKey) -> tuple[np.ndarray, NDArray[np.int64]] | None:
        """Return a column (all steps, *shape), and the indices of the steps; None if it has stacks or gaps."""
        column = self._buffer.columns[key]
        if isinstance(column, StackColumn) or not column.flags.c_contiguous:
            return None
        room = column.shape[1]
        if room not in self._places:
            self._places[room] = self._rows * room + self._steps
        return column.reshape(-1, *column.shape[2:]), self._places[room]


def _buffer_id(piece: Piece) -> int:
    return id(piece.buffer)


def _stacked(values: Iterable[Sequence[np.ndarray]]) -> list[np.ndarray]:
    """Return one array for each column, given each segment's values of all columns."""
    return [np.stack(column) for column in zip(*values, strict=True)]


class SegmentContent:
    """Content of a message with segments of recorded episodes, in their order."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments
        self._segment_pieces = [segment.pieces() for segment in segments]
        self._pieces = [piece for pieces in self._segment_pieces for piece in pieces]
        self._mean_length = sum(segment.length for segment in segments) / len(self._pieces)

    def headers(self) -> Headers:
        """Return the values of each segment."""
        segments = self._segments
        return Headers(
            episode_indices=np.array([segment.episode.index for segment in segments], "<u8"),
            first_steps=np.array([segment.episode.first_step + segment.start for segment in segments], "<u8"),
            lengths=np.array([segment.length for segment in segments], "<u4"),
            terminated=np.array([segment.ends and segment.episode.terminated for segment in segments]),
            truncated=np.array([segment.ends and segment.episode.truncated for segment in segments]),
            environment_seeds=np.array([segment.episode.env_seed for segment in segments], "<u4"),
        )

    def ends(self) -> NDArray[np.bool_]:
        """Return whether each segment has the last step of its episode or fragment, (S,)."""
        return np.array([segment.ends for segment in self._segments])

    def ending_pieces(self, policy: str = "") -> Sequence[Sequence[Piece]]:
        """Return the pieces of column buffers with all steps of each episode that ends with a segment."""
        return [segment.episode.pieces for segment in self._segments if segment.ends]

    def ending_discounted_before(self, policy: str = "") -> NDArray[np.float64]:
        """Return the discounted returns before the first steps of the episodes or fragments of `ending_pieces`."""
        return np.array([segment.episode.discounted_before for segment in self._segments if segment.ends])

    def dropped_infos(self) -> Counter[str]:
        """Return the number of values of infos, by name, that the episodes which end with a segment lack."""
        dropped: Counter[str] = Counter()
        for segment in self._segments:
            if segment.ends and segment.episode.dropped_infos:
                dropped.update(segment.episode.dropped_infos)
        return dropped

    def endings(self) -> bytes:
        """Return the ends of the episodes that end with a segment; see `endings_of`."""
        return endings_of(segment.episode for segment in self._segments if segment.ends)

    def observations(self) -> Iterator[Observations]:
        """Yield the observations of each leaf of the observation space."""
        keys = [key for group, key in self._pieces[0].buffer.columns if group == "observations"]
        values = [segment.last_observations for segment in self._segments]
        for position, key in enumerate(keys):
            last = [value[position] for value in values]
            last_rows = Rows([observation[np.newaxis] for observation in last], key.dtype, key.shape)
            find_frames = functools.partial(frames_once, self._segment_pieces, key, last)
            yield Observations(key, self._rows(("observations", key)), last_rows, find_frames)

    def returns_before(self) -> NDArray[np.float64]:
        """Return the sum of the rewards of each segment's episode before it, (S,)."""
        return np.array([segment.return_before for segment in self._segments], "<f8")

    def discounted_before(self, discount: float) -> NDArray[np.float64]:
        """Return the discounted return of each segment's episode before it, (S,)."""
        return np.array([segment.discounted_before(discount) for segment in self._segments], "<f8")

    def last_observations(self) -> list[np.ndarray]:
        """Return the observation after each segment's last step, (S, *O) for each leaf of the observation space."""
        return _stacked(segment.last_observations for segment in self._segments)

    def last_states(self) -> list[tuple[str, np.ndarray]]:
        """Return the recurrent states after each segment's last step, (S, *H), with their names."""
        names = [key.name for group, key in self._pieces[0].buffer.columns if group == "states"]
        return list(zip(names, _stacked(segment.last_states for segment in self._segments), strict=True))

    def last_infos(self, name: str) -> tuple[np.ndarray, NDArray[np.bool_]] | None:
        """Return the environment's infos of a name that came with the last observations, and which are there.

        They are (S, *I) and (S,), or None if no segment has one.
        """
        keys = [key for _, key in info_keys([segment.episode for segment in self._segments]) if key.name == name]
        if not keys:
            return None
        values, present = empty_info_column(len(self._segments), keys)
        for row, segment in enumerate(self._segments):
            infos = [info for key in keys if (info := segment.episode.env_infos.get(key)) is not None]
            for info in infos:
                _, found = info.within(segment.stop - 1, segment.stop)
                if len(found):
                    values[row], present[row] = found[0], True
        return values, present

    def columns(self, *, all_states: bool) -> Iterator[Column]:
        """Yield all columns except observations.

        Args:
            all_states: whether to write recurrent states for each step, too.
        """
        # Keys of whole episodes, so that all segments of an episode have the same columns.
        keys = info_keys([segment.episode for segment in self._segments])
        for group, key in self._pieces[0].buffer.columns:
            name = step_column_name(group, key, all_states=all_states)
            if name is not None:
                yield Column.of(*name, self._rows((group, key)))
        yield from self._env_infos(key for key in keys if key[0] == "env_infos")
        yield from episode_info_columns([segment.episode.reset_infos for segment in self._segments], keys)
        yield from self._initial_states()

    @functools.cached_property
    def _runs(self) -> Sequence[_Run]:
        return [_Run(list(pieces)) for _, pieces in itertools.groupby(self._pieces, _buffer_id)]

    def _rows(self, key: ColumnKey) -> Rows | Gathered:
        if self._mean_length * bytes_of((key,), ()) <= _MAX_GATHERED_BYTES:
            parts = [run.part(key) for run in self._runs]
            gathered = [part for part in parts if part is not None]
            if len(gathered) == len(parts):
                return Gathered(gathered)
        arrays = [array for piece in self._pieces for array in piece.arrays(key)]
        return Rows(arrays, key[1].dtype, key[1].shape)

    def _env_infos(self, keys: Iterable[ColumnKey]) -> Iterator[Column]:
        num_rows = sum(segment.length for segment in self._segments)
        for name, same_name in keys_by_name(keys).items():
            column, mask = empty_info_column(num_rows, same_name)
            stop = 0
            for segment in self._segments:
                start, stop = stop, stop + segment.length
                for key in same_name:
                    info = segment.episode.env_infos.get(key)
                    if info is not None:
                        steps, values = info.within(segment.start, segment.stop)
                        column[start:stop][steps] = values
                        mask[start:stop][steps] = True
            yield from info_columns("environment_infos", name, column, mask)

    def _initial_states(self) -> Iterator[Column]:
        """Yield the recurrent states before the first step of each segment."""
        keys = [key for group, key in self._segments[0].episode.pieces[0].buffer.columns if group == "states"]
        firsts = [pieces[0] for pieces in self._segment_pieces] if keys else ()
        for key in keys:
            rows = [piece.first(("states", key))[np.newaxis] for piece in firsts]
            yield Column.of("initial_states", key.name, Rows(rows, key.dtype, key.shape))
