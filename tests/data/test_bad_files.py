"""Truncated, corrupt, hostile and changing files of each format: a clear error that begins with the path."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from data.conftest import WRITERS, ended, whole_episodes, write_minari

import rollserve
from rollserve._codec import column_files
from rollserve._formats import sources


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
    with pytest.raises(
        rollserve.InvalidArgumentError, match="path: expected a dataset, or at least one file, got folders without"
    ):
        rollserve.data.read(tmp_path / "nothing")
    with pytest.raises(rollserve.InvalidArgumentError, match=r"path: expected a dataset, .*, got no path"):
        rollserve.data.read([])
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
    with pytest.raises(ValueError, match=r"infos/event: expected numbers or truth values, got object: `read"):
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


def changed_minari(path: Path, name: str, column: object) -> None:
    """Replace a dataset of HDF5 in the file of a Minari dataset."""
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        del file[name]
        file[name] = column


@pytest.mark.parametrize("seed", [np.arange(50), np.arange(1), "7", 1.5], ids=["long", "array", "text", "float"])
def test_seeds_of_minari_are_single_integers(seed: object, tmp_path: Path) -> None:
    path = write_minari(whole_episodes(), tmp_path)
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        file["episode_1"].attrs["seed"] = seed
    with pytest.raises(ValueError, match=f"^{tmp_path}.*seed: expected an attribute that is one integer, got "):
        read_all(path)


@pytest.mark.parametrize(
    ("name", "column", "text"),
    [
        ("observations", np.zeros((2, 8)), r"observations: expected shape \(8, 2\), got shape \(2, 8\)"),
        ("actions", np.full(7, 1.7), "actions: expected values of int64, got other values, of float64"),
        ("actions", np.full(7, np.nan), "actions: expected values of int64, got other values, of float64"),
        ("actions", np.full(7, 6000), "actions: expected values of Discrete"),
        ("actions", np.full(7, -1), "actions: expected values of Discrete"),
    ],
)
def test_columns_of_later_episodes_of_minari_fit_the_space(
    name: str, column: np.ndarray, text: str, tmp_path: Path
) -> None:
    path = write_minari(whole_episodes(), tmp_path)
    changed_minari(path, f"episode_2/{name}", column)
    with pytest.raises(ValueError, match=f"^{tmp_path}.*{text}"):
        read_all(path)


def test_whole_numbers_of_another_dtype_fit_the_space(tmp_path: Path) -> None:
    path = write_minari(whole_episodes(), tmp_path)
    changed_minari(path, "episode_2/actions", np.arange(7, dtype=np.float32))
    actions = np.asarray(next(rollserve.data.read(path)).actions)
    assert actions.dtype == np.int64
    assert actions[6:13].tolist() == list(range(7))


def zipped(path: Path, name: str, header: dict[str, object], content: bytes) -> Path:
    """Write an archive of one compressed array in numpy's format, whose header need not be true."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(name, "w") as file:
        np.lib.format.write_array_header_1_0(file, header)  # type: ignore[arg-type]
        file.write(content)
    return path


def test_claims_of_saved_batches_take_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = {"descr": "<f8", "fortran_order": False, "shape": (10**13,)}
    with pytest.raises(
        ValueError, match=rf"^{tmp_path}.*expected an array in 128 bytes, got shape \(10000000000000,\)"
    ):
        read_all(zipped(tmp_path / "a.npz", "lengths.npy", header, b""))
    monkeypatch.setattr(column_files, "_MAX_EXPANDED_BYTES", 1 << 16)
    header["shape"] = (1 << 14,)
    with pytest.raises(ValueError, match=rf"^{tmp_path}.*expected at most 65536 bytes of columns, got 131200"):
        read_all(zipped(tmp_path / "b.npz", "lengths.npy", header, bytes(8 << 14)))


def test_minari_spaces_of_another_form_are_refused(tmp_path: Path) -> None:
    path = write_minari(whole_episodes(), tmp_path)
    metadata = json.loads((path / "data" / "metadata.json").read_text())
    (path / "data" / "metadata.json").write_text(json.dumps({**metadata, "observation_space": [1]}))
    with pytest.raises(ValueError, match=f"^{tmp_path}.*expected a Minari dataset, got "):
        read_all(path)


def parquet_file(path: Path, **changes: object) -> Path:
    """Write a file of RLlib's columns with two steps."""
    columns: dict[str, object] = {"obs": [1.0, 2.0], "actions": [0, 1], "rewards": [1.0, 1.0]}
    columns |= {"terminateds": [False, True], "eps_id": [1, 1], "t": [0, 1]}
    pyarrow.parquet.write_table(pyarrow.table({**columns, **changes}), path)
    return path


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"rewards": [1.0, None]}, "rewards: expected a value in each row, got 1 nulls"),
        ({"eps_id": [None, 1]}, "eps_id: expected a value in each row, got 1 nulls"),
        ({"obs": [[1.0, None], [1.0, 2.0]]}, "obs: expected lists without nulls, got nulls"),
        ({"rewards": [[1.0, 2.0], [1.0, 2.0]]}, r"rewards: expected a number for each step, got shape \(2, 2\)"),
        ({"terminateds": [0.5, 1.0]}, "terminateds: expected flags, 0 or 1, got other numbers"),
        ({"eps_id": np.array([1 << 63] * 2, np.uint64)}, "eps_id: expected integers of 64 bits with sign, got 922"),
    ],
)
def test_columns_of_rllib_that_say_something_else_are_refused(
    changes: dict[str, object], text: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"^{tmp_path}.*{text}"):
        read_all(parquet_file(tmp_path / "a.parquet", **changes))


