"""Files that Minari datasets consist of: HDF5 and Minari read, change and extend what Rollserve writes."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import minari
import numpy as np
import pytest
from data.conftest import LENGTHS, assert_same, ended, whole_episodes
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_batches import random_batch
from minari.data_collector import EpisodeBuffer

import rollserve
from rollserve import EpisodeBatch, Receipt, spaces

ID = "some/episodes-v0"
FILE = "data/main_data.hdf5"

DTYPES = st.sampled_from([np.float16, np.float32, np.float64, np.int8, np.uint8, np.int32, np.int64, np.uint16])
SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple) | st.just((0,))


def box(dtype: Any, shape: tuple[int, ...]) -> spaces.Box:
    limit = np.inf if np.dtype(dtype).kind == "f" else 100
    return spaces.Box(-limit if np.dtype(dtype).kind in "fi" else 0, limit, shape, np.dtype(dtype))


@st.composite
def spaced_batches(draw: st.DrawFn) -> EpisodeBatch:
    """Draw whole episodes with observations and infos of all dtypes and shapes, plain or by name."""
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    generator = np.random.default_rng(draw(st.integers(0, 1000)))

    def rows(number: int, space: spaces.Box) -> np.ndarray:
        return generator.integers(0, 100, (number, *space.shape)).astype(space.dtype)

    leaves = {
        name: box(draw(DTYPES), draw(SHAPES)) for name in draw(st.sampled_from([("",), ("a",), ("a", "b/c", "b/d")]))
    }
    nested = {name: space for name, space in leaves.items() if "/" not in name}
    inner = {name[2:]: space for name, space in leaves.items() if "/" in name}
    space: spaces.Space = (
        leaves[""] if "" in leaves else spaces.Dict(nested | ({"b": spaces.Dict(inner)} if inner else {}))
    )
    size, number = sum(lengths), len(lengths)
    observations = {name: rows(size, each) for name, each in leaves.items()}
    last = {name: rows(number, each) for name, each in leaves.items()}
    plain = "" in leaves
    gaps = np.repeat(generator.random(number) < 0.5, lengths) | (generator.random(size) < 0.5)
    info = np.where(gaps.reshape(-1, 1), generator.random((size, 2)), 0.0)
    batch = random_batch(
        lengths,
        0,
        observations=observations[""] if plain else observations,
        last_observations=last[""] if plain else last,
        observation_space=space,
        action_space=spaces.Discrete(6000),
        first_steps=np.zeros(number, np.int64),
        policy_versions=np.arange(number),
        env_seeds=np.arange(number),
        episode_indices=np.arange(number),
        env_infos={"flag": generator.random(size) < 0.5, "folder/gap": info, "_folder/gap": gaps},
    )
    return ended(batch)


def objects_of(path: Path) -> int:
    """Read all that an HDF5 file holds, and check that each object has one link; return the number of objects."""
    count = 0

    def visit(name: str, found: Any) -> None:
        nonlocal count
        count += 1
        assert h5py.h5o.get_info(found.id).rc == 1, name
        assert all(np.shape(value) == () for value in found.attrs.values())
        if isinstance(found, h5py.Dataset):
            assert found[()].shape == found.shape

    with h5py.File(path) as file:
        file.visititems(visit)
    return count


def read(folder: Path) -> EpisodeBatch:
    return EpisodeBatch.concatenate(*rollserve.data.read(folder))


def receipts_of(folder: Path) -> tuple[str, ...]:
    with rollserve.data.read(folder) as reader:
        return reader.receipts


def assert_minari_reads(folder: Path, batch: EpisodeBatch) -> None:
    """Check observations, actions, rewards and ends as Minari's iterator gives them."""
    episodes = list(minari.MinariDataset(folder / "data").iterate_episodes())
    for episode, part in zip(episodes, batch.split(), strict=True):
        named = part.observations if isinstance(part.observations, dict) else {"": part.observations}
        for name, column in named.items():
            found: Any = episode.observations
            for key in filter(None, name.split("/")):
                found = found[key]
            assert found.dtype == column.dtype
            assert np.array_equal(found[:-1], column)
        assert np.array_equal(episode.actions, part.actions)
        assert np.array_equal(episode.rewards, part.rewards)
        assert (episode.terminations[-1], episode.truncations[-1]) == (part.terminated[0], part.truncated[0])
        assert np.array_equal(episode.infos["agent"]["log_prob"][1:], part.agent_infos["log_prob"])


@given(batches=st.lists(spaced_batches(), min_size=1, max_size=1))
@settings(max_examples=25)
def test_hdf5_and_minari_read_all_dtypes_and_shapes(
    tmp_path_factory: pytest.TempPathFactory, batches: list[EpisodeBatch]
) -> None:
    folder = tmp_path_factory.mktemp("data")
    dataset = batches[0].to_minari(ID, root=folder)
    batches[0].to_minari(ID, root=folder, append=True)
    both = EpisodeBatch.concatenate(batches[0], batches[0])
    assert objects_of(dataset / FILE) >= 8 * len(both)
    assert_minari_reads(dataset, both)
    assert_same(both, read(dataset))
    shutil.rmtree(folder)


