"""Fragments of rows that are stepped together: as tables, distributed over messages, and as the content of one."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.sampling.encode.fields import (
    Column,
    Gathered,
    Headers,
    Observations,
    Rows,
    episode_info_columns,
    info_columns,
    step_column_name,
)
from rollserve_server.sampling.encode.segments import (
    Sizes,
    discounted_after,
    frames_once,
    return_after,
    sum_counts,
)
from rollserve_server.sampling.protocol import ENDING, PLAIN
from rollserve_server.sampling.record.episodes import Episode
from rollserve_server.sampling.record.infos import NO_INFOS, InfoRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rollserve_server.sampling.protocol import ColumnFormat
    from rollserve_server.sampling.record.columns import ColumnKey, Piece
    from rollserve_server.sampling.record.infos import InfoKey, InfoReader
    from rollserve_server.sampling.record.step_columns import Places, StepColumns

__all__ = ["FragmentTable", "TableContent", "cut_table", "endings_of_table"]

_FRAGMENT_BYTES = 128
"""Approximate memory of a fragment without its steps, infos and last observation."""

_COLUMNS = (
    "rows",
    "starts",
    "stops",
    "episode_indices",
    "first_steps",
    "terminated",
    "truncated",
    "total_rewards",
    "returns_before",
    "discounted_before",
    "seconds",
)
"""Arrays with an element for each fragment."""


@dataclass(eq=False)  # not frozen, because a frozen one takes three times as long to make, for each step with an end
class FragmentTable:
    """N fragments, column by column.

    Attributes:
        columns: columns that hold the steps.
        env_seed: seed of the environment's reset.
        rows: (N,), the row of each fragment.
        starts: (N,), the number of its first step in the columns.
        stops: (N,), the number of its last step in the columns, plus 1.
        episode_indices: (N,), the index of its episode.
        first_steps: (N,), the number of steps that its episode has before it.
        terminated: (N,), bool, whether the environment terminated its episode with its last step.
        truncated: (N,), bool, whether its episode was truncated with its last step.
        total_rewards: (N,), the sum of its episode's rewards up to its last step, in this and in earlier calls.
        returns_before: (N,), the sum of its episode's rewards before its first step.
        discounted_before: (N,), the discounted return of its episode before its first step; 0 without a discount.
        seconds: (N,), the time from the start of its episode to its last step.
        last_observations: for each leaf of the observation space (N, *O), the observation after its last step.
        last_states: for each of the agent's recurrent states (N, *S), the state after its last step.
        dropped_infos: for each fragment, the number of values of infos that have no place in a column, by name.
        reset_infos: for each fragment, the environment's infos at the episode's start; empty if no fragment has any.
    """

    columns: StepColumns
    env_seed: int
    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    episode_indices: NDArray[np.int64]
    first_steps: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    total_rewards: NDArray[np.float64]
    returns_before: NDArray[np.float64]
    discounted_before: NDArray[np.float64]
    seconds: NDArray[np.float64]
    last_observations: Sequence[np.ndarray]
    last_states: Sequence[np.ndarray]
    dropped_infos: Sequence[Mapping[str, int]]
    reset_infos: Sequence[Mapping[InfoKey, Any]] = ()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N,), the number of steps of each fragment."""
        return self.stops - self.starts

    @property
    def num_bytes(self) -> int:
        """Approximate memory of the fragments, without their steps."""
        last = sum(column.nbytes for column in (*self.last_observations, *self.last_states))
        return len(self) * _FRAGMENT_BYTES + last

    @property
    def is_uniform(self) -> bool:
        """Whether all infos of one name have one dtype and shape."""
        keys = self.info_keys
        return len({(group, key.name) for group, key in keys}) == len(keys)

    @property
    def info_keys(self) -> set[ColumnKey]:
        """Keys of the environment's infos that any fragment may have."""
        keys: set[ColumnKey] = {("env_infos", key) for key in self.columns.info_keys}
        return keys | {("episode_infos", key) for infos in self.reset_infos for key in infos}

    @functools.cached_property
    def places(self) -> Places:
        """Places of all steps in the columns, one fragment behind the other."""
        return self.columns.places(self.rows, self.starts, self.stops)

    @functools.cached_property
    def first_places(self) -> Places:
        """Place of each fragment's first step in the columns."""
        return self.columns.places(self.rows, self.starts, self.starts + 1)

    @functools.cached_property
    def pieces(self) -> list[list[Piece]]:
        """Pieces of column buffers that hold the steps of each fragment."""
        runs = zip(self.rows.tolist(), self.starts.tolist(), self.stops.tolist(), strict=True)
        return [self.columns.pieces(*run) for run in runs]

    @property
    def column_bytes(self) -> int:
        """Approximate memory of their steps."""
        return int(self.lengths.sum()) * self.columns.step_bytes

    @classmethod
    def joined(cls, tables: Sequence[FragmentTable]) -> FragmentTable:
        """Return the fragments of tables that share the columns and the seed, one table behind the other."""
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(table, name) for table in tables]) for name in _COLUMNS
        }
        for name in ("last_observations", "last_states"):
            columns[name] = [
                np.concatenate(parts) for parts in zip(*(getattr(table, name) for table in tables), strict=True)
            ]
        columns["dropped_infos"] = [dropped for table in tables for dropped in table.dropped_infos]
        reset_infos: list[Mapping[InfoKey, Any]] = []
        if any(table.reset_infos for table in tables):
            for table in tables:
                reset_infos += table.reset_infos or [NO_INFOS] * len(table)
        return dataclasses.replace(tables[0], reset_infos=reset_infos, **columns)

    def select(self, start: int, stop: int) -> FragmentTable:
        """Return the fragments from `start` up to `stop`, as views."""
        if start == 0 and stop == len(self):
            return self
        columns: dict[str, Any] = {name: getattr(self, name)[start:stop] for name in _COLUMNS}
        for name in ("last_observations", "last_states"):
            columns[name] = [column[start:stop] for column in getattr(self, name)]
        columns["dropped_infos"] = self.dropped_infos[start:stop]
        return dataclasses.replace(self, reset_infos=self.reset_infos[start:stop], **columns)

    def episodes(self, reader: InfoReader) -> list[Episode]:
        """Return the fragments one by one. Their infos are read again, for columns of one dtype and shape each."""
        infos = [(key.name, *self.columns.infos(key, self.places)) for key in self.columns.info_keys]
        episodes = []
        stop = 0
        for number, length in enumerate(self.lengths.tolist()):
            start, stop = stop, stop + length
            dropped_infos = Counter(self.dropped_infos[number])
            recorder = InfoRecorder(reader, dropped_infos)
            for step in range(length):
                values = [(name, value[start + step]) for name, value, mask in infos if mask[start + step]]
                for name, value in values:
                    recorder.write(step, {name: value})
            episode = Episode(
                int(self.episode_indices[number]),
                self.env_seed,
                self.reset_infos[number] if self.reset_infos else NO_INFOS,
                recorder.finish(length),
                dropped_infos,
                self.pieces[number],
                length,
                int(self.first_steps[number]),
                bool(self.terminated[number]),
                bool(self.truncated[number]),
                [column[number] for column in self.last_observations],
                [column[number] for column in self.last_states],
                float(self.returns_before[number]),
                float(self.discounted_before[number]),
                row=int(self.rows[number]),
                total_reward=float(self.total_rewards[number]),
                seconds=float(self.seconds[number]),
            )
            episodes.append(episode)
        return episodes


