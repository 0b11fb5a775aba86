"""Datasets that grow by additions. Some fail or are killed; a whole dataset is on disk at any time."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import minari
import numpy as np
import pytest
from data.conftest import assert_same, whole_episodes
from pools import Reading, pool_of, sample_request

import rollserve
from rollserve import EpisodeBatch
from rollserve._calls.responses import read_response
from rollserve.cli import main
from rollserve_server.agents import RandomSpec
from rollserve_server.pool import Delivery, Fragments, InAll, InProcessBackend

ID = "some/episodes-v0"

KILLED = """
import itertools, os, shutil, signal, sys
from pathlib import Path
import h5py, minari  # once for all processes
def killed_at(number, name, run):
    # Run in a process that is killed at a call that changes a file; return how many there are up to its end.
    if os.fork() == 0:
        counts = itertools.count()
        def killing(function):
            def call(*arguments, **options):
                if next(counts) == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*arguments, **options)
            return call
        for each in ("write", "ftruncate", "fsync", "unlink", "rename", "replace"):
            setattr(os, each, killing(getattr(os, each)))
        run(name)
        (root / "count").write_text(str(next(counts)))
        os._exit(0)
    os.wait()
root = Path(sys.argv[1])
"""
"""Kills processes at each call that changes files."""

ADDITIONS = """
from rollserve import EpisodeBatch
batch, num_last = EpisodeBatch.load(root / "batch.npz"), int(sys.argv[2])
def run(name):
    batch.to_minari("some/episodes-v0", root=root / name, append=True)
for number in range(num_last):
    shutil.copytree(root / "whole", root / str(number))
    killed_at(int((root / "count").read_text()) - number if number else -1, str(number), run)
"""
"""Adds a batch to copies of a dataset, and is killed at each of the last calls in turn."""

RECORDINGS = """
import numpy as np
from rollserve.spaces import Box, Discrete
from rollserve._calls.recorded_dataset import RecordedDataset, locked
messages = [(root / f"message-{number}").read_bytes() for number in range(int(sys.argv[2]))]
spaces = Box(-np.inf, np.inf, (2,), np.dtype(float)), Discrete(3, start=2)
def run(name):
    folder = root / name
    folder.mkdir()
    locked(folder)
    origin = {"seed": 4, "first_episode_index": 0, "rows_of_a_block": None, "agent": sys.argv[4]}
    receipt = {"environment": {"id": "X-v0"}}
    dataset = RecordedDataset.create(
        folder, "some-v0", spaces, env_spec=None, metadata={}, origin=origin, receipt=receipt
    )
    for number, message in enumerate(messages):
        dataset.append([message])
        (folder / "num_messages").touch()
        os.truncate(folder / "num_messages", number + 1)
        if number % 3 == 2:
            dataset.convert()
    dataset.end(state="complete")
killed_at(-1, "whole", run)
for number in range(0, int((root / "count").read_text()), int(sys.argv[3])):
    killed_at(number, str(number), run)
