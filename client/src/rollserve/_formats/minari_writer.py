"""Writing of Minari datasets: episodes are added, and the dataset on disk is valid after each addition."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rollserve._formats.minari_episodes import check_info_names, write_episodes
from rollserve._formats.minari_layout import ATTRIBUTES, DATA_FILE, METADATA_FILE, group_of
from rollserve._formats.sources import EXTRA
from rollserve._formats.staged_file import StagedFile, journal_of, replace_file
from rollserve_wire.columns import leaves_of, original
from rollserve_wire.errors import mismatch
from rollserve_wire.extras import load
from rollserve_wire.gymnasium_spaces import gymnasium_space, space_of_gymnasium
from rollserve_wire.replays import has_own_seeds
from rollserve_wire.spaces import dtype_and_shape, named_leaves

if TYPE_CHECKING:
    from types import TracebackType

    from rollserve_wire.spaces import Space

__all__ = ["MinariWriter", "env_spec_of", "write_minari"]

_DATA_FOLDER = "data"
_SEED = ATTRIBUTES["env_seeds"]
_VERSIONS = "v108", "latest"
"""Versions of HDF5's format: 1.8 links groups by few pages, and has no mark of an open file that a kill would leave."""


class MinariWriter:
    """Adds whole episodes to a Minari dataset in HDF5.

    On disk is always a dataset that Minari loads, with the episodes of all additions that have ended: also after an
    error, such as of a full disk, and after the process was killed. Episodes that an interrupted addition has left
    behind the episodes that the metadata count are replaced. A dataset has one writer at a time.

    Attributes:
        folder: folder of the dataset.
        spaces: spaces of observations and actions.
    """

    def __init__(self, folder: Path) -> None:
        """Open a dataset, which `create` makes.

        Raises:
            ImportError: Minari or h5py is not installed.
            OSError: a file of the dataset cannot be opened.
            ValueError: the folder holds no dataset in HDF5.
        """
        self._h5 = load("h5py", EXTRA)
        self.folder = folder
        self._data = folder / _DATA_FOLDER
        try:
            self.metadata: Mapping[str, Any] = json.loads((self._data / METADATA_FILE).read_text())
            self.num_episodes, self.num_steps = (int(self.metadata[f"total_{n}"]) for n in ("episodes", "steps"))
            deserialize = load("minari.serialization", EXTRA).deserialize_space
            spaces = [space_of_gymnasium(deserialize(self.metadata[f"{n}_space"])) for n in ("observation", "action")]
            if self.metadata["data_format"] != "hdf5":
                raise ValueError(f"data_format: {mismatch('hdf5', self.metadata['data_format'])}")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{folder}: {mismatch('a Minari dataset with its spaces', error)}") from None
        self.spaces: tuple[Space, Space] = spaces[0], spaces[1]
        self._file = StagedFile(self._data / DATA_FILE)
        self._has_seeds: bool | None = None

    @classmethod
    def create(
        cls, folder: Path, dataset_id: str, spaces: tuple[Space, Space], *, env_spec: Any, metadata: Mapping[str, Any]
    ) -> Self:
        """Create a dataset without episodes.

        Args:
            folder: folder of the dataset, which may exist and hold files that are no dataset.
            dataset_id: Minari's id.
            spaces: spaces of observations and actions.
            env_spec: specification of gymnasium's environment; None if there is none.
            metadata: further metadata.

        Raises:
            ImportError: Minari or h5py is not installed.
            OSError: the dataset cannot be written.
        """
        h5, minari = load("h5py", EXTRA), load("minari", EXTRA)
        serialize = load("minari.serialization", EXTRA).serialize_space
        content = {
            "total_episodes": 0,
            "total_steps": 0,
            "data_format": "hdf5",
            "jpeg_encoding": False,  # JPEG would change images
            "observation_space": serialize(gymnasium_space(spaces[0])),
            "action_space": serialize(gymnasium_space(spaces[1])),
            "dataset_id": dataset_id,
            "minari_version": minari.__version__,
            **({} if env_spec is None else _env_metadata(env_spec)),
            **metadata,
        }
        data = folder / _DATA_FOLDER
        data.mkdir(parents=True, exist_ok=True)
        for file in (data / DATA_FILE, journal_of(data / DATA_FILE)):
            file.unlink(missing_ok=True)
        h5.File(data / DATA_FILE, "w", libver=_VERSIONS).close()
        replace_file(data / METADATA_FILE, _json_bytes(content))
        return cls(folder)

    @staticmethod
    def exists(folder: Path) -> bool:
        """Whether there is a dataset in a folder."""
        return (folder / _DATA_FOLDER / METADATA_FILE).exists()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        self._file.close()

    @property
    def num_bytes(self) -> int:
        """Size of the file with the episodes."""
        return len(self._file)

    def add(self, batches: Sequence[Any], receipts: Sequence[str | None], **metadata: Any) -> None:
        """Add the episodes of batches, and change metadata with them. An addition that fails changes nothing.

        Args:
            batches: the batches.
            receipts: receipt of each batch, None for none.
            metadata: changes of the metadata.

        Raises:
            OSError: the dataset cannot be written.
            ValueError: segments that are no whole episodes, or other spaces than the dataset's.
        """
        for batch in batches:
            _check_whole(batch)
            _check_spaces(batch, self.spaces)
        num_episodes = self.num_episodes + sum(map(len, batches))
        num_steps = self.num_steps + sum(batch.num_steps for batch in batches)
        try:
            self._write_episodes(batches, receipts)
        except BaseException:
            self._file.rollback()
            raise
        self._file.commit()
        size = round(len(self._file) / 1e6, 1)
        self.update_metadata(
            {**metadata, "total_episodes": num_episodes, "total_steps": num_steps, "dataset_size": size}
        )
        self.num_episodes, self.num_steps = num_episodes, num_steps

    def has_seeds(self) -> bool:
        """Whether the first episode has the seed of its reset."""
        if self._has_seeds is None and self.num_episodes:
            with self._opened() as file:
                self._has_seeds = _SEED in file[group_of(0)].attrs
        return bool(self._has_seeds)

    def _write_episodes(self, batches: Sequence[Any], receipts: Sequence[str | None]) -> None:
        has_seeds = self.has_seeds() if self.num_episodes else None
        first = self.num_episodes
        with self._opened() as file:
            for unit in range(first, len(file)):
                del file[group_of(unit)]
            for batch, receipt in zip(batches, receipts, strict=True):
                with_seeds = has_own_seeds(batch) and has_seeds is not False
                has_seeds = with_seeds if has_seeds is None else has_seeds
                write_episodes(file, batch, self.spaces, first, with_seeds=with_seeds, receipt=receipt)
                first += len(batch)

    def update_metadata(self, changes: Mapping[str, Any]) -> None:
        """Change metadata; raise OSError if they cannot be written."""
        metadata = {**self.metadata, **changes}
        replace_file(self._data / METADATA_FILE, _json_bytes(metadata))
        self.metadata = metadata

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        file = self._h5.File(self._file, "r+", libver=_VERSIONS)
        try:
            yield file
        finally:
            file.close()


