"""Datasets that grow by additions, of which some fail or are killed: what is on disk is always a whole dataset."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import minari
import pytest
from data.conftest import assert_same, whole_episodes

import rollserve
from rollserve import EpisodeBatch

ID = "some/episodes-v0"

KILLED = """
import itertools, os, shutil, sys
from pathlib import Path
from rollserve import EpisodeBatch
batch, root, num_last = EpisodeBatch.load(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
def run(folder, stop):
    counts = itertools.count()
    def ending(function):
        def call(*arguments, **options):
            if next(counts) == stop:
                os._exit(1)
            return function(*arguments, **options)
        return call
    for name in ("write", "ftruncate", "fsync", "unlink", "rename", "replace"):
        setattr(os, name, ending(getattr(os, name)))
    batch.to_minari("some/episodes-v0", root=folder, append=True)
    (root / "count").write_text(str(next(counts)))
    os._exit(0)
def fork(name, stop):
    shutil.copytree(root / "whole", root / name)
    if os.fork() == 0:
        run(root / name, stop)
    os.wait()
fork("0", -1)
count = int((root / "count").read_text())
for number in range(1, num_last):
    fork(str(number), count - number)
"""
"""Adds a batch to copies of a dataset, and is killed at each of the last calls that change a file in turn."""


def content(folder: Path) -> EpisodeBatch:
    """Return all episodes, read by Rollserve; Minari finds as many."""
    dataset = minari.MinariDataset(folder / "data")
    batch = EpisodeBatch.concatenate(*rollserve.data.read(folder))
    assert [len(episode.rewards) for episode in dataset.iterate_episodes()] == batch.lengths.tolist()
    return batch


@contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    """Let files grow up to a size, beyond which writes fail."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [0, 500, 20_000])
def test_addition_that_finds_no_room_leaves_the_dataset_as_it_was(tmp_path: Path, room: int) -> None:
    batch = whole_episodes(nested=True)
    folder = batch.to_minari(ID, root=tmp_path)
    large = EpisodeBatch.concatenate(*[batch] * 20)
    with file_size_limit((folder / "data/main_data.hdf5").stat().st_size + room), pytest.raises(OSError, match="large"):
        large.to_minari(ID, root=tmp_path, append=True)
    assert_same(batch, content(folder))
    batch.to_minari(ID, root=tmp_path, append=True)
    assert_same(EpisodeBatch.concatenate(batch, batch), content(folder))


def test_addition_that_is_killed_anywhere_leaves_a_dataset_that_grows_on(tmp_path: Path) -> None:
    batch, num_last = whole_episodes(), 16
    batch.save(tmp_path / "batch.npz")
    whole = EpisodeBatch.concatenate(*[batch] * 3)
    whole.to_minari(ID, root=tmp_path / "whole")
    command = [sys.executable, "-c", KILLED, tmp_path / "batch.npz", tmp_path, str(num_last)]
    subprocess.run(command, check=True, timeout=60)
    before, after = len(whole), len(whole) + len(batch)
    counts = []
    for number in range(num_last):
        folder = tmp_path / str(number) / ID
        counts.append(minari.MinariDataset(folder / "data").total_episodes)
        if counts[-1] == before:
            batch.to_minari(ID, root=tmp_path / str(number), append=True)
        assert_same(EpisodeBatch.concatenate(whole, batch), content(folder))
    assert set(counts) == {before, after}


def test_same_additions_are_the_same_bytes(tmp_path: Path) -> None:
    for name in "ab":
        time.sleep(1.1 * (name == "b"))  # HDF5 keeps times in seconds
        for number in range(3):
            whole_episodes(nested=True).to_minari(ID, root=tmp_path / name, append=number > 0)
    files = [tmp_path / name / ID / "data/main_data.hdf5" for name in "ab"]
    assert files[0].read_bytes() == files[1].read_bytes()
