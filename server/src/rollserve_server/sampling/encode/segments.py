"""Segments of episodes that were recorded one by one: distributed over messages, and as the content of one."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from rollserve_server.agents import STATE
from rollserve_server.errors import OverLimitError
from rollserve_server.sampling.encode.fields import (
    Column,
    Gathered,
    Headers,
    Observations,
    Rows,
    empty_info_column,
    episode_info_columns,
    info_columns,
    keys_by_name,
    step_column_name,
)
from rollserve_server.sampling.protocol import ENDING, PLAIN
from rollserve_server.sampling.record.columns import Piece, StackColumn
from rollserve_wire.columns import ENV_INFOS, HEADERS, ORIGINALS
from rollserve_wire.reasons import Reason
from rollserve_wire.recurrences import forward_recurrence

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve_server.sampling.protocol import ColumnFormat
    from rollserve_server.sampling.record.columns import ColumnKey
    from rollserve_server.sampling.record.episodes import Episode
    from rollserve_server.sampling.record.infos import InfoKey
    from rollserve_server.sampling.record.lives import ManyEpisode

__all__ = [
    "FILL_BYTES",
    "Segment",
    "SegmentContent",
    "Sizes",
    "cut_into_messages",
    "discounted_after",
    "endings_of",
    "frames_once",
    "groups_of_one_shape",
    "info_keys",
    "return_after",
    "sum_counts",
]

_T = TypeVar("_T")

_OwnedKey = tuple[Hashable, "InfoKey"]

FILL_BYTES = 2 << 20
"""Size that messages are filled up to: of 1 to 4 MiB, it takes the least CPU time through gRPC on both sides."""

_MIN_STEPS = 16
"""Number of steps that messages have room for where `max_message_bytes` allows it, however large a step is: otherwise
each message would hold a last observation beside very few others.
"""

_HEADER_BYTES = 64
"""Upper bound for a column's type, shape and lengths without its name, and for all headers of a segment."""

_NUM_HEADERS = sum(spec.kind == "header" for spec in HEADERS.values()) - 1
"""Number of headers that messages can have: all but `row_indices`, which clients compute."""

_VALUE_BYTES = 8
"""Upper bound for a value."""

_MAX_GATHERED_BYTES = 4 << 10
"""Bytes of a column's pieces, on average, up to which their steps are gathered: a copy of each piece takes about 1 µs
more, and is faster for long ones.
"""


class Segment(NamedTuple):
    """Consecutive steps of an episode, from `start` up to `stop`."""

    episode: Episode
    start: int
    stop: int

    @property
    def length(self) -> int:
        """Number of steps."""
        return self.stop - self.start

    @property
    def ends(self) -> bool:
        """Whether the segment holds the episode's last step."""
        return self.stop == self.episode.length

    @property
    def last_observations(self) -> Sequence[np.ndarray]:
        """Observation after the segment's last step, for each leaf of the observation space."""
        return self.episode.last_observations if self.ends else self._following("observations")

    @property
    def last_states(self) -> Sequence[np.ndarray]:
        """Recurrent states after the segment's last step, for each of the agent's states."""
        return self.episode.last_states if self.ends else self._following("states")

    @property
    def return_before(self) -> float:
        """Sum of the episode's rewards before the segment, added up step by step."""
        before = Segment(self.episode, 0, self.start).pieces() if self.start else ()
        return return_after(self.episode.return_before, before)

    def discounted_before(self, discount: float) -> float:
        """Return the discounted return of the episode before the segment."""
        if not self.start:
            return self.episode.discounted_before
        return discounted_after(self.episode.discounted_before, Segment(self.episode, 0, self.start).pieces(), discount)

    def _following(self, group: str) -> Sequence[np.ndarray]:
        """Return the values of the step after the segment, for each column of the group."""
        (following,) = Segment(self.episode, self.stop, self.stop + 1).pieces()
        return [following.first(key) for key in following.buffer.columns if key[0] == group]

    def pieces(self) -> list[Piece]:
        """Return the pieces of column buffers that hold the steps."""
        pieces = self.episode.pieces
        if self.start == 0 and self.ends:
            return pieces
        begin, selected = 0, []
        for piece in pieces:
            end = begin + piece.stop - piece.start
            start, stop = max(self.start, begin), min(self.stop, end)
            if start < stop:
                offset = piece.start - begin
                selected.append(Piece(piece.buffer, piece.row, start + offset, stop + offset))
            begin = end
        return selected