def write_minari(
    batch: Any,
    dataset_id: str,
    *,
    root: str | os.PathLike[str] | None,
    env: Any,
    metadata: Mapping[str, Any],
    receipt: str | None,
    append: bool,
) -> Path:
    """Write a batch as a Minari dataset, or add it to one; see `EpisodeBatch.to_minari`."""
    load("h5py", EXTRA)
    load("minari.dataset.minari_dataset", EXTRA).parse_dataset_id(dataset_id)
    _check_whole(batch)
    check_info_names(batch)  # refuses some before a dataset is created
    folder = Path(root) / dataset_id if root is not None else _default_folder(dataset_id)
    spec = env_spec_of(env)
    known = MinariWriter.exists(folder)
    if known and not append:
        raise ValueError(f"dataset_id: {mismatch('a new dataset', f'{folder}, which exists', '`append` adds to it')}")
    if not known:
        spaces = _spaces_of(batch, spec)
        _check_spaces(batch, spaces)
    with (
        MinariWriter(folder)
        if known
        else MinariWriter.create(folder, dataset_id, spaces, env_spec=spec, metadata=metadata) as writer
    ):
        if writer.num_episodes:
            _check_seeds(batch, has_seeds=writer.has_seeds())
        writer.add([batch], [receipt])
    return folder


