"""Tables of fragments, for rows that are stepped together."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rollserve_server.sampling.record.episodes import Episode
from rollserve_server.sampling.record.info_columns import InfoRecorder
from rollserve_server.sampling.record.infos import NO_INFOS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve_server.sampling.record.columns import ColumnKey, Piece
    from rollserve_server.sampling.record.infos import InfoKey, InfoReader
    from rollserve_server.sampling.record.step_columns import Places, StepColumns

__all__ = ["EndingFragments", "FragmentTable"]

_FRAGMENT_BYTES = 128
"""Approximate memory of a fragment without its steps, infos and last observation."""

_COLUMNS = (
    "rows",
    "starts",
    "episode_indices",
    "first_steps",
    "terminated",
    "truncated",
    "total_rewards",
    "returns_before",
    "discounted_before",
)
"""Arrays with an element for each fragment, which both classes have."""


class EndingFragments(NamedTuple):
    """N fragments that end with the same step.

    Attributes:
        stop: number of that step in the columns, plus 1.
        ended: when they ended (`time.perf_counter`).
        began: (N,), when their episodes began.
        columns, env_seed, rows, starts, episode_indices, first_steps, terminated, truncated, total_rewards,
            returns_before, discounted_before, last_observations, last_states, dropped_infos, reset_infos: as in
            `FragmentTable`.
    """

    stop: int
    ended: float
    began: NDArray[np.float64]
    columns: StepColumns
    env_seed: int
    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    episode_indices: NDArray[np.int64]
    first_steps: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    total_rewards: NDArray[np.float64]
    returns_before: NDArray[np.float64]
    discounted_before: NDArray[np.float64]
    last_observations: Sequence[np.ndarray]
    last_states: Sequence[np.ndarray]
    dropped_infos: Sequence[Mapping[str, int]]
    reset_infos: Sequence[Mapping[InfoKey, Any]] = ()

    @property
    def num_bytes(self) -> int:
        """Approximate memory of the fragments, without their steps."""
        return _num_bytes(len(self.rows), self.last_observations, self.last_states)

    @property
    def column_bytes(self) -> int:
        """Approximate memory of their steps."""
        return (len(self.rows) * self.stop - int(self.starts.sum())) * self.columns.step_bytes


@dataclass(frozen=True, eq=False)
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
        return _num_bytes(len(self), self.last_observations, self.last_states)

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

    @classmethod
    def of(cls, steps: Sequence[EndingFragments]) -> FragmentTable:
        """Return a table of fragments that end with several steps. They share the columns and the seed."""
        joined: dict[str, Any] = {name: np.concatenate([getattr(step, name) for step in steps]) for name in _COLUMNS}
        counts = [len(step.rows) for step in steps]
        joined["stops"] = np.repeat([step.stop for step in steps], counts)
        # Here, because one difference for all steps takes less time than one for each.
        ended, began = np.repeat([step.ended for step in steps], counts), np.concatenate([step.began for step in steps])
        joined["seconds"] = ended - began
        for name in ("last_observations", "last_states"):
            joined[name] = [
                np.concatenate(parts) for parts in zip(*(getattr(step, name) for step in steps), strict=True)
            ]
        joined["dropped_infos"] = [dropped for step in steps for dropped in step.dropped_infos]
        reset_infos: list[Mapping[InfoKey, Any]] = []
        if any(step.reset_infos for step in steps):
            for step in steps:
                reset_infos += step.reset_infos or [NO_INFOS] * len(step.rows)
        return cls(columns=steps[0].columns, env_seed=steps[0].env_seed, reset_infos=reset_infos, **joined)

    def select(self, start: int, stop: int) -> FragmentTable:
        """Return the fragments from `start` up to `stop`, as views."""
        if start == 0 and stop == len(self):
            return self
        columns: dict[str, Any] = {name: getattr(self, name)[start:stop] for name in (*_COLUMNS, "stops", "seconds")}
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


def _num_bytes(num_fragments: int, *last: Sequence[np.ndarray]) -> int:
    return num_fragments * _FRAGMENT_BYTES + sum(column.nbytes for columns in last for column in columns)