def cut_into_messages(
    episodes: Sequence[Episode],
    max_message_bytes: int,
    first_step: int = 0,
    fill_bytes: Callable[[], int] = lambda: FILL_BYTES,
    columns: ColumnFormat = PLAIN,
) -> Iterator[Sequence[Segment]]:
    """Yield the segments of each message, in order. An episode too long for one message goes on in the next.

    Args:
        episodes: finished episodes of one sequence.
        max_message_bytes: size that no message may exceed.
        first_step: step of the first episode to begin with.
        fill_bytes: returns the preferred size of the next message, which is exceeded where steps are very large.
        columns: how columns may be written.

    Raises:
        OverLimitError: a single step does not fit into a message.
    """
    for group in groups_of_one_shape(episodes, lambda episode: info_keys([episode])):
        keys = {*group[0].pieces[0].buffer.columns, *info_keys(group)}
        sizes = Sizes.of(keys, columns)
        yield from _cut(group, sizes, max_message_bytes, first_step, fill_bytes)
        first_step = 0


def _cut(
    episodes: Sequence[Episode], sizes: Sizes, limit: int, first_step: int, fill_bytes: Callable[[], int]
) -> Iterator[list[Segment]]:
    """Yield the segments of each message; see `cut_into_messages`."""

    def whole_room() -> int:
        return sizes.room(limit, fill_bytes())

    segments: list[Segment] = []
    room = whole_room()
    for episode in episodes:
        if segments and sizes.segment + episode.length * sizes.step > room:
            yield segments
            segments, room = [], whole_room()
        start, first_step = first_step, 0
        while sizes.segment + (episode.length - start) * sizes.step > room:
            stop = start + (room - sizes.segment) // sizes.step
            yield [Segment(episode, start, stop)]
            start, room = stop, whole_room()
        segments.append(Segment(episode, start, episode.length))
        room -= sizes.segment + (episode.length - start) * sizes.step
    yield segments


def groups_of_one_shape(items: Sequence[_T], keys_of: Callable[[_T], Collection[_OwnedKey]]) -> Iterator[Sequence[_T]]:
    """Group consecutive items whose infos of one name have one shape; nearly always, one group holds all.

    Args:
        items: the items, such as episodes.
        keys_of: returns the keys of an item's infos, with their owners.
    """
    keys = {key for item in items for key in keys_of(item)}
    names = {(owner, key.name) for owner, key in keys}
    if len(names) == len({(owner, key.name, key.shape) for owner, key in keys}):
        yield items
        return
    members: list[_T] = []
    shapes: dict[tuple[Hashable, str], tuple[int, ...]] = {}
    for item in items:
        new_shapes = {(owner, key.name): key.shape for owner, key in keys_of(item)}
        if any(shapes.get(name, shape) != shape for name, shape in new_shapes.items()):
            yield members
            members, shapes = [], {}
        members.append(item)
        shapes |= new_shapes
    yield members


def info_keys(episodes: Sequence[Episode]) -> set[ColumnKey]:
    """Return the keys of all infos that any of the episodes has."""
    keys: set[ColumnKey] = {("episode_infos", key) for episode in episodes for key in episode.reset_infos}
    return keys | {("env_infos", key) for episode in episodes for key in episode.env_infos}


def return_after(total: float, pieces: Sequence[Piece]) -> float:
    """Return a sum of raw rewards, with further steps' rewards added one by one: `np.sum` has another order."""
    for piece in pieces:
        keys = {key[0]: key for key in piece.buffer.columns}
        (rewards,) = piece.arrays(keys.get(ORIGINALS["rewards"], keys["rewards"]))
        total = float(np.add.accumulate(np.append(total, rewards))[-1])
    return total


def discounted_after(before: float, pieces: Sequence[Piece], discount: float) -> float:
    """Return a discounted return after further steps."""
    keys = {key[0]: key for key in pieces[0].buffer.columns}
    terms = np.concatenate([array for piece in pieces for array in piece.arrays(keys["rewards"])], dtype=np.float64)
    return float(forward_recurrence(discount, terms, np.array([len(terms)]), np.array([before]))[-1])


