"""Minari: a folder with metadata and one group of arrays for each episode."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rollserve._codec.columns import columns_of, concatenate_infos, is_mask, mask_name
from rollserve._formats.gymnasium_spaces import check_choices, gymnasium_space, leaf_spaces, space_of_gymnasium
from rollserve._formats.minari_layout import (
    AGENT,
    ATTRIBUTES,
    DATA_FILE,
    METADATA_FILE,
    RECEIPT,
    RECEIPTS,
    dtype_and_shape,
    hdf5_path,
)
from rollserve._formats.sources import EXTRA, Source, check_bytes, check_numbers, file_error
from rollserve.bridges.loading import load
from rollserve.errors import mismatch
from rollserve.receipts import Receipt
from rollserve.spaces import Space, Text

__all__ = ["MinariSource"]

_INFO_GROUPS = ("env_infos", "episode_infos", "agent_infos")
_MAX_DATASPACES = 4096
_CACHE_BYTES = 1 << 19
_CHUNK_BYTES, _MAX_CHUNK_UNITS = 1 << 26, 256
_INFO_HINT = "`read(…, infos=False)` leaves all infos out"


class MinariSource(Source):
    """Episodes of a Minari dataset, whose units are episodes.

    Datasets in HDF5 without JPEG are read by HDF5 straight into the columns; others by Minari itself.

    Args:
        path: the dataset's folder, or the folder `data` in it.
        infos: whether to read infos.

    Raises:
        ImportError: Minari or h5py is not installed.
        ValueError: a folder that is no dataset, or one of a version that the installed Minari cannot read.
    """

    def __init__(self, path: Path, *, infos: bool) -> None:
        folder = path / "data" if (path / "data").is_dir() else path
        minari = load("minari", EXTRA)
        self._folder, self._infos = folder, infos
        files = [folder / METADATA_FILE, *folder.glob("*.hdf5")]
        with file_error(folder, "a Minari dataset"):
            metadata = json.loads((folder / METADATA_FILE).read_text())
            for name in ("observation_space", "action_space"):
                if name not in metadata:  # Minari would import and make the environment that the file names
                    raise ValueError(f"{name}: {mismatch('a space in the metadata', 'none')}")
            dataset = minari.MinariDataset(folder)
            super().__init__(files)
            num_episodes, num_steps = int(metadata["total_episodes"]), int(metadata["total_steps"])
            self._own_spaces = space_of_gymnasium(dataset.observation_space), space_of_gymnasium(dataset.action_space)
            self.spaces = self._own_spaces
            self._storage = dataset.storage
            leaves = [leaf for space in self._own_spaces for _, leaf in leaf_spaces(space)]
            self._file = None
            if metadata["data_format"] == "hdf5":
                self._file = _Hdf5Episodes(folder / DATA_FILE, self._own_spaces)
            num_found = sum(each.is_dir() for each in folder.iterdir()) if self._file is None else len(self._file)
            if not 0 <= num_episodes <= num_found:
                raise ValueError(f"total_episodes: {mismatch(f'at most {num_found}, as there are', num_episodes)}")
            receipts = metadata.get(RECEIPTS, [])
            self.receipts = [str(receipt) for receipt in receipts] if isinstance(receipts, list) else []
            if self._file is not None:
                with contextlib.suppress(ValueError):  # those who use receipts check them
                    first = sum(Receipt.from_json(receipt).num_segments for receipt in self.receipts)
                    self.receipts += self._file.receipts(range(first, num_episodes))
            if any(_is_encoded(leaf, dataset) for leaf in leaves):
                self._file = None  # Minari decodes it
            attributes: Mapping[str, Any] = (
                next(iter(self._storage.get_episode_metadata([0])), {}) if num_episodes else {}
            )
        self.missing = {} if ATTRIBUTES["policy_versions"] in attributes else {"policy_versions": "0, unknown"}
        episode_bytes = max(sum(map(_row_bytes, leaves)) * num_steps // max(num_episodes, 1), 1)
        size = min(max(_CHUNK_BYTES // episode_bytes, 1), _MAX_CHUNK_UNITS)
        self.chunks = [range(i, min(i + size, num_episodes)) for i in range(0, num_episodes, size)]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _read(self, units: range) -> dict[str, Any]:
        with file_error(self._folder, "episodes of a Minari dataset"):
            episodes = list(self._episodes(units))
            fields = _fields_of([each.columns for each in episodes], self._own_spaces)
            fields |= _split_infos([each.infos for each in episodes], fields["lengths"].tolist())
            return fields | _headers([each.attributes for each in episodes], units)

    def _episodes(self, units: range) -> Iterator[_Episode]:
        if self._file is not None:
            yield from self._file.read(units, infos=self._infos)
            return
        attributes = self._storage.get_episode_metadata(units)
        for episode, found in zip(self._storage.get_episodes(units), attributes, strict=True):
            infos = _flat_infos(episode["infos"] or {}) if self._infos else {}
            yield _Episode(_columns_of(episode, self._own_spaces), infos, found)


class _Episode(NamedTuple):
    """Columns by their paths, infos by their names, and attributes of an episode."""

    columns: Mapping[str, np.ndarray]
    infos: Mapping[str, np.ndarray]
    attributes: Mapping[str, Any]


class _InfoType(NamedTuple):
    """Type of an info in the file, the dtype of its array, and HDF5's type of this dtype."""

    own: Any
    dtype: np.dtype
    memory: Any


