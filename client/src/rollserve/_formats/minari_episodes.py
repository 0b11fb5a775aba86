"""Episodes of batches as groups in HDF5, as Minari's datasets have them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rollserve._formats.minari_layout import AGENT, ATTRIBUTES, HEADERS, NUMBERS, RECEIPT, group_of, hdf5_path
from rollserve._formats.sources import EXTRA
from rollserve_wire.columns import is_mask, leaves_of, mask_name, original
from rollserve_wire.errors import mismatch
from rollserve_wire.extras import load
from rollserve_wire.spaces import Space, Text, leaf_spaces

_MAX_NAME_CHARACTERS = 1000

__all__ = ["check_info_names", "write_episodes"]


class _Column(NamedTuple):
    """Datasets at one path of the groups of episodes, each of consecutive rows of an array.

    Attributes:
        path: the path.
        rows: rows of all episodes, one behind the other.
        counts: (num_episodes,) number of rows of each episode. One that has none has no dataset.
    """

    path: str
    rows: np.ndarray
    counts: np.ndarray


def write_episodes(
    file: Any, batch: Any, spaces: tuple[Space, Space], first: int, *, with_seeds: bool, receipt: str | None
) -> None:
    """Write the episodes of a batch as groups.

    Args:
        file: the file, opened by h5py.
        batch: whole episodes.
        spaces: spaces of observations and actions.
        first: number of the first episode in the dataset.
        with_seeds: whether episodes have the attribute of their seed.
        receipt: receipt of the batch, which the first episode holds; None for none.

    Raises:
        ValueError: names that HDF5 cannot hold.
    """
    check_info_names(batch)
    columns = [*_columns(batch, spaces), *_infos(batch), *_receipts(receipt, len(batch))]
    attributes = {"id": first + np.arange(len(batch)), "total_steps": batch.lengths}
    if with_seeds:
        attributes[ATTRIBUTES["env_seeds"]] = batch.env_seeds
    names = [name for name in HEADERS if batch.policy_versions.any() or name != "policy_versions"]
    attributes |= {ATTRIBUTES[name]: getattr(batch, name) for name in names}
    writer = _ObjectWriter(load("h5py", EXTRA))
    ends = [np.cumsum(column.counts).tolist() for column in columns]
    starts = [[0, *each[:-1]] for each in ends]
    for episode in range(len(batch)):
        groups = {"": writer.add_group(file.id, group_of(first + episode))}
        for name, values in attributes.items():
            writer.add_attribute(groups[""], name.encode(), values[episode])
        for number, column in enumerate(columns):
            start, end = starts[number][episode], ends[number][episode]
            if start < end:
                folder, _, name = column.path.rpartition("/")
                writer.add_dataset(_group_at(writer, groups, folder), name.encode(), column.rows[start:end])


def _group_at(writer: _ObjectWriter, groups: dict[str, Any], path: str) -> Any:
    """Return the group at a path in an episode, which is created with those on the way if it is not there yet."""
    if path not in groups:
        parent, _, name = path.rpartition("/")
        groups[path] = writer.add_group(_group_at(writer, groups, parent), name.encode())
    return groups[path]


class _ObjectWriter:
    """Writes objects by h5py's low-level interface, which takes half as long as its `Group` and `Dataset`.

    Objects have no times, so that the same episodes are the same bytes.
    """

    def __init__(self, h5: Any) -> None:
        self._h5 = h5
        self._types: dict[np.dtype, Any] = {}
        self._scalar, self._int64 = h5.h5s.create(h5.h5s.SCALAR), h5.h5t.py_create(np.dtype(np.int64))
        self._group, self._dataset = h5.h5p.create(h5.h5p.GROUP_CREATE), h5.h5p.create(h5.h5p.DATASET_CREATE)
        for properties in (self._group, self._dataset):
            properties.set_obj_track_times(False)

    def add_group(self, parent: Any, name: bytes) -> Any:
        """Create a group in another one."""
        return self._h5.h5g.create(parent, name, gcpl=self._group)

    def add_attribute(self, group: Any, name: bytes, value: int) -> None:
        """Add an integer to a group."""
        self._h5.h5a.create(group, name, self._int64, self._scalar).write(np.array(value, np.int64))

    def add_dataset(self, group: Any, name: bytes, rows: np.ndarray) -> None:
        """Write an array into a group."""
        if rows.dtype not in self._types:
            self._types[rows.dtype] = self._h5.h5t.py_create(rows.dtype, logical=True)
        kind, space = self._types[rows.dtype], self._h5.h5s.create_simple(rows.shape)
        dataset = self._h5.h5d.create(group, name, kind, space, self._dataset)
        dataset.write(self._h5.h5s.ALL, self._h5.h5s.ALL, np.ascontiguousarray(rows), kind)


def check_info_names(batch: Any) -> None:
    """Raise ValueError for names that HDF5 cannot hold: two equal ones, or one that begins another one."""
    names = _info_names(batch)
    found = [*names, *map(mask_name, names), *(f"{AGENT}{name}" for name in batch.agent_infos)]
    for name in found:
        if any(part in ("", ".") or "\0" in part or len(part) > _MAX_NAME_CHARACTERS for part in name.split("/")):
            expected = f"names of 1 to {_MAX_NAME_CHARACTERS} characters between `/`, not `.` and without zeros"
            raise ValueError(f"infos: {mismatch(expected, name[:100])}")
        beginnings = {name.rsplit("/", depth)[0] for depth in range(1, name.count("/") + 1)}
        if found.count(name) > 1 or not beginnings.isdisjoint(found):
            raise ValueError(f"infos: {mismatch('names of which none is another one, or its beginning', name)}")


def _columns(batch: Any, spaces: tuple[Space, Space]) -> Iterator[_Column]:
    observations, last = leaves_of(batch.observations), leaves_of(batch.last_observations)
    actions = leaves_of(original(batch, "actions"))
    for parts, space in leaf_spaces(spaces[0]):
        name = "/".join(map(str, parts))
        rows = _with_rows(observations[name], last[name], batch.lengths, behind=True)
        yield _Column(hdf5_path("observations", parts).decode(), _as_stored(rows, space), batch.lengths + 1)
    for parts, space in leaf_spaces(spaces[1]):
        rows = _as_stored(actions["/".join(map(str, parts))], space)
        yield _Column(hdf5_path("actions", parts).decode(), rows, batch.lengths)
    for name in NUMBERS:
        if (values := original(batch, name)) is not None:
            yield _Column(name, values, batch.lengths)
    for path, flags in (("terminations", batch.terminated), ("truncations", batch.truncated)):
        rows = np.zeros(batch.num_steps, np.bool_)
        rows[np.cumsum(batch.lengths) - 1] = flags
        yield _Column(path, rows, batch.lengths)


def _infos(batch: Any) -> Iterator[_Column]:
    """Yield infos: of each episode, a row for its reset and one for each step; masks say where values are."""
    lengths = batch.lengths
    counts = lengths + 1
    for name in _info_names(batch):
        rows, valids = _info(batch, name)
        yield _Column(f"infos/{name}", rows, counts)
        has_gaps = ~np.logical_and.reduceat(valids, _starts(counts))
        yield _Column(f"infos/{mask_name(name)}", valids[np.repeat(has_gaps, counts)], counts * has_gaps)
    for name, column in batch.agent_infos.items():
        resets = np.zeros((len(lengths), *column.shape[1:]), column.dtype)
        yield _Column(f"infos/{AGENT}{name}", _with_rows(column, resets, lengths, behind=False), counts)


def _receipts(receipt: str | None, num_episodes: int) -> Iterator[_Column]:
    """Yield the receipt of the episodes, which the first one has, as one text."""
    if receipt is not None:
        encoded = receipt.encode()
        kind = load("h5py", EXTRA).string_dtype("utf-8", len(encoded))
        yield _Column(RECEIPT, np.array([encoded], kind), (np.arange(num_episodes) == 0).astype(np.int64))


def _info(batch: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of an info, (num_steps + num_episodes, …), and which of them are values."""
    found = []
    groups = (batch.env_infos, batch.num_steps), (batch.episode_infos, len(batch))
    model = next(infos[name] for infos, _ in groups if name in infos)
    for infos, num_rows in groups:
        rows = infos.get(name, np.zeros((num_rows, *model.shape[1:]), model.dtype))
        found.append((rows, infos.get(mask_name(name), np.full(num_rows, name in infos))))
    (steps, valid_steps), (resets, valid_resets) = found
    return tuple(
        _with_rows(*each, batch.lengths, behind=False) for each in ((steps, resets), (valid_steps, valid_resets))
    )  # type: ignore[return-value]