def cut_table(
    table: FragmentTable,
    max_message_bytes: int,
    first_step: int,
    fill_bytes: Callable[[], int],
    columns: ColumnFormat = PLAIN,
) -> Iterator[_TableSlice]:
    """Yield the content of each message, in order. A fragment too long for one message goes on in the next.

    Args:
        table: the fragments.
        max_message_bytes: size that no message may exceed.
        first_step: step of the first fragment to begin with.
        fill_bytes: returns the preferred size of the next message, which is exceeded where steps are very large.
        columns: how columns may be written.

    Raises:
        OverLimitError: a single step does not fit into a message.
    """
    sizes = Sizes.of({*table.columns.keys, *table.info_keys}, columns)
    ends = np.cumsum(sizes.segment + table.lengths * sizes.step)
    fragment = 0
    while fragment < len(table):
        room = sizes.room(max_message_bytes, fill_bytes())
        begin = (ends[fragment - 1] if fragment else 0) + first_step * sizes.step
        stop = int(np.searchsorted(ends, begin + room, "right"))
        if stop > fragment:
            yield _TableSlice(table.select(fragment, stop), first_step, None)
            fragment, first_step = stop, 0
        else:
            last_step = first_step + (room - sizes.segment) // sizes.step
            yield _TableSlice(table.select(fragment, fragment + 1), first_step, last_step)
            first_step = last_step