class _Hdf5Episodes:
    """Episodes in one HDF5 file, read with few calls and without conversions by h5py."""

    def __init__(self, path: Path, spaces: tuple[Space, Space]) -> None:
        self._h5 = load("h5py", EXTRA)
        self._file = self._h5.File(path, "r")
        _keep_little(self._file)
        rewards = self._file["episode_0/rewards"].dtype if "episode_0" in self._file else np.dtype(np.float64)
        check_numbers("rewards", np.empty(0, rewards))
        datasets: list[tuple[bytes, np.dtype, tuple[int, ...], int]] = [(b"rewards", rewards, (), 0)]
        for field, space in zip(("observations", "actions"), spaces, strict=True):
            for parts, leaf in leaf_spaces(space):
                datasets.append((hdf5_path(field, parts), *dtype_and_shape(leaf), int(field == "observations")))
        datasets += [(name, np.dtype(np.bool_), (), 0) for name in (b"terminations", b"truncations")]
        self._info_types: dict[bytes, _InfoType] = {}
        self._dataspaces: dict[tuple[int, ...], Any] = {}
        self._int64 = self._h5.h5t.py_create(np.dtype(np.int64))
        self._datasets = [(path, dtype, self._h5.h5t.py_create(dtype), *rest) for path, dtype, *rest in datasets]

    def __len__(self) -> int:
        return len(self._file)

    def close(self) -> None:
        self._file.close()

    def receipts(self, units: range) -> Iterator[str]:
        """Yield the receipts of episodes. The first episode of a receipt has it, and it says how many follow.

        Raises:
            ValueError: a receipt that is none.
        """
        unit, num_bytes = units.start, 0
        while unit in units and (path := f"episode_{unit}/{RECEIPT}") in self._file:
            dataset = self._file[path]
            if dataset.shape != (1,) or dataset.dtype.kind != "S":
                raise ValueError(f"{path}: {mismatch('one text of fixed length', f'{dataset.dtype}, {dataset.shape}')}")
            num_bytes += dataset.dtype.itemsize
            check_bytes("receipts", num_bytes)
            text = dataset[0].decode()
            yield text
            unit += max(Receipt.from_json(text).num_segments, 1)

    def read(self, units: range, *, infos: bool) -> Iterator[_Episode]:
        """Yield episodes one by one, with the attributes of headers: HDF5 slows down with many open objects."""
        num_bytes = 0
        for unit in units:
            group = self._h5.h5g.open(self._file.id, b"episode_%d" % unit)
            columns = self._columns(group)
            num_bytes += sum(column.nbytes for column in columns.values())
            check_bytes("episodes", num_bytes)
            found = self._infos(group) if infos and b"infos" in group else {}
            yield _Episode(columns, found, dict(self._attributes(group)))

    def _attributes(self, group: Any) -> Iterator[tuple[str, int]]:
        for name in ATTRIBUTES.values():
            if self._h5.h5a.exists(group, name.encode()):
                attribute = self._h5.h5a.open(group, name.encode())
                kind = attribute.get_type()
                # HDF5 writes as much as the file says, whatever the size of the buffer.
                if attribute.shape != () or not (kind.equal(self._int64) or kind.dtype.kind in "iu"):
                    got = f"{kind.dtype} of shape {attribute.shape}"
                    raise ValueError(f"{name}: {mismatch('an attribute that is one integer', got)}")
                value = np.empty((), np.int64)
                attribute.read(value, self._int64)
                yield name, int(value)

    def _columns(self, group: Any) -> dict[str, np.ndarray]:
        """Return the columns of an episode by their paths."""
        h5d = self._h5.h5d
        columns: dict[str, np.ndarray] = {}
        length = 0
        for path, dtype, memory_type, row_shape, extra in self._datasets:
            dataset = h5d.open(group, path)
            if not length:
                length = _length(dataset.shape)
            shape = (length + extra, *row_shape)
            name = path.decode()
            if dataset.shape != shape:
                raise ValueError(f"{name}: {mismatch(f'shape {shape}', f'shape {dataset.shape}')}")
            check_bytes(name, dtype.itemsize * math.prod(shape))
            if dataset.get_type().equal(memory_type):
                columns[name] = self._values(dataset, dtype, memory_type)
            else:
                check_bytes(name, dataset.dtype.itemsize * math.prod(shape))
                columns[name] = _converted(name, self._h5.Dataset(dataset)[()], dtype)
        return columns

    def _values(self, dataset: Any, dtype: np.dtype, memory_type: Any) -> np.ndarray:
        """Return the values of a dataset, given their dtype and HDF5's type of it."""
        values = np.empty(dataset.shape, dtype)
        dataset.read(self._dataspace(values.shape), self._h5.h5s.ALL, values, memory_type)
        return values

    def _dataspace(self, shape: tuple[int, ...]) -> Any:
        found = self._dataspaces.get(shape)
        if found is None:
            if len(self._dataspaces) >= _MAX_DATASPACES:
                self._dataspaces.clear()
            found = self._dataspaces[shape] = self._h5.h5s.create_simple(shape)
        return found

    def _infos(self, group: Any) -> dict[str, np.ndarray]:
        h5, infos = self._h5, dict[str, np.ndarray]()
        folders = [(b"", h5.h5g.open(group, b"infos"))]
        while folders:
            prefix, folder = folders.pop()
            for name in folder:
                path = prefix + name
                try:
                    child = h5.h5o.open(folder, name)
                except KeyError:  # a broken link
                    child = None
                if isinstance(child, h5.h5g.GroupID):
                    folders.append((path + b"/", child))
                else:
                    infos[path.decode()] = self._info(path, child)
        return infos

    def _info(self, path: bytes, dataset: Any) -> np.ndarray:
        """Return the values of an info; raise ValueError for None, a broken link, and for kinds that are no numbers."""
        h5, field = self._h5, f"infos/{path.decode()}"
        own = dataset.get_type() if isinstance(dataset, h5.h5d.DatasetID) else None
        known = self._info_types.get(path)
        if known is None or own is None or not known.own.equal(own):
            dtype = None if own is None else dataset.dtype
            if dtype is None or dtype.kind not in "biufc":
                raise ValueError(f"{field}: {mismatch('numbers or truth values', dtype, _INFO_HINT)}")
            known = self._info_types[path] = _InfoType(own, dtype, h5.h5t.py_create(dtype))
        check_bytes(field, known.dtype.itemsize * math.prod(dataset.shape))
        return self._values(dataset, known.dtype, known.memory)


