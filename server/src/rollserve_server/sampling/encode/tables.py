"""Fragments of rows that are stepped together, as a table, and what of it goes into which message."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rollserve_server.sampling.encode.segments import Sizes
from rollserve_server.sampling.record.episodes import ColumnBuffer, Episode, Piece
from rollserve_server.sampling.record.info_columns import InfoRecorder
from rollserve_server.sampling.record.infos import NO_INFOS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve_server.sampling.record.episodes import ColumnKey
    from rollserve_server.sampling.record.infos import InfoKey, InfoReader
    from rollserve_server.sampling.record.step_columns import StepColumns

__all__ = ["FragmentTable", "FragmentsOfStep", "TablePart", "cut_table"]

_FRAGMENT_BYTES = 128
"""What a fragment takes beside its steps and infos, about."""


class FragmentsOfStep(NamedTuple):
    """N fragments that end with the same step.

    Attributes:
        stop: one more than that step.
        columns, env_seed, rows, starts, episode_indices, first_steps, terminated, truncated, last_observations,
            reset_infos: see FragmentTable.
    """

    stop: int
    columns: StepColumns
    env_seed: int
    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    episode_indices: NDArray[np.int64]
    first_steps: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    last_observations: Sequence[np.ndarray]
    reset_infos: Sequence[Mapping[InfoKey, Any]] = ()

    @property
    def num_bytes(self) -> int:
        """About how much memory they take."""
        num_steps = len(self.rows) * self.stop - int(self.starts.sum())
        return len(self.rows) * _FRAGMENT_BYTES + num_steps * self.columns.step_bytes


@dataclass(frozen=True, eq=False)
class FragmentTable:
    """N fragments.

    Attributes:
        columns: where their steps stand.
        env_seed: what the environment was reset with.
        rows: (N,), of which row each is.
        starts: (N,), its first step in the columns.
        stops: (N,), one more than its last.
        episode_indices: (N,).
        first_steps: (N,), how many steps its episode has before it.
        terminated, truncated: (N,), bool; neither if it goes on.
        last_observations: for each leaf (N, *O), the observation after its last step.
        reset_infos: of each, the environment's infos at the episode's start; none at all if no fragment has any.
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
    last_observations: Sequence[np.ndarray]
    reset_infos: Sequence[Mapping[InfoKey, Any]] = ()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N,), how many steps each has."""
        return self.stops - self.starts

    @property
    def num_bytes(self) -> int:
        """About how much memory they take."""
        return len(self) * _FRAGMENT_BYTES + int(self.lengths.sum()) * self.columns.step_bytes

    @property
    def is_uniform(self) -> bool:
        """Whether infos of one name have one dtype and shape."""
        keys = self.info_keys
        return len({(group, key.name) for group, key in keys}) == len(keys)

    @property
    def info_keys(self) -> set[ColumnKey]:
        """The infos of environments that any fragment may have a value of."""
        keys: set[ColumnKey] = {("env_infos", key) for key in self.columns.info_keys}
        return keys | {("episode_infos", key) for infos in self.reset_infos for key in infos}

    @classmethod
    def of(cls, steps: Sequence[FragmentsOfStep]) -> FragmentTable:
        """The fragments that end with several steps, of the same columns and seed."""
        names = ("rows", "starts", "episode_indices", "first_steps", "terminated", "truncated")
        parts: dict[str, Any] = {name: np.concatenate([getattr(step, name) for step in steps]) for name in names}
        parts["stops"] = np.repeat([step.stop for step in steps], [len(step.rows) for step in steps])
        observations = zip(*(step.last_observations for step in steps), strict=True)
        parts["last_observations"] = [np.concatenate(leaf) for leaf in observations]
        reset_infos: list[Mapping[InfoKey, Any]] = []
        if any(step.reset_infos for step in steps):
            for step in steps:
                reset_infos += step.reset_infos or [NO_INFOS] * len(step.rows)
        return cls(columns=steps[0].columns, env_seed=steps[0].env_seed, reset_infos=reset_infos, **parts)

    def episodes(self, reader: InfoReader) -> list[Episode]:
        """The same fragments one by one, their infos read once more."""
        columns, places = self.columns, self.places
        buffer = ColumnBuffer({key: columns.column(key)[places][np.newaxis] for key in columns.keys})
        infos = [(key.name, *columns.infos(key, places)) for key in columns.info_keys]
        episodes = []
        stop = 0
        for number, length in enumerate(self.lengths.tolist()):
            start, stop = stop, stop + length
            recorder = InfoRecorder(reader)
            for step in range(length):
                values = [(name, value[start + step]) for name, value, mask in infos if mask[start + step]]
                for name, value in values:
                    recorder.write(step, {name: value})
            episode = Episode(
                int(self.episode_indices[number]),
                self.env_seed,
                self.reset_infos[number] if self.reset_infos else NO_INFOS,
                recorder.finish(length),
                [Piece(buffer, 0, start, stop)],
                length,
                int(self.first_steps[number]),
                bool(self.terminated[number]),
                bool(self.truncated[number]),
                [column[number] for column in self.last_observations],
            )
            episodes.append(episode)
        return episodes

    def part(self, start: int, stop: int) -> FragmentTable:
        """Those from one fragment up to another, all of them as views."""
        return dataclasses.replace(
            self,
            rows=self.rows[start:stop],
            starts=self.starts[start:stop],
            stops=self.stops[start:stop],
            episode_indices=self.episode_indices[start:stop],
            first_steps=self.first_steps[start:stop],
            terminated=self.terminated[start:stop],
            truncated=self.truncated[start:stop],
            last_observations=[column[start:stop] for column in self.last_observations],
            reset_infos=self.reset_infos[start:stop],
        )

    @functools.cached_property
    def places(self) -> NDArray[np.int64]:
        """Where all their steps stand in the columns, one fragment behind the other."""
        return self.columns.places(self.rows, self.starts, self.stops)

    @functools.cached_property
    def first_places(self) -> NDArray[np.int64]:
        """(N,), where the first step of each stands."""
        return self.columns.places(self.rows, self.starts, self.starts + 1)


@dataclass(frozen=True, eq=False)
class TablePart:
    """What a message holds.

    Attributes:
        whole: its fragments.
        first_step: which step of the first of them it begins with.
        last_step: up to which step of the last of them it goes; None for all of it.
    """

    whole: FragmentTable
    first_step: int
    last_step: int | None

    @property
    def num_bytes(self) -> int:
        """About how much memory what it holds takes."""
        num_steps = int(self.segments().lengths.sum())
        return (len(self.whole) if self.ends else 0) * _FRAGMENT_BYTES + num_steps * self.whole.columns.step_bytes

    @property
    def ends(self) -> bool:
        """Whether the last fragment's last step is there."""
        return self.last_step is None

    def segments(self) -> FragmentTable:
        """The fragments as far as the message holds them."""
        whole = self.whole
        if self.first_step == 0 and self.ends:
            return whole
        starts, stops, first_steps = whole.starts.copy(), whole.stops.copy(), whole.first_steps.copy()
        if self.last_step is not None:
            stops[-1] = starts[-1] + self.last_step
        starts[0] += self.first_step
        first_steps[0] += self.first_step
        segments = dataclasses.replace(whole, starts=starts, stops=stops, first_steps=first_steps)
        return segments if self.ends else _cut_off(segments)


