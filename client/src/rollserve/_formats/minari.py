"""Minari: a folder with metadata and one group of arrays for each episode."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rollserve._formats.hdf5_episodes import INFO_HINT, Hdf5Episodes, StoredEpisode, converted, num_steps_of
from rollserve._formats.minari_layout import (
    AGENT,
    ATTRIBUTES,
    DATA_FILE,
    METADATA_FILE,
    NUMBERS,
    RECEIPTS,
    hdf5_path,
)
from rollserve._formats.sources import EXTRA, RandomAccess, Source, check_numbers, file_error
from rollserve_wire.columns import columns_of, concatenate_infos, is_mask, mask_name
from rollserve_wire.errors import mismatch
from rollserve_wire.extras import load
from rollserve_wire.gymnasium_spaces import check_choices, gymnasium_space, space_of_gymnasium
from rollserve_wire.receipts import Receipt
from rollserve_wire.spaces import Space, Text, dtype_and_shape, leaf_spaces, named_leaves

__all__ = ["MinariSource"]

_INFO_GROUPS = ("env_infos", "episode_infos", "agent_infos")
_CHUNK_BYTES, _MAX_CHUNK_UNITS, _MAX_RANDOM_UNITS = 1 << 26, 256, 1024


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
                self._file = Hdf5Episodes(folder / DATA_FILE, self._own_spaces, infos=infos)
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
        most = max(_CHUNK_BYTES // episode_bytes, 1)
        size = min(most, _MAX_CHUNK_UNITS)
        self.random_access = RandomAccess(min(most, _MAX_RANDOM_UNITS), max(num_steps / max(num_episodes, 1), 1))
        self.chunks = [range(i, min(i + size, num_episodes)) for i in range(0, num_episodes, size)]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _read(self, units: Sequence[int]) -> list[dict[str, Any]]:
        with file_error(self._folder, "episodes of a Minari dataset"):
            episodes = list(self._episodes(units))
            fields = _fields_of([each.columns for each in episodes], self._own_spaces)
            fields |= _split_infos([each.infos for each in episodes], fields["lengths"].tolist())
            return [fields | _headers([each.attributes for each in episodes], units)]

    def _episodes(self, units: Sequence[int]) -> Iterator[StoredEpisode]:
        if self._file is not None:
            yield from self._file.read(units)
            return
        attributes = self._storage.get_episode_metadata(units)
        for episode, found in zip(self._storage.get_episodes(units), attributes, strict=True):
            infos = _flat_infos(episode["infos"] or {}) if self._infos else {}
            yield StoredEpisode(_columns_of(episode, self._own_spaces), infos, found)


def _columns_of(episode: Mapping[str, Any], spaces: tuple[Space, Space]) -> dict[str, np.ndarray]:
    """Return the columns by their paths of an episode that Minari has decoded."""
    columns = {"rewards": check_numbers("rewards", np.asarray(episode["rewards"]))}
    length = num_steps_of(columns["rewards"].shape)
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
    for name in NUMBERS:
        if all(name in episode for episode in episodes):
            fields[name] = np.concatenate([episode[name] for episode in episodes])
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
    for name, leaf in named_leaves(space).items():
        check_choices(f"{field}/{name}" if name else field, leaves[name], leaf)


def _leaf(value: Any, path: tuple[str | int, ...], leaf: Space) -> np.ndarray:
    for key in path:
        value = value[key]
    if isinstance(leaf, Text):
        texts = np.array(list(value), f"U{leaf.max_length}")
        return texts.view(np.uint32).reshape(len(texts), leaf.max_length)
    dtype, shape = dtype_and_shape(leaf)
    name = "/".join(map(str, path))
    column = converted(name, np.asarray(value), dtype)
    if column.shape[1:] != shape:
        raise ValueError(f"{name}: {mismatch(f'rows of shape {shape}', f'shape {column.shape}')}")
    return column


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
            check_numbers(f"infos/{name}", column, INFO_HINT)
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


def _headers(attributes: Sequence[Mapping[str, Any]], units: Sequence[int]) -> dict[str, Any]:
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


def _row_bytes(space: Space) -> int:
    dtype, shape = dtype_and_shape(space)
    return dtype.itemsize * int(np.prod(shape, dtype=object))


def _is_encoded(space: Space, dataset: Any) -> bool:
    """Whether Minari keeps a leaf in another form than numbers: as text, or as JPEG."""
    if isinstance(space, Text):
        return True
    image = load("minari.dataset.minari_storage", EXTRA).is_image_space
    return bool(getattr(dataset.storage, "jpeg_encoding", True)) and bool(image(gymnasium_space(space)))