def test_decoded_sizes_of_parquet_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal values are encoded in a few bytes, whatever their number."""
    path = parquet_file(tmp_path / "a.parquet", obs=np.zeros((2, 1 << 14)).tolist())
    assert path.stat().st_size < 1 << 14
    monkeypatch.setattr(sources, "_MAX_CHUNK_BYTES", 1 << 17)
    with pytest.raises(ValueError, match=f"^{tmp_path}.*row groups: expected at most 131072 bytes at a time, got 26"):
        read_all(path)


@pytest.mark.parametrize("name", ["packed", "d4rl", "minari", "parquet"])
def test_sizes_of_all_columns_together_are_limited(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = WRITERS[name](ended(whole_episodes()), tmp_path)
    monkeypatch.setattr(sources, "_MAX_CHUNK_BYTES", 300)
    with pytest.raises(ValueError, match=f"^{tmp_path}.*: expected at most 300 bytes at a time, got"):
        read_all(path)


def d4rl_file(path: Path, **changes: object) -> Path:
    """Write a file of D4RL with four steps and no `timeouts`."""
    columns: dict[str, object] = {"observations": np.arange(4.0), "next_observations": np.arange(1.0, 5.0)}
    columns |= {"actions": np.zeros(4), "rewards": np.ones(4), "terminals": np.array([0, 0, 0, 1], np.uint8)}
    with h5py.File(path, "w") as file:
        for name, column in {**columns, **changes}.items():
            file[name] = column
    return path


def test_nan_in_observations_of_d4rl_ends_no_episode(tmp_path: Path) -> None:
    nan = np.full(4, np.nan)
    batch = next(rollserve.data.read(d4rl_file(tmp_path / "a.hdf5", observations=nan, next_observations=nan)))
    assert batch.lengths.tolist() == [4]
    with pytest.raises(ValueError, match=r"next_observations: expected rows of shape .*, as observations, got shape"):
        read_all(d4rl_file(tmp_path / "b.hdf5", next_observations=np.zeros((4, 3))))


def test_claims_of_d4rl_take_no_memory(tmp_path: Path) -> None:
    path = d4rl_file(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        for name in list(file):
            del file[name]
            file.create_dataset(name, (1 << 40,), np.uint8, chunks=(8,))
    with pytest.raises(ValueError, match=f"^{tmp_path}.*terminals: expected at most 1073741824 bytes at a time"):
        read_all(path)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ({"obs": [[1.0, 2.0]]}, "expected columns of batches that fit each other, got observations: "),
        ({"obs": {"x": [1.0]}}, "expected columns of batches that fit each other, got observations: "),
        ({"rewards": 1.0}, r"rewards: expected a number for each step, got shape \(\)"),
    ],
)
def test_lines_of_json_of_other_forms_are_refused(line: dict[str, object], text: str, tmp_path: Path) -> None:
    first = {"type": "SampleBatch", "obs": [1.0], "actions": [0], "rewards": [1.0], "terminateds": [True]}
    (tmp_path / "a.json").write_text("\n".join(map(json.dumps, (first, {**first, **line}))))
    with pytest.raises(ValueError, match=f"^{tmp_path}.*{text}"):
        read_all(tmp_path / "a.json")


def test_lines_of_json_whose_rows_fit_only_together_are_refused(tmp_path: Path) -> None:
    line = {"type": "SampleBatch", "obs": [1.0, 2.0], "actions": [0, 1], "rewards": [1.0, 1.0]}
    line |= {"terminateds": [False, True]}
    others = {**line, "obs": [1.0, 2.0, 3.0]}, {**line, "obs": [1.0]}
    (tmp_path / "a.json").write_text("\n".join(map(json.dumps, (line, *others))))
    with pytest.raises(ValueError, match=f"^{tmp_path}.*observations: expected 2 rows, as rewards, got shape"):
        read_all(tmp_path / "a.json")


def test_columns_that_do_not_fit_a_given_space_name_the_file(tmp_path: Path) -> None:
    path = parquet_file(tmp_path / "a.parquet")
    space = rollserve.spaces.Box(-1.0, 1.0, (3,), np.dtype(np.float32))
    with pytest.raises(ValueError, match=f"^{tmp_path}.*observations: expected rows of shape"):
        next(rollserve.data.read(path, observation_space=space))