def cut_table(
    table: FragmentTable, max_message_bytes: int, first_step: int, goal_bytes: Callable[[], int], *, all_states: bool
) -> Iterator[TablePart]:
    """What each message holds, in order; see `cut_into_messages`.

    Args:
        table: the fragments.
        max_message_bytes: the size that no message may exceed.
        first_step: of the first fragment, the step to begin with.
        goal_bytes: asked before each message for how much it is to hold.
        all_states: whether states of each step are written too.

    Raises:
        OverLimitError: a single step does not fit into a message.
    """
    sizes = Sizes.of({*table.columns.keys, *table.info_keys}, all_states=all_states)
    ends = np.cumsum(sizes.segment + table.lengths * sizes.step)
    fragment = 0
    while fragment < len(table):
        room = sizes.room(max_message_bytes, goal_bytes())
        begin = (ends[fragment - 1] if fragment else 0) + first_step * sizes.step
        stop = int(np.searchsorted(ends, begin + room, "right"))
        if stop > fragment:
            yield TablePart(table.part(fragment, stop), first_step, None)
            fragment, first_step = stop, 0
        else:
            last_step = first_step + (room - sizes.segment) // sizes.step
            yield TablePart(table.part(fragment, fragment + 1), first_step, last_step)
            first_step = last_step


def _cut_off(segments: FragmentTable) -> FragmentTable:
    """The same with a last one that goes on: what comes after it is the observation of its episode's next step."""
    terminated, truncated = segments.terminated.copy(), segments.truncated.copy()
    terminated[-1] = truncated[-1] = False
    columns, rows, stops = segments.columns, segments.rows[-1:], segments.stops[-1:]
    (place,) = columns.places(rows, stops, stops + 1)
    last_observations = [column.copy() for column in segments.last_observations]
    keys = [key for key in columns.keys if key[0] == "observations"]
    for column, key in zip(last_observations, keys, strict=True):
        column[-1] = columns.column(key)[place]
    return dataclasses.replace(
        segments, terminated=terminated, truncated=truncated, last_observations=last_observations
    )