def env_spec_of(env: Any) -> Any:
    """Return gymnasium's specification of an environment that is given by its id, specification or object."""
    if env is None:
        return None
    gymnasium = load("gymnasium", EXTRA)
    if not isinstance(env, str):
        return getattr(env, "spec", env)
    try:
        return gymnasium.spec(env)
    except (gymnasium.error.Error, ImportError) as error:
        text = mismatch("the id of an environment of gymnasium", f"{env!r}: {' '.join(str(error).split())}")
        raise ValueError(f"env: {text}") from None


def _env_metadata(spec: Any) -> dict[str, str]:
    """Return the metadata of an environment, none if its arguments are no JSON."""
    with contextlib.suppress(TypeError):
        return {"env_spec": spec.to_json()}
    return {}


def _check_seeds(batch: Any, *, has_seeds: bool) -> None:
    """Raise ValueError if seeds would be lost, as readers give them for all episodes or for none."""
    if has_own_seeds(batch) != has_seeds:
        names = "episodes with seeds", "episodes without"
        expected, got = names if has_seeds else names[::-1]
        raise ValueError(f"env_seeds: {mismatch(f'{expected}, as in the dataset', got)}")


def _check_whole(batch: Any) -> None:
    late = np.flatnonzero(batch.first_steps)
    if len(late):
        text = mismatch(
            "segments that begin with their episode", f"segment {late[0]} at step {batch.first_steps[late[0]]}"
        )
        raise ValueError(f"first_steps: {text}")
    going = np.flatnonzero(~(batch.terminated | batch.truncated))
    if len(going):
        text = mismatch("episodes that have ended", f"segment {going[0]}, whose episode goes on")
        raise ValueError(f"terminated, truncated: {text}")


def _check_spaces(batch: Any, spaces: tuple[Space, Space]) -> None:
    columns = batch.observations, original(batch, "actions")
    for field, values, space in zip(("observations", "actions"), columns, spaces, strict=True):
        leaves = leaves_of(values)
        expected = named_leaves(space)
        if leaves.keys() != expected.keys():
            raise ValueError(f"{field}: {mismatch(f'leaves {sorted(expected)} of the space', sorted(leaves))}")
        for name, leaf in expected.items():
            shape = dtype_and_shape(leaf)[1]
            if leaves[name].shape[1:] != shape:
                raise ValueError(f"{field}: {mismatch(f'rows of shape {shape}', leaves[name].shape[1:])}")


def _spaces_of(batch: Any, spec: Any) -> tuple[Space, Space]:
    if batch.observation_space is not None and batch.action_space is not None:
        return batch.observation_space, batch.action_space
    if spec is None:
        hint = "the option `return_spaces` delivers the spaces, and `env` names the environment"
        raise ValueError(f"observation_space: {mismatch('the spaces of the batch', None, hint)}")
    env = load("gymnasium", EXTRA).make(spec)
    try:
        return space_of_gymnasium(env.observation_space), space_of_gymnasium(env.action_space)
    finally:
        env.close()


def _default_folder(dataset_id: str) -> Path:
    return Path(load("minari.storage.datasets_root_dir", EXTRA).get_dataset_path(dataset_id))


def _json_bytes(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, default=_json_value).encode()


def _json_value(value: Any) -> Any:
    if isinstance(value, set):
        return sorted(value)
    raise TypeError(mismatch("metadata that JSON can hold", type(value).__name__))