"""
"""Records messages and is killed at every so many calls."""


def content(folder: Path) -> EpisodeBatch:
    """Return all episodes, read by Rollserve; Minari finds as many."""
    dataset = minari.MinariDataset(folder / "data")
    batch = EpisodeBatch.concatenate(*rollserve.data.read(folder))
    assert [len(episode.rewards) for episode in dataset.iterate_episodes()] == batch.lengths.tolist()
    return batch


@contextlib.contextmanager
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


def run_killed(script: str, *arguments: object) -> None:
    subprocess.run([sys.executable, "-c", KILLED + script, *map(str, arguments)], check=True, timeout=120)


def test_addition_that_is_killed_anywhere_leaves_a_dataset_that_grows_on(tmp_path: Path) -> None:
    batch, num_last = whole_episodes(), 16
    batch.save(tmp_path / "batch.npz")
    whole = EpisodeBatch.concatenate(*[batch] * 3)
    whole.to_minari(ID, root=tmp_path / "whole")
    run_killed(ADDITIONS, tmp_path, num_last)
    before, after = len(whole), len(whole) + len(batch)
    counts = []
    for number in range(num_last):
        folder = tmp_path / str(number) / ID
        if number % 2:  # what `append` does itself
            assert main(["repair", str(folder)]) == 0
        counts.append(minari.MinariDataset(folder / "data").total_episodes)
        if counts[-1] == before:
            if number % 2:
                assert_same(whole, content(folder))
            batch.to_minari(ID, root=tmp_path / str(number), append=True)
        assert_same(EpisodeBatch.concatenate(whole, batch), content(folder))
    assert set(counts) == {before, after}


async def sampled() -> tuple[list[bytes], EpisodeBatch]:
    """Return the messages of a call for episodes with infos, and their batch."""
    messages, reading, env = [], Reading(), rollserve.EnvSpec("sample_envs:Ragged")
    async with pool_of(InProcessBackend(), env, workers=1, allow_module=("sample_envs",)) as pool:
        await pool.update_agent([RandomSpec()])
        async with contextlib.aclosing(pool.sample(sample_request(InAll(6), 1600, seed=4))) as items:
            async for item in items:
                reading.add(item)
                if isinstance(item, Delivery):
                    messages += [item.buffer[each.offset :][: each.size].tobytes() for each in item.messages]
    return messages, reading.batch()


@pytest.mark.usefixtures("sandboxes_find_test_agents")
def test_recording_that_is_killed_anywhere_is_repaired_from_its_log(tmp_path: Path) -> None:
    messages, batch = asyncio.run(sampled())
    for number, message in enumerate(messages):
        (tmp_path / f"message-{number}").write_bytes(message)
    run_killed(RECORDINGS, tmp_path, len(messages), 11, "some")
    assert_same(batch, content(tmp_path / "whole"))
    assert len(messages) > len(batch)  # some messages begin an episode and do not end it
    ended = np.cumsum([sum(read_response(each).terminated | read_response(each).truncated) for each in messages])
    recovered = []
    for folder in tmp_path.iterdir():
        if not (folder / "data/metadata.json").exists():
            continue  # killed before there was a dataset
        converted = minari.MinariDataset(folder / "data").total_episodes
        assert main(["repair", str(folder)]) == 0
        assert not (folder / "recording.log").exists()
        num_messages = (folder / "num_messages").stat().st_size if (folder / "num_messages").exists() else 0
        least = int(ended[num_messages - 1]) if num_messages else 0
        num_episodes = minari.MinariDataset(folder / "data").total_episodes
        assert num_episodes in (least, int(ended[min(num_messages, len(ended) - 1)]))
        if num_episodes:
            assert_same(batch.take(slice(0, num_episodes)), content(folder))
        recovered.append(num_episodes - converted)
    assert 0 in recovered
    assert any(recovered)


async def fragments() -> tuple[list[bytes], EpisodeBatch]:
    """Return the messages of calls for fragments, and the whole episodes in the order of their indices."""
    messages, batches, env = [], [], rollserve.EnvSpec("sample_envs:Ragged")
    async with pool_of(InProcessBackend(), env, workers=1, rows=3, allow_module=("sample_envs",)) as pool:
        await pool.update_agent([RandomSpec()])
        for number in range(9):
            reading = Reading()
            request = sample_request(Fragments(3 * 4, row_step_count=4 * number), 1600, seed=4)
            async with contextlib.aclosing(pool.sample(request)) as items:
                async for item in items:
                    reading.add(item)
                    if isinstance(item, Delivery):
                        messages += [item.buffer[each.offset :][: each.size].tobytes() for each in item.messages]
            batches.append(reading.batch())
    batch = dataclasses.replace(EpisodeBatch.concatenate(*batches), worker_indices=None)  # which no dataset has
    batch = batch.take(np.lexsort((batch.first_steps, batch.episode_indices))).joined()
    return messages, batch.take(np.flatnonzero(batch.terminated | batch.truncated))


@pytest.mark.usefixtures("sandboxes_find_test_agents")
def test_session_that_is_killed_anywhere_is_repaired_from_its_log(tmp_path: Path) -> None:
    messages, batch = asyncio.run(fragments())
    for number, message in enumerate(messages):
        (tmp_path / f"message-{number}").write_bytes(message)
    run_killed(RECORDINGS, tmp_path, len(messages), 7, "client")
    ended: list[set[int]] = [set()]
    for each in map(read_response, messages):
        assert isinstance(each, EpisodeBatch)
        ended.append(ended[-1] | set(each.episode_indices[each.terminated | each.truncated].tolist()))
    assert len(messages) > len(ended[-1]) == len(batch) > 5
    recovered = []
    for folder in tmp_path.iterdir():
        if not (folder / "data/metadata.json").exists():
            continue  # killed before there was a dataset
        converted = minari.MinariDataset(folder / "data").total_episodes
        assert main(["repair", str(folder)]) == 0
        num_messages = (folder / "num_messages").stat().st_size if (folder / "num_messages").exists() else 0
        num_episodes = minari.MinariDataset(folder / "data").total_episodes
        if num_episodes:
            found = content(folder)
            found = found.take(np.argsort(found.episode_indices))
            its = set(found.episode_indices.tolist())
            assert its in (ended[num_messages], ended[min(num_messages + 1, len(messages))])
            assert_same(batch.take(np.flatnonzero(np.isin(batch.episode_indices, list(its)))), found)
        else:
            assert not ended[num_messages]
        recovered.append(num_episodes - converted)
    assert 0 in recovered
    assert any(recovered)


def test_same_additions_are_the_same_bytes(tmp_path: Path) -> None:
    for name in "ab":
        time.sleep(1.1 * (name == "b"))  # HDF5 keeps times in seconds
        for number in range(3):
            whole_episodes(nested=True).to_minari(ID, root=tmp_path / name, append=number > 0)
    files = [tmp_path / name / ID / "data/main_data.hdf5" for name in "ab"]
    assert files[0].read_bytes() == files[1].read_bytes()