class Sizes(NamedTuple):
    """Upper bounds for the bytes of a message: a constant part, and parts for each segment and each step."""

    message: int
    segment: int
    step: int

    @classmethod
    def of(cls, keys: Iterable[ColumnKey], columns: ColumnFormat = PLAIN) -> Sizes:
        """Return the sizes of messages with these columns.

        Args:
            keys: keys of the columns.
            columns: how they may be written.
        """
        message, segment, step = _HEADER_BYTES * (_NUM_HEADERS + 1), _HEADER_BYTES, 0
        if columns.last_values:
            message, segment = message + _HEADER_BYTES, segment + _VALUE_BYTES
        for group, key in keys:
            in_segments = int(group in ("observations", "episode_infos", "states"))
            in_segments += group == "states" and columns.last_states
            in_steps = group != "episode_infos" and (group != "states" or columns.all_states)
            has_mask = group in ENV_INFOS
            num_columns = 1 + in_segments + has_mask
            prefix = len(STATE) * (group == "states")
            header = _HEADER_BYTES + 10 * len(key.shape) + prefix + len(key.name.encode()) + 1
            message += header * num_columns
            segment += (key.num_bytes + has_mask) * in_segments
            step += (key.num_bytes + has_mask) * in_steps
        return cls(message, segment, step)

    def room(self, limit: int, fill_bytes: int) -> int:
        """Return the bytes that a message has for segments and steps.

        Args:
            limit: size that the message may not exceed.
            fill_bytes: preferred size, exceeded where steps are very large.

        Raises:
            OverLimitError: a single step does not fit into `limit`.
        """
        smallest = sum(self)
        if smallest > limit:
            expected = f"at least {smallest}, the size of a message with a single step"
            raise OverLimitError.of(
                "options.max_message_bytes", expected=expected, got=limit, reason=Reason.MESSAGE_TOO_SMALL
            )
        return min(limit, max(fill_bytes, smallest + _MIN_STEPS * self.step)) - self.message


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
            env_seeds=np.array([segment.episode.env_seed for segment in segments], "<u4"),
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
        return sum_counts(segment.episode.dropped_infos for segment in self._segments if segment.ends)

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
        if self._mean_length * key[1].num_bytes <= _MAX_GATHERED_BYTES:
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
            yield from info_columns("env_infos", name, column, mask)

    def _initial_states(self) -> Iterator[Column]:
        """Yield the recurrent states before the first step of each segment."""
        keys = [key for group, key in self._segments[0].episode.pieces[0].buffer.columns if group == "states"]
        firsts = [pieces[0] for pieces in self._segment_pieces] if keys else ()
        for key in keys:
            rows = [piece.first(("states", key))[np.newaxis] for piece in firsts]
            yield Column.of("initial_states", key.name, Rows(rows, key.dtype, key.shape))


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


def frames_once(segments: Sequence[Sequence[Piece]], key: InfoKey, last: Iterable[np.ndarray]) -> Rows | None:
    """Return the frames of segments' observations.

    Args:
        segments: pieces of each segment.
        key: key of the observations' leaf.
        last: for each segment the observation (*O) after its last step.

    Returns:
        For each segment all frames of its first observation, and the newest frame of each following observation, as in
        `FrameStack`; None if the observations were not recorded as stacks, or a stack does not begin with the frames of
        the one before it, without the oldest.
    """
    column = ("observations", key)
    if not all(piece.has_stacks(column) for pieces in segments for piece in pieces):
        return None
    frames: list[np.ndarray] = []
    for pieces, observation in zip(segments, last, strict=True):
        # Within an array, stacks continue each other.
        arrays = [*(array for piece in pieces for array in piece.arrays(column)), observation[np.newaxis]]
        for before, following in itertools.pairwise(arrays):
            if before[-1, 1:].tobytes() != following[0, :-1].tobytes():
                return None
        frames += [arrays[0][0], arrays[0][1:, -1], *(array[:, -1] for array in arrays[1:])]
    return Rows(frames, key.dtype, key.shape[1:])


def sum_counts(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Return the sums of numbers by name."""
    total: Counter[str] = Counter()
    for each in filter(None, counts):
        total.update(each)
    return total


def endings_of(episodes: Iterable[Episode | ManyEpisode]) -> bytes:
    """Return the ends of the episodes that have ended, as the bytes of an array of `ENDING`."""
    endings = [
        (
            episode.index,
            episode.total_reward,
            episode.first_step + episode.length,
            episode.row,
            episode.seconds,
            episode.terminated,
            episode.truncated,
        )
        for episode in episodes
        if episode.ended
    ]
    return np.array(endings, ENDING).tobytes() if endings else b""