def _with_rows(rows: np.ndarray, others: np.ndarray, lengths: np.ndarray, *, behind: bool) -> np.ndarray:
    """Return the rows of all segments, each with a row of its own before or behind them."""
    result: np.ndarray = np.empty((len(rows) + len(lengths), *rows.shape[1:]), rows.dtype)
    starts = _starts(lengths + 1)
    result[starts + (lengths if behind else 0)] = others
    start = 0
    for place, length in zip((starts + (not behind)).tolist(), lengths.tolist(), strict=True):
        result[place : place + length] = rows[start : start + length]
        start += length
    return result


def _starts(counts: np.ndarray) -> np.ndarray:
    starts: np.ndarray = np.cumsum(counts) - counts
    return starts


def _as_stored(rows: np.ndarray, space: Space) -> np.ndarray:
    """Return rows as they are written: texts in UTF-8, padded with zeros to the length of the longest one."""
    if not isinstance(space, Text):
        return rows
    texts = np.char.encode(space.decode(rows), "utf-8")
    return texts.astype(load("h5py", EXTRA).string_dtype("utf-8", texts.dtype.itemsize))


def _info_names(batch: Any) -> list[str]:
    """Return the names of the environment's infos, without masks."""
    return [
        name
        for name in dict.fromkeys((*batch.env_infos, *batch.episode_infos))
        if not (is_mask(name, batch.env_infos) or is_mask(name, batch.episode_infos))
    ]
