"""Columns of messages, however the segments of a message are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rollserve_server.sampling.encode.fields import Gathered, Rows
from rollserve_server.sampling.encode.sizes import STATE_PREFIX
from rollserve_wire.columns import mask_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve_server.sampling.record.columns import ColumnKey
    from rollserve_server.sampling.record.infos import InfoKey

__all__ = [
    "Column",
    "Headers",
    "Observations",
    "empty_info_column",
    "episode_info_columns",
    "info_columns",
    "keys_by_name",
    "step_column_name",
]


class Headers(NamedTuple):
    """Values of the S segments of a message, (S,) each, named as the fields of EpisodeBatch."""

    episode_indices: np.ndarray
    first_steps: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    environment_seeds: np.ndarray


class Column(NamedTuple):
    """A column of a message.

    Attributes:
        group: field of EpisodeBatch that holds the column.
        name: name of the column in that field.
        rows: content of the column.
        num_raw_bytes: size that the column would have if it were plain.
        frame_count: number of frames of an observation, if the rows are frames; 0 otherwise.
    """

    group: str
    name: str
    rows: Rows | Gathered
    num_raw_bytes: int
    frame_count: int = 0

    @classmethod
    def of(cls, group: str, name: str, rows: Rows | Gathered) -> Column:
        """Return a plain column."""
        return cls(group, name, rows, rows.num_bytes)


class Observations(NamedTuple):
    """Observations of one leaf.

    Attributes:
        key: key of the leaf.
        rows: observation before each step.
        last: observation after the last step of each segment.
        find_frames: returns the frames of the observations, or None if they are no stacks of frames, or stacks that do
            not continue each other.
    """

    key: InfoKey
    rows: Rows | Gathered
    last: Rows
    find_frames: Callable[[], Rows | None]


def step_column_name(group: str, key: InfoKey, *, all_states: bool) -> tuple[str, str] | None:
    """Return the group and the name of a column of steps in messages; None if it has none, as observations."""
    match group:
        case "observations":
            return None
        case "states":
            return ("agent_infos", f"{STATE_PREFIX}{key.name}") if all_states else None
    return group, key.name


def episode_info_columns(infos: Sequence[Mapping[InfoKey, Any]], keys: Iterable[ColumnKey]) -> Iterator[Column]:
    """Yield columns of the infos of resets.

    Args:
        infos: infos of the reset of each segment's episode.
        keys: keys of the columns; other groups are ignored.
    """
    for name, same_name in keys_by_name(key for key in keys if key[0] == "episode_infos").items():
        column, mask = empty_info_column(len(infos), same_name)
        for row, row_infos in enumerate(infos):
            for key in same_name:
                if key in row_infos:
                    column[row] = row_infos[key]
                    mask[row] = True
        yield from info_columns("episode_infos", name, column, mask)


def keys_by_name(keys: Iterable[ColumnKey]) -> dict[str, list[InfoKey]]:
    """Return the keys by name, sorted by name and dtype, so that equal content is written alike."""
    by_name: dict[str, list[InfoKey]] = {}
    for _, key in sorted(keys, key=lambda key: (key[1].name, key[1].dtype.str)):
        by_name.setdefault(key.name, []).append(key)
    return by_name


def empty_info_column(num_rows: int, keys: Sequence[InfoKey]) -> tuple[np.ndarray, NDArray[np.bool_]]:
    """Return a column of zeros for values of keys of one name and shape, and its mask without any value."""
    dtype = np.result_type(*(key.dtype for key in keys))
    return np.zeros((num_rows, *keys[0].shape), dtype), np.zeros(num_rows, np.bool_)


def info_columns(group: str, name: str, column: np.ndarray, mask: NDArray[np.bool_]) -> Iterator[Column]:
    """Yield a column of infos, and the column of its mask if any value is missing."""
    yield Column.of(group, name, Rows.of(column))
    if not mask.all():
        yield Column.of(group, mask_name(name), Rows.of(mask))
