"""Minari datasets of many episodes: in all versions of HDF5, in all orders, and episodes that are stored otherwise."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from data.conftest import assert_same, ended
from learner_batches import random_batch

import rollserve
from rollserve import EpisodeBatch, spaces

NUM_EPISODES = 60


def many_episodes() -> EpisodeBatch:
    """Return episodes of 1 to 40 steps, each with a number in every observation that tells where it is from."""
    lengths = np.random.default_rng(0).integers(1, 41, NUM_EPISODES)
    batch = random_batch(lengths.tolist(), 0, first_steps=np.zeros(NUM_EPISODES, np.int64))
    box = spaces.Box(-np.inf, np.inf, (2,), np.dtype(float))
    batch = dataclasses.replace(
        batch,
        observation_space=box,
        action_space=spaces.Discrete(100_000),
        env_seeds=np.arange(NUM_EPISODES) * 3,
        episode_indices=np.arange(NUM_EPISODES) + 5,
        policy_versions=np.full(NUM_EPISODES, 2),
    )
    return ended(batch)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> tuple[EpisodeBatch, Path]:
    batch = many_episodes()
    return batch, batch.to_minari("some/episodes-v0", root=tmp_path_factory.mktemp("many"))


@pytest.fixture
def copied(dataset: tuple[EpisodeBatch, Path], tmp_path: Path) -> tuple[EpisodeBatch, Path]:
    """The dataset in a folder of the test's own."""
    return dataset[0], Path(shutil.copytree(dataset[1], tmp_path / "copied"))


def read(path: Path, **options: object) -> EpisodeBatch:
    with rollserve.data.read(path, **options) as reader:  # type: ignore[arg-type]
        return EpisodeBatch.concatenate(*reader)


def data_file(path: Path) -> Path:
    return path / "data" / "main_data.hdf5"


def rewrite(path: Path, libver: str) -> None:
    """Write the file of a dataset again by h5py, in a version of the format: v108 and later have checksums."""
    other_path = path / "other.hdf5"
    with h5py.File(data_file(path)) as file, h5py.File(other_path, "w", libver=(libver, "latest")) as other:
        for name in file:
            group = other.create_group(name)
            group.attrs.update(file[name].attrs)
            for column, dataset in file[name].items():
                file.copy(dataset, group, column)
    shutil.move(other_path, data_file(path))


@pytest.mark.parametrize("libver", ["earliest", "v108", "latest"])
@pytest.mark.parametrize("infos", [True, False])
def test_versions_of_hdf5_are_read_alike(infos: bool, libver: str, copied: tuple[EpisodeBatch, Path]) -> None:
    batch, path = copied
    rewrite(path, libver)
    assert_same(batch, read(path, infos=infos), set() if infos else {"env_infos", "agent_infos"})


def test_episodes_of_other_types_and_storage_are_read_alike(copied: tuple[EpisodeBatch, Path]) -> None:
    batch, path = copied
    with h5py.File(data_file(path), "a") as file:
        for number in range(0, NUM_EPISODES, 7):
            group = file[f"episode_{number}"]
            actions, rewards = group["actions"][()], group["rewards"][()]
            del group["actions"], group["rewards"]
            group["actions"] = actions.astype(">i4")
            group.create_dataset("rewards", data=rewards, chunks=(max(len(rewards) // 2, 1),), compression="gzip")
            group.attrs["seed"] = np.int32(number * 3)
    assert_same(batch, read(path))


def test_numbers_with_a_wrong_checksum_are_refused(copied: tuple[EpisodeBatch, Path]) -> None:
    """A seed whose bytes are changed is no seed; HDF5 knows by the checksum of the header."""
    _, path = copied
    rewrite(path, "v108")
    content = bytearray(data_file(path).read_bytes())
    seed = content.index(b"seed\0", len(content) // 2)
    value = content.index(np.int64(3 * (NUM_EPISODES // 2 + 5)).tobytes(), seed)
    content[value] ^= 1
    data_file(path).write_bytes(content)
    with pytest.raises(ValueError, match=f"^{path}.*: expected episodes of a Minari dataset, got "):
        read(path)


@pytest.mark.parametrize("length", [None, 1, 3])
def test_shuffled_parts_of_episodes_come_once_each(length: int | None, dataset: tuple[EpisodeBatch, Path]) -> None:
    batch, path = dataset
    parts = batch if length is None else batch.cut(length)
    shuffled = read(path, length=length, shuffle_seed=1, shuffle_steps=300)
    assert not np.array_equal(shuffled.episode_indices, parts.episode_indices)
    assert_same(parts, shuffled.take(np.lexsort((shuffled.first_steps, shuffled.episode_indices))))


def test_episodes_are_shuffled_among_all(dataset: tuple[EpisodeBatch, Path]) -> None:
    """Test independence of origin and place by chi², of 6 cells by 6 with 25 degrees, whatever the buffer."""
    counts = np.zeros((6, 6))
    for seed in range(30):
        order = read(dataset[1], shuffle_seed=seed, shuffle_steps=100, infos=False).episode_indices - 5
        np.add.at(counts, (order // 10, np.arange(NUM_EPISODES) // 10), 1)
    expected = counts.sum() / counts.size
    assert ((counts - expected) ** 2 / expected).sum() < 52  # 0.1 % quantile of chi² with 25 degrees: 52.6