def _keep_little(file: Any) -> None:
    """Bound the cache of HDF5 for descriptions of objects, each of which is used once: freeing many takes longer."""
    config = file.id.get_mdc_config()
    config.set_initial_size = True
    config.initial_size = config.min_size = config.max_size = _CACHE_BYTES
    config.incr_mode = config.flash_incr_mode = config.decr_mode = 0
    file.id.set_mdc_config(config)


def _columns_of(episode: Mapping[str, Any], spaces: tuple[Space, Space]) -> dict[str, np.ndarray]:
    """Return the columns by their paths of an episode that Minari has decoded."""
    columns = {"rewards": check_numbers("rewards", np.asarray(episode["rewards"]))}
    length = _length(columns["rewards"].shape)
    for field, space in zip(("observations", "actions"), spaces, strict=True):
        for parts, leaf in leaf_spaces(space):
            path, num_rows = hdf5_path(field, parts).decode(), length + int(field == "observations")
            columns[path] = _leaf(episode[field], parts, leaf)
            if len(columns[path]) != num_rows:
                raise ValueError(f"{path}: {mismatch(f'{num_rows} rows', len(columns[path]))}")
    return columns | {name: np.asarray(episode[name], np.bool_) for name in ("terminations", "truncations")}


def _fields_of(episodes: Sequence[Mapping[str, np.ndarray]], spaces: tuple[Space, Space]) -> dict[str, Any]:
    """Return the fields of episodes, given their columns by path; observations have a row more than there are steps."""
    lengths = [len(episode["rewards"]) for episode in episodes]
    fields: dict[str, Any] = {"lengths": np.array(lengths, np.int64)}
    fields["rewards"] = np.concatenate([episode["rewards"] for episode in episodes])
    paths = {
        field: {"/".join(map(str, parts)): hdf5_path(field, parts).decode() for parts, _ in leaf_spaces(space)}
        for field, space in zip(("observations", "actions"), spaces, strict=True)
    }
    columns = {name: np.concatenate([each[path] for each in episodes]) for name, path in paths["actions"].items()}
    _check_choices("actions", columns, spaces[1])
    fields["actions"] = columns_of(columns)
    before, last = {}, {}
    for name, path in paths["observations"].items():
        before[name] = np.concatenate([episode[path][:-1] for episode in episodes])
        last[name] = np.stack([episode[path][-1] for episode in episodes])
    for field, leaves in (("observations", before), ("last_observations", last)):
        _check_choices(field, leaves, spaces[0])
        fields[field] = columns_of(leaves)
    for flag, name in (("terminated", "terminations"), ("truncated", "truncations")):
        fields[flag] = _last_flags(name, np.concatenate([episode[name] for episode in episodes]), lengths)
    return fields