@dataclass(frozen=True, eq=False)
class _TableSlice:
    """Consecutive steps of a table, for one message.

    Attributes:
        fragments: the fragments that the steps belong to.
        first_step: step of the first fragment that the slice begins with.
        last_step: step of the last fragment that the slice ends before; None if it holds the fragment's end.
    """

    fragments: FragmentTable
    first_step: int
    last_step: int | None

    @property
    def num_bytes(self) -> int:
        """Approximate memory of the fragments whose end the slice holds, without their steps."""
        return self.fragments.select(0, len(self.fragments) - (not self.ends)).num_bytes

    @property
    def ends(self) -> bool:
        """Whether the slice holds the last fragment's last step."""
        return self.last_step is None

    def pieces_before(self) -> Sequence[Piece]:
        """Return the pieces of column buffers with the steps of the first fragment that the slice begins behind."""
        table = self.fragments
        start = int(table.starts[0])
        return table.columns.pieces(int(table.rows[0]), start, start + self.first_step)

    def segments(self) -> FragmentTable:
        """Return the table with only those steps of its first and last fragment that the slice holds."""
        table = self.fragments
        if self.first_step == 0 and self.ends:
            return table
        starts, stops, first_steps = table.starts.copy(), table.stops.copy(), table.first_steps.copy()
        returns_before = table.returns_before
        if self.last_step is not None:
            stops[-1] = starts[-1] + self.last_step
        if self.first_step:
            returns_before = np.append(return_after(returns_before[0], self.pieces_before()), returns_before[1:])
        starts[0] += self.first_step
        first_steps[0] += self.first_step
        segments = dataclasses.replace(
            table, starts=starts, stops=stops, first_steps=first_steps, returns_before=returns_before
        )
        return segments if self.ends else _with_open_end(segments)


def _with_open_end(segments: FragmentTable) -> FragmentTable:
    """Return the segments with a last one that goes on: its last observation is the next one of its episode."""
    terminated, truncated = segments.terminated.copy(), segments.truncated.copy()
    terminated[-1] = truncated[-1] = False
    stop = int(segments.stops[-1])
    (following,) = segments.columns.pieces(int(segments.rows[-1]), stop, stop + 1)
    last = {}
    for group, columns in (("observations", segments.last_observations), ("states", segments.last_states)):
        last[group] = [column.copy() for column in columns]
        keys = [key for key in segments.columns.keys if key[0] == group]
        for column, key in zip(last[group], keys, strict=True):
            column[-1] = following.first(key)
    return dataclasses.replace(
        segments,
        terminated=terminated,
        truncated=truncated,
        last_observations=last["observations"],
        last_states=last["states"],
    )


