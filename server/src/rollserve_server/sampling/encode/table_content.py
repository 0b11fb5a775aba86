"""Content of a message whose segments are a slice of a fragment table."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.sampling.encode.columns import (
    Column,
    Headers,
    Observations,
    episode_info_columns,
    info_columns,
    step_column_name,
)
from rollserve_server.sampling.encode.endings import endings_of_table
from rollserve_server.sampling.encode.fields import Gathered, Rows
from rollserve_server.sampling.encode.frame_stacks import frames_once
from rollserve_server.sampling.encode.segments import discounted_after

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve_server.sampling.encode.table_slices import TableSlice
    from rollserve_server.sampling.record.columns import ColumnKey, Piece
    from rollserve_server.sampling.record.infos import InfoKey

__all__ = ["TableContent"]


class TableContent:
    """Content of a message with a slice of a table whose infos of one name have one key.

    Its columns refer to the table's, so the message has to be written before they change.
    """

    def __init__(self, content: TableSlice) -> None:
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
            environment_seeds=np.full(len(segments), segments.env_seed, "<u4"),
        )

    def dropped_infos(self) -> Counter[str]:
        """Return the number of values of infos, by name, that the fragments which end with a segment lack."""
        dropped: Counter[str] = Counter()
        for dropped_infos in filter(None, self._fragments.dropped_infos[: self._num_ending]):
            dropped.update(dropped_infos)
        return dropped

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
                yield from info_columns("environment_infos", key.name, values, mask)
