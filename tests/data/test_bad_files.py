"""Truncated, corrupt, hostile and changing files of each format: a clear error that begins with the path."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from data.conftest import WRITERS, ended, whole_episodes, write_minari

import rollserve


def files_of(path: Path) -> list[Path]:
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]


def largest(path: Path) -> Path:
    return max(files_of(path), key=lambda file: file.stat().st_size)


def read_all(path: Path) -> None:
    with rollserve.data.read(path) as reader:
        for _ in reader:
            pass


def error_of(path: Path) -> str | None:
    """Return the text of the ValueError that reading raises, None if it raises none."""
    try:
        read_all(path)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("part", [0.1, 0.5, 0.95])
def test_truncated_files_are_refused(file_format: str, part: float, tmp_path: Path) -> None:
    path = WRITERS[file_format](ended(whole_episodes()), tmp_path)
    file = largest(path)
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * part)])
    with pytest.raises(ValueError, match=f"^{tmp_path}.*: expected ") as raised:
        read_all(path)
    assert len(str(raised.value).splitlines()) == 1


def test_files_of_noise_are_refused(file_format: str, tmp_path: Path) -> None:
    path = WRITERS[file_format](ended(whole_episodes()), tmp_path)
    file = largest(path)
    start = file.read_bytes()[:8]
    file.write_bytes(start + np.random.default_rng(0).bytes(4000))
    with pytest.raises(ValueError, match=f"^{tmp_path}.*: expected "):
        read_all(path)


def test_changed_bytes_give_an_error_or_a_batch(file_format: str, tmp_path: Path) -> None:
    """Files without checksums can hold other numbers, but nothing else may happen."""
    path = WRITERS[file_format](ended(whole_episodes()), tmp_path)
    file = largest(path)
    content = file.read_bytes()
    generator = np.random.default_rng(1)
    for _ in range(20):
        changed = bytearray(content)
        changed[int(generator.integers(len(content)))] ^= int(generator.integers(1, 256))
        file.write_bytes(changed)
        error = error_of(path)
        assert error is None or error.startswith(str(tmp_path)), error


def test_empty_and_unknown_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(
        ValueError, match="expected a file of Rollserve, Parquet, HDF5 or JSON, got one that begins with"
    ):
        rollserve.data.read(tmp_path / "empty")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(rollserve.InvalidArgumentError, match="path: expected at least one file, got none"):
        rollserve.data.read(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError):
        rollserve.data.read(tmp_path / "missing")


def test_files_that_change_while_they_are_read_are_refused(file_format: str, tmp_path: Path) -> None:
    batch = ended(whole_episodes())
    path = WRITERS[file_format](batch, tmp_path)
    reader = rollserve.data.read(path, num_epochs=20)
    next(reader)
    file = largest(path)
    shutil.copyfile(file, tmp_path / "copy")
    shutil.move(tmp_path / "copy", file)
    with pytest.raises(ValueError, match="expected a file that stays as it is while it is read, got a change"):
        list(reader)


def test_minari_dataset_without_spaces_makes_no_environment(tmp_path: Path) -> None:
    path = write_minari(whole_episodes(), tmp_path)
    metadata = json.loads((path / "data" / "metadata.json").read_text())
    del metadata["observation_space"]
    metadata["env_spec"] = json.dumps({"id": "X-v0", "entry_point": "antigravity:X"})
    (path / "data" / "metadata.json").write_text(json.dumps(metadata))
    with pytest.raises(ValueError, match="observation_space: expected a space in the metadata, got none"):
        rollserve.data.read(path)


def test_minari_columns_of_another_shape_than_the_space_are_refused(tmp_path: Path) -> None:
    path = write_minari(whole_episodes(), tmp_path)
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        del file["episode_2/actions"]
        file["episode_2/actions"] = np.zeros((7, 3))
    with pytest.raises(ValueError, match="expected episodes of a Minari dataset, got "):
        read_all(path)


def test_objects_are_refused_by_name(tmp_path: Path) -> None:
    path = write_minari(whole_episodes(), tmp_path)
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        file["episode_0/infos/event"] = ["a"] * 6
    with pytest.raises(ValueError, match=r"infos/event: expected numbers or truth values, got object: `infos=False`"):
        read_all(path)
    assert next(rollserve.data.read(path, infos=False)).num_steps == whole_episodes().num_steps
    np.savez(tmp_path / "pickled.npz", lengths=np.array([1]), rewards=np.array([{}]))
    with pytest.raises(ValueError, match="Object arrays cannot be loaded"):
        read_all(tmp_path / "pickled.npz")
    table = pyarrow.table({"obs": ["a"], "actions": [1], "rewards": [1.0], "terminateds": [True]})
    pyarrow.parquet.write_table(table, tmp_path / "texts.parquet")
    with pytest.raises(ValueError, match="obs: expected numbers or truth values, got type string"):
        read_all(tmp_path / "texts.parquet")


def test_claimed_sizes_take_no_memory(tmp_path: Path) -> None:
    path = write_minari(whole_episodes(), tmp_path)
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        for name in ("rewards", "terminations", "truncations"):
            del file[f"episode_0/{name}"]
            file.create_dataset(f"episode_0/{name}", (1 << 40,), np.bool_ if name != "rewards" else float, chunks=(8,))
    with pytest.raises(ValueError, match="expected at most 1073741824 bytes at a time, got"):
        read_all(path)