class TableContent:
    """Content of a message with a slice of a table whose infos of one name have one key.

    Its columns refer to the table's, so the message has to be written before they change.
    """

    def __init__(self, content: _TableSlice) -> None:
        self._content = content
        self._fragments = content.fragments
        self._num_ending = len(content.fragments) - (not content.ends)
        self._segments = content.segments()
        self._stored = content.fragments.columns

    def headers(self) -> Headers:
        """Return the values of each segment."""
        segments = self._segments
        return Headers(
            episode_indices=segments.episode_indices.astype("<u8"),
            first_steps=segments.first_steps.astype("<u8"),
            lengths=segments.lengths.astype("<u4"),
            terminated=segments.terminated,
            truncated=segments.truncated,
            env_seeds=np.full(len(segments), segments.env_seed, "<u4"),
        )

    def dropped_infos(self) -> Counter[str]:
        """Return the number of values of infos, by name, that the fragments which end with a segment lack."""
        return sum_counts(self._fragments.dropped_infos[: self._num_ending])

    def endings(self) -> bytes:
        """Return the ends of the episodes that end with a segment; see `endings_of`."""
        return endings_of_table(self._segments)

    def ends(self) -> NDArray[np.bool_]:
        """Return whether each segment has the last step of its fragment, (S,)."""
        return np.arange(len(self._fragments)) < self._num_ending

    def ending_pieces(self, policy: str = "") -> Sequence[Sequence[Piece]]:
        """Return the pieces of column buffers with all steps of each fragment that ends with a segment."""
        return self._fragments.pieces[: self._num_ending]

    def ending_discounted_before(self, policy: str = "") -> NDArray[np.float64]:
        """Return the discounted returns before the first steps of the fragments of `ending_pieces`."""
        return self._fragments.discounted_before[: self._num_ending]

    def observations(self) -> Iterator[Observations]:
        """Yield the observations of each leaf of the observation space."""
        keys = [key for group, key in self._stored.keys if group == "observations"]
        for position, key in enumerate(keys):
            last = self._segments.last_observations[position]
            if self._stored.has_stacks(("observations", key)):
                yield self._stacks(key, last)
            else:
                yield Observations(key, self._rows(("observations", key)), Rows.of(last), lambda: None)

    def returns_before(self) -> NDArray[np.float64]:
        """Return the sum of the rewards of each segment's episode before it, (S,)."""
        return self._segments.returns_before.astype("<f8")

    def discounted_before(self, discount: float) -> NDArray[np.float64]:
        """Return the discounted return of each segment's episode before it, (S,)."""
        before = self._fragments.discounted_before.astype("<f8")
        if self._content.first_step:
            before[0] = discounted_after(before[0], self._content.pieces_before(), discount)
        return before

    def last_observations(self) -> Sequence[np.ndarray]:
        """Return the observation after each segment's last step, (S, *O) for each leaf of the observation space."""
        return self._segments.last_observations

    def last_states(self) -> list[tuple[str, np.ndarray]]:
        """Return the recurrent states after each segment's last step, (S, *H), with their names."""
        names = [key.name for group, key in self._stored.keys if group == "states"]
        return list(zip(names, self._segments.last_states, strict=True))

    def last_infos(self, name: str) -> tuple[np.ndarray, NDArray[np.bool_]] | None:
        """Return the environment's infos of a name that came with the last observations, and which are there.

        They are (S, *I) and (S,), or None if no segment has one.
        """
        last_steps = np.cumsum(self._segments.lengths) - 1
        for key in self._stored.info_keys:
            if key.name == name:
                values, present = self._stored.infos(key, self._segments.places)
                return values[last_steps], present[last_steps]
        return None

    def columns(self, *, all_states: bool) -> Iterator[Column]:
        """Yield all columns except observations.

        Args:
            all_states: whether to write recurrent states for each step, too.
        """
        for group, key in self._stored.keys:
            name = step_column_name(group, key, all_states=all_states)
            if name is not None:
                yield Column.of(*name, self._rows((group, key)))
        yield from self._env_infos()
        yield from episode_info_columns(self._segments.reset_infos, self._segments.info_keys)
        for group, key in self._stored.keys:
            if group == "states":
                rows = Gathered(self._stored.values((group, key), self._segments.first_places))
                yield Column.of("initial_states", key.name, rows)

    def _rows(self, key: ColumnKey) -> Gathered:
        return Gathered(self._stored.values(key, self._segments.places))

    def _stacks(self, key: InfoKey, last: np.ndarray) -> Observations:
        pieces = self._segments.pieces
        arrays = [array for fragment in pieces for piece in fragment for array in piece.arrays(("observations", key))]
        rows = Rows(arrays, key.dtype, key.shape)
        return Observations(key, rows, Rows.of(last), functools.partial(frames_once, pieces, key, last))

    def _env_infos(self) -> Iterator[Column]:
        for key in sorted(self._stored.info_keys, key=lambda key: key.name):
            values, mask = self._stored.infos(key, self._segments.places)
            # Values of whole fragments decide, so that all segments of a fragment have the same columns.
            if mask.any() or self._stored.infos(key, self._fragments.places)[1].any():
                yield from info_columns("env_infos", key.name, values, mask)


def endings_of_table(fragments: FragmentTable) -> bytes:
    """Return the ends of the episodes that end with these fragments, as the bytes of an array of `ENDING`."""
    ended = fragments.terminated | fragments.truncated
    endings = np.empty(int(np.count_nonzero(ended)), ENDING)
    if not len(endings):
        return b""
    endings["episode_index"] = fragments.episode_indices[ended]
    endings["total_reward"] = fragments.total_rewards[ended]
    endings["length"] = (fragments.first_steps + fragments.lengths)[ended]
    endings["row"] = fragments.rows[ended]
    endings["seconds"] = fragments.seconds[ended]
    endings["terminated"] = fragments.terminated[ended]
    endings["truncated"] = fragments.truncated[ended]
    return endings.tobytes()