def _check_choices(field: str, leaves: Mapping[str, np.ndarray], space: Space) -> None:
    """Raise ValueError if a column of choices has another value than the space."""
    for parts, leaf in leaf_spaces(space):
        name = "/".join(map(str, parts))
        check_choices(f"{field}/{name}" if name else field, leaves[name], leaf)


def _leaf(value: Any, path: tuple[str | int, ...], leaf: Space) -> np.ndarray:
    for key in path:
        value = value[key]
    if isinstance(leaf, Text):
        texts = np.array(list(value), f"U{leaf.max_length}")
        return texts.view(np.uint32).reshape(len(texts), leaf.max_length)
    dtype, shape = dtype_and_shape(leaf)
    name = "/".join(map(str, path))
    column = _converted(name, np.asarray(value), dtype)
    if column.shape[1:] != shape:
        raise ValueError(f"{name}: {mismatch(f'rows of shape {shape}', f'shape {column.shape}')}")
    return column


def _converted(name: str, column: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return a column with the dtype of its space; raise ValueError where that would change integers or drop parts."""
    check_numbers(name, column)
    with np.errstate(invalid="ignore"):
        converted = column.astype(dtype, copy=False) if dtype.kind == "c" or column.dtype.kind != "c" else None
    if converted is None or (dtype.kind in "biu" and not np.array_equal(converted, column)):
        raise ValueError(f"{name}: {mismatch(f'values of {dtype}', f'other values, of {column.dtype}')}")
    return converted


def _last_flags(name: str, flags: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
    """Return the flags of the last steps; raise ValueError if another step has one."""
    ends = np.cumsum(lengths) - 1
    last: np.ndarray = flags[ends]
    if flags.sum() != last.sum():
        raise ValueError(f"{name}: {mismatch('True at the last step of an episode alone', 'another step')}")
    return last


def _split_infos(infos: Sequence[Mapping[str, np.ndarray]], lengths: Sequence[int]) -> dict[str, Any]:
    """Return the infos of steps, resets and agents; an info has rows for the reset and steps, or steps alone."""
    groups: dict[str, list[dict[str, np.ndarray]]] = {name: [] for name in _INFO_GROUPS}
    for found, length in zip(infos, lengths, strict=True):
        for parts in groups.values():
            parts.append({})
        for name, column in found.items():
            check_numbers(f"infos/{name}", column, _INFO_HINT)
            if column.ndim == 0 or len(column) not in (length, length + 1):
                raise ValueError(f"infos/{name}: {mismatch(f'{length} or {length + 1} rows', f'shape {column.shape}')}")
            if name.startswith(AGENT):
                groups["agent_infos"][-1][name.removeprefix(AGENT)] = column[-length:]
                continue
            if is_mask(name, found):
                continue
            valids = found.get(mask_name(name), np.ones(len(column), np.bool_))
            if valids.shape != (len(column),):
                raise ValueError(f"infos/_{name}: {mismatch(f'shape {(len(column),)}', f'shape {valids.shape}')}")
            if valids[-length:].any():
                groups["env_infos"][-1][name] = column[-length:]
                groups["env_infos"][-1][mask_name(name)] = valids[-length:].astype(np.bool_)
            if len(column) > length and valids[0]:
                groups["episode_infos"][-1][name] = column[:1]
    rows = {"env_infos": lengths, "agent_infos": lengths, "episode_infos": [1] * len(lengths)}
    return {name: concatenate_infos(parts, rows[name]) for name, parts in groups.items()}


def _headers(attributes: Sequence[Mapping[str, Any]], units: range) -> dict[str, Any]:
    """Return the headers of episodes. Seeds are None if one of the episodes has none."""
    unknown: dict[str, Sequence[int]] = {"policy_versions": [0] * len(units), "episode_indices": units}
    found: dict[str, Any] = {"env_seeds": None}
    for name, key in ATTRIBUTES.items():
        if name in unknown:
            values = [int(each.get(key, other)) for each, other in zip(attributes, unknown[name], strict=True)]
            found[name] = np.array(values, np.int64)
        elif all(key in each for each in attributes):
            found[name] = np.array([int(each[key]) for each in attributes], np.int64)
    return found


def _flat_infos(infos: Mapping[str, Any], prefix: str = "") -> dict[str, np.ndarray]:
    flat: dict[str, np.ndarray] = {}
    for name, value in infos.items():
        if isinstance(value, Mapping):
            flat |= _flat_infos(value, f"{prefix}{name}/")
        else:
            flat[f"{prefix}{name}"] = np.asarray(value)
    return flat


def _length(shape: tuple[int, ...]) -> int:
    if len(shape) != 1 or shape[0] < 1:
        raise ValueError(f"rewards: {mismatch('a row for each of at least one step', f'shape {shape}')}")
    return shape[0]


def _row_bytes(space: Space) -> int:
    dtype, shape = dtype_and_shape(space)
    return dtype.itemsize * int(np.prod(shape, dtype=object))


def _is_encoded(space: Space, dataset: Any) -> bool:
    """Whether Minari keeps a leaf in another form than numbers: as text, or as JPEG."""
    if isinstance(space, Text):
        return True
    image = load("minari.dataset.minari_storage", EXTRA).is_image_space
    return bool(getattr(dataset.storage, "jpeg_encoding", True)) and bool(image(gymnasium_space(space)))
