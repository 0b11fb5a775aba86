"""Groups of HDF5 files that are read by the form of their headers, against what h5py reads."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import h5py
import minari
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from minari.data_collector import EpisodeBuffer

import rollserve
from rollserve._formats.alike_groups import AlikeGroups, Group

LIBVERS = ("earliest", "latest")
NAMES = (b"observations", b"actions", b"rewards", b"terminations", b"truncations", b"infos")
STORAGES: Mapping[str, Mapping[str, Any]] = {
    "contiguous": {},
    "chunks": {"chunks": True, "maxshape": True},  # as Minari writes them
    "small chunks": {"chunks": (3, 2, 1), "maxshape": True},
    "tiny chunks": {"chunks": (1, 1, 1)},
    "compressed": {"chunks": True, "compression": "gzip"},
    "shuffled": {"chunks": True, "shuffle": True, "fletcher32": True},
    "big-endian": {"byteorder": ">"},
    "external": {"external": True},
}
"""How a dataset is stored: chunks and largest shapes are cut to its rank."""
FOR_HDF5 = ("compressed", "shuffled", "big-endian", "external")


class Column(NamedTuple):
    """Dataset of each group: its path, dtype, shape of a row, rows more than rewards, and storage."""

    path: str
    dtype: str
    row_shape: tuple[int, ...] = ()
    num_extra: int = 0
    storage: str = "contiguous"


REWARDS = Column("rewards", "f8")


def add_group(file: h5py.File, number: int, columns: Sequence[Column], length: int, **attributes: Any) -> None:
    """Write a group of arrays that are a function of its number and length."""
    group = file.create_group(f"episode_{number}")
    group.attrs["id"] = number
    generator = np.random.default_rng(number)
    for column in columns:
        shape = (length + column.num_extra, *column.row_shape)
        options = dict(STORAGES[column.storage])
        dtype = np.dtype(column.dtype).newbyteorder(options.pop("byteorder", "="))
        if options.get("maxshape"):
            options["maxshape"] = (None, *column.row_shape)
        if isinstance(options.get("chunks"), tuple):
            options["chunks"] = tuple(map(min, options["chunks"], (length, *column.row_shape)))
        if options.pop("external", False):
            options["external"] = [(f"{file.filename}.{number}.raw", 0, h5py.h5f.UNLIMITED)]
        group.create_dataset(column.path, data=generator.integers(0, 2, shape).astype(dtype), **options)
    group.attrs["seed"] = 3 * number
    group.attrs.update(attributes)


def group_of(file: h5py.File, number: int) -> Group | None:
    """Return a group as h5py reads it, None if the file has other bytes; raise ValueError for a large one."""
    group = file[f"episode_{number}"]
    datasets: dict[str, h5py.Dataset] = {}
    group.visititems(lambda path, item: datasets.update({path: item}) if isinstance(item, h5py.Dataset) else None)
    attributes = {name: int(value) for name, value in group.attrs.items() if isinstance(value, np.int64)}
    if any(dataset.nbytes > 1 << 24 for dataset in datasets.values()):
        raise ValueError("an array that no test has written")
    if not all(dataset.dtype.isnative for dataset in datasets.values()):
        return None
    return Group({path: dataset[()] for path, dataset in datasets.items()}, attributes)


@contextlib.contextmanager
def alike_groups(path: Path) -> Iterator[tuple[AlikeGroups, h5py.File]]:
    with h5py.File(path, "r") as file:
        groups = AlikeGroups(path, file, NAMES)
        with contextlib.closing(groups):
            yield groups, file


def read(path: Path, numbers: Sequence[int] | None = None, calls: int = 1) -> dict[int, Group]:
    """Return the groups that are read without HDF5, found by some calls."""
    with alike_groups(path) as (groups, file):
        wanted = range(len(file)) if numbers is None else numbers
        found: dict[int, Group] = {}
        for start in range(calls):
            alike = groups.find(wanted[start::calls], lambda number: group_of(file, number))
            found |= {number: each.load() for number, each in alike.items()}
        return found


def same(one: Group, other: Group | None) -> bool:
    return (
        other is not None
        and one.arrays.keys() == other.arrays.keys()
        and all(one.arrays[path].tobytes() == array.tobytes() for path, array in other.arrays.items())
        and all(one.arrays[path].dtype == array.dtype for path, array in other.arrays.items())
        and all(one.arrays[path].shape == array.shape for path, array in other.arrays.items())
        and one.attributes == other.attributes
    )


def assert_as_h5py(path: Path, found: Mapping[int, Group]) -> None:
    with h5py.File(path, "r") as file:
        assert [number for number, group in found.items() if not same(group, group_of(file, number))] == []


@pytest.mark.parametrize("libver", LIBVERS)
@pytest.mark.parametrize("storage", STORAGES)
def test_groups_of_known_storage_are_read_without_hdf5(libver: str, storage: str, tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    rest = [Column("observations/a/b", "f4", (5, 2), 1, storage), Column("observations/c", "bool", (), 1, storage)]
    lengths = {"tiny chunks": [1, 2, 3, 2], "small chunks": [9, 1, 12, 2]}.get(storage, [9, 1, 300, 24])
    with h5py.File(path, "w", libver=libver) as file:
        for number, length in enumerate(lengths):
            add_group(file, number, [*rest, REWARDS, Column("infos/x/y", "i4", (2,), 1)], length)
    found = read(path)
    assert_as_h5py(path, found)
    is_known = storage not in FOR_HDF5 and (libver == "earliest" or "chunks" not in storage)
    assert len(found) == is_known * len(lengths)


def columns(draw: st.DrawFn) -> list[Column]:
    paths = ["actions", *draw(st.permutations(["observations/b/c", "observations/a", "observations/b/d"]))]
    return [REWARDS] + [
        Column(
            path,
            draw(st.sampled_from(["f8", "f4", "i8", "u1", "bool", "c8"])),
            tuple(draw(st.lists(st.integers(1, 9), max_size=2))),
            int(path != "actions"),
            draw(st.sampled_from(list(STORAGES))),
        )
        for path in paths[: draw(st.integers(1, 4))]
    ]


@settings(max_examples=15)
@given(st.data())
def test_arrays_are_those_that_h5py_reads(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("groups") / "a.hdf5"
    lengths = data.draw(st.lists(st.sampled_from([1, 2, 3, 17, 250]), min_size=1, max_size=9))
    chosen, infos = data.draw(st.composite(columns)()), [Column("infos/x", "f4", (2,)), Column("infos/y/z", "i8")]
    libvers = data.draw(st.lists(st.sampled_from(LIBVERS), min_size=1, max_size=3))

    def add(file: h5py.File, number: int) -> None:
        extra: dict[str, Any] = data.draw(st.sampled_from([{}, {"text": "a"}, {"level": 0.5}, {"seed": np.int32(4)}]))
        add_group(file, number, chosen + data.draw(st.sampled_from([[], infos])), lengths[number], **extra)

    for session, libver in enumerate(libvers):
        with h5py.File(path, "a", libver=libver) as file:
            for number in range(session, len(lengths), len(libvers)):
                add(file, number)
    with h5py.File(path, "a", libver=libvers[0]) as file:
        for number in data.draw(st.sets(st.sampled_from(range(len(lengths))))):
            del file[f"episode_{number}"]
            lengths[number] = data.draw(st.sampled_from([1, 5]))
            add(file, number)
    assert_as_h5py(path, read(path, calls=data.draw(st.integers(1, 2))))


@pytest.mark.parametrize("libver", LIBVERS)
def test_groups_in_a_large_root_are_found(libver: str, tmp_path: Path) -> None:
    path, number = tmp_path / "a.hdf5", 4200
    with h5py.File(path, "w", libver=libver) as file:
        for each in range(number):
            file[f"episode_{each}/rewards"] = np.full(each % 3 + 1, each)
    found = read(path, calls=20)
    assert len(found) == number
    assert all(group.arrays["rewards"].tolist() == [each] * (each % 3 + 1) for each, group in found.items())


def test_links_that_are_not_hard_are_left_to_hdf5(tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        for number in range(4):
            add_group(file, number, [REWARDS, Column("actions", "f4")], 3)
        del file["episode_2/actions"]
        file["episode_2/actions"] = h5py.SoftLink("/episode_1/actions")
        del file["episode_3"]
        file["episode_3"] = h5py.SoftLink("/episode_0")
    assert read(path).keys() == {0, 1}


def test_groups_that_hold_themselves_are_left_to_hdf5(tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    for libver in LIBVERS:
        with h5py.File(path, "w", libver=libver) as file:
            add_group(file, 0, [REWARDS], 3)
            file["episode_0/infos/again"] = file.require_group("episode_0/infos")
        assert read(path) == {}


@pytest.mark.parametrize(
    ("libver", "storage"), [("earliest", "contiguous"), ("earliest", "small chunks"), ("latest", "contiguous")]
)
def test_changed_bytes_give_what_h5py_reads(libver: str, storage: str, tmp_path: Path) -> None:
    """Bytes that say nothing of the arrays, such as times, may differ: then the arrays are as before."""
    path, rest = tmp_path / "a.hdf5", [Column("observations/a", "f4", (2,), 1, storage), Column("actions", "i8")]
    with h5py.File(path, "w", libver=libver) as file:
        for number in range(3):
            add_group(file, number, [*rest, REWARDS], 4 + number)
    content, before = path.read_bytes(), read(path)
    assert len(before) == 3
    generator = np.random.default_rng(0)
    num_kept = 0
    for position in generator.permutation(np.arange(96, len(content)))[:40].tolist():
        changed = bytearray(content)
        changed[position] ^= 1 << int(generator.integers(8))
        path.write_bytes(changed)
        try:
            found = read(path)
        except (ValueError, KeyError, OSError, RuntimeError):
            continue
        num_kept += sum(same(group, before.get(number)) for number, group in found.items())
        others = {number: group for number, group in found.items() if not same(group, before.get(number))}
        assert_as_h5py(path, others)
    assert num_kept > 40


@pytest.mark.parametrize("libver", LIBVERS)
def test_files_that_are_cut_off_are_refused(libver: str, tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w", libver=libver) as file:
        for number in range(3):
            add_group(file, number, [REWARDS, Column("actions", "f8", (500,))], 4)
    with alike_groups(path) as (groups, file):
        alike = groups.find(range(2), lambda number: group_of(file, number))
        assert len(alike) == 2
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(ValueError, match=r"expected a file of .* bytes, got one that is cut off"):
            groups.find(range(3), lambda number: group_of(file, number))


def buffers(numbers: range) -> list[EpisodeBuffer]:
    """Return episodes in the form of Minari's collector, some of whose arrays have many chunks."""
    episodes = []
    for number in numbers:
        generator, length = np.random.default_rng(number), (1, 7, 400)[number % 3]
        ends = np.arange(length) == length - 1
        observations = {"a": {"b": generator.normal(size=(length + 1, 9))}, "c": generator.integers(3, size=length + 1)}
        actions = generator.normal(size=(length, 2)).astype(np.float32)
        infos = {"x": generator.normal(size=length + 1), "y": {"z": generator.integers(9, size=(length + 1, 2))}}
        episode = EpisodeBuffer(
            id=number,
            seed=number,
            observations=observations,
            actions=actions,
            rewards=generator.normal(size=length),
            terminations=ends,
            truncations=ends & False,
            infos=infos if number % 2 else {},
        )
        episodes.append(episode)
    return episodes