def test_hdf5_changes_what_was_written(tmp_path: Path) -> None:
    batch = whole_episodes(nested=True)
    folder = batch.to_minari(ID, root=tmp_path)
    with h5py.File(folder / FILE, "a") as file:
        size = file.id.get_filesize()
        file["episode_0"].attrs["note"] = "first"
        file["episode_1/rewards"][...] = 5
        for number in range(20):  # more links than a group keeps in its header
            file["episode_2/infos"][f"more_{number}"] = np.full(7, number)
        file.copy("episode_3", "copied")
        del file["episode_4"], file["episode_5"]["infos"]
        file.move("copied", "episode_4")
    with h5py.File(folder / FILE) as file:
        assert file["episode_0"].attrs["note"] == "first"
        assert file["episode_1/rewards"][()].tolist() == [5]
        assert file["episode_2/infos/more_19"][()].tolist() == [19] * 7
        assert np.array_equal(file["episode_4/rewards"], file["episode_3/rewards"])
        assert "infos" not in file["episode_5"]
        assert file.id.get_filesize() < 4 * size
    assert objects_of(folder / FILE) > 0
    batch.to_minari(ID, root=tmp_path, append=True)
    found = read(folder).take(slice(len(batch), None))
    for name, column in {"rewards": batch.rewards, "lengths": batch.lengths, "env_seeds": batch.env_seeds}.items():
        assert np.array_equal(getattr(found, name), column)


def test_minari_and_rollserve_extend_each_others_datasets(tmp_path: Path) -> None:
    batch = whole_episodes()
    folder = batch.to_minari(ID, root=tmp_path)
    buffer = EpisodeBuffer(
        seed=9,
        observations=np.ones((4, 2)),
        actions=np.arange(3),
        rewards=[1.0, 2.0, 3.0],
        terminations=[False, False, True],
        truncations=[False] * 3,
        infos=None,
    )
    minari.MinariDataset(folder / "data").storage.update_episodes([buffer])
    batch.to_minari(ID, root=tmp_path, append=True)
    found = read(folder)
    number = len(batch)
    assert found.lengths.tolist() == [*LENGTHS, 3, *LENGTHS]
    assert np.array_equal(found.rewards[batch.num_steps : batch.num_steps + 3], [1, 2, 3])
    for part in (slice(0, number), slice(number + 1, None)):
        assert np.array_equal(found.take(part).observations, batch.observations)
        assert np.array_equal(found.take(part).episode_indices, batch.episode_indices)
    assert len(list(minari.MinariDataset(folder / "data").iterate_episodes())) == 2 * number + 1


@pytest.mark.parametrize("version", ["earliest", "v108", "v110"])
def test_datasets_in_other_versions_of_hdf5_grow(tmp_path: Path, version: str) -> None:
    batch = whole_episodes()
    folder = batch.to_minari(ID, root=tmp_path)
    (folder / FILE).rename(folder / "old")
    with h5py.File(folder / "old") as old, h5py.File(folder / FILE, "w", libver=(version, "v114")) as new:
        for name in old:
            old.copy(name, new)
    batch.to_minari(ID, root=tmp_path, append=True)
    assert_same(EpisodeBatch.concatenate(batch, batch), read(folder))
    assert objects_of(folder / FILE) > 0


def test_dataset_with_a_user_block_grows(tmp_path: Path) -> None:
    batch = whole_episodes()
    folder = batch.to_minari(ID, root=tmp_path)
    (folder / FILE).rename(folder / "old")
    with h5py.File(folder / "old") as old, h5py.File(folder / FILE, "w", userblock_size=512) as new:
        for name in old:
            old.copy(name, new)
    batch.to_minari(ID, root=tmp_path, append=True)
    assert_same(EpisodeBatch.concatenate(batch, batch), read(folder))


def test_texts_are_read_by_minari(tmp_path: Path) -> None:
    texts = ["", "é", "ab", "abcd"] * 5 + ["x"] * (sum(LENGTHS) + len(LENGTHS) - 20)
    codes = np.array(texts, "U4").view(np.uint32).reshape(-1, 4)
    size = sum(LENGTHS)
    space = spaces.Text(4, 0, "éabcdx")
    batch = dataclasses.replace(
        whole_episodes(), observation_space=space, observations=codes[:size], last_observations=codes[size:]
    )
    folder = batch.to_minari(ID, root=tmp_path)
    first = next(iter(minari.MinariDataset(folder / "data").iterate_episodes()))
    assert first.observations == [*texts[: LENGTHS[0]], texts[size]]
    assert_same(batch, read(folder))
    assert isinstance(minari.MinariDataset(folder / "data").observation_space, gymnasium.spaces.Text)


@pytest.mark.parametrize("name", ["a//b", "/a", "a/.", "", "a\0b", "x" * 2000])
def test_names_that_hdf5_cannot_hold_are_refused(tmp_path: Path, name: str) -> None:
    batch = whole_episodes()
    folder = batch.to_minari(ID, root=tmp_path)
    named = dataclasses.replace(batch, env_infos={name: np.arange(batch.num_steps)}, episode_infos={})
    with pytest.raises(ValueError, match="expected names of 1 to 1000 characters"):
        named.to_minari(ID, root=tmp_path, append=True)
    assert_same(batch, read(folder))


def test_receipts_are_kept_with_their_episodes(tmp_path: Path) -> None:
    receipts = [Receipt({"id": "X-v0"}, 6, {"rewards": "00"}, seed=number) for number in range(3)]
    sizes = []
    for receipt in receipts:
        folder = whole_episodes(receipt=receipt).to_minari(ID, root=tmp_path, append=True)
        sizes.append((folder / "data/metadata.json").stat().st_size)
    assert max(sizes) - min(sizes) < 10  # each addition writes all metadata
    texts = tuple(receipt.to_json() for receipt in receipts)
    assert receipts_of(folder) == texts
    metadata = json.loads((folder / "data/metadata.json").read_text())
    with h5py.File(folder / FILE, "a") as file:
        del file["episode_0/rollserve_receipt"], file["episode_6/rollserve_receipt"]
    metadata["rollserve_receipts"] = texts[:2]  # as earlier releases have written them
    (folder / "data/metadata.json").write_text(json.dumps(metadata))
    assert receipts_of(folder) == texts