def test_files_of_minari_are_read_without_hdf5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    box = gymnasium.spaces.Box(-np.inf, np.inf, (9,), np.float64)
    spaces = gymnasium.spaces.Dict({"a": gymnasium.spaces.Dict({"b": box}), "c": gymnasium.spaces.Discrete(3)})
    actions = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of metadata that are missing
        dataset = minari.create_dataset_from_buffers(
            "some/episodes-v0", buffers(range(9)), observation_space=spaces, action_space=actions, data_format="hdf5"
        )
    dataset.update_dataset_from_buffer(buffers(range(9, 15)))
    found = read(tmp_path / "some/episodes-v0/data/main_data.hdf5")
    assert len(found) == 15
    assert_as_h5py(tmp_path / "some/episodes-v0/data/main_data.hdf5", found)

    batches = list(rollserve.data.read(tmp_path / "some/episodes-v0", batch_size=15))
    assert len(batches) == 1
    starts = np.append(0, np.cumsum(batches[0].lengths))
    for episode, start, end in zip(dataset.iterate_episodes(), starts[:-1], starts[1:], strict=True):
        assert np.array_equal(batches[0].observations["a/b"][start:end], episode.observations["a"]["b"][:-1])
        assert np.array_equal(batches[0].actions[start:end], episode.actions)
        assert np.array_equal(batches[0].rewards[start:end], episode.rewards)
