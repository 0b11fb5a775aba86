"""Reads on the server: the same batches as of local readers, mixed, resumed, and what is refused."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from cutting_proxy import cutting_proxy
from data.conftest import WRITERS, assert_same, ended, whole_episodes

import rollserve
from rollserve import EpisodeBatch, Reason
from rollserve.data import Files, Live, Position
from rollserve_server.local import LocalServer, local_server
from rollserve_wire.spaces import space_to_proto


@pytest.fixture
def reading(recording_server: tuple[LocalServer, Path]) -> Iterator[tuple[rollserve.Sampler, Path]]:
    """A sampler of a server, and a folder in the server's folder of datasets."""
    server, root = recording_server
    folder = root / "reading"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with rollserve.connect(server.address) as sampler:
        yield sampler, folder


def spaces_of(batch: EpisodeBatch) -> list[Any]:
    """Return the spaces as messages, which compare by value."""
    spaces = batch.observation_space, batch.action_space
    return [None if space is None else space_to_proto(space) for space in spaces]


def named(folder: Path, path: Path) -> str:
    return str(path.relative_to(folder.parent))


def assert_streams_same(sampler: rollserve.Sampler, folder: Path, path: Path, **options: Any) -> None:
    """Check that a server's batches, positions and descriptions of files are the local reader's."""
    local = rollserve.data.read(path, **options)
    with sampler.read(named(folder, path), **options) as stream:
        for batch, expected in itertools.zip_longest(stream, local):
            assert_same(batch, expected)
            assert stream.position == local.position
            for space, other in zip(spaces_of(batch), spaces_of(expected), strict=True):
                assert space == other
        assert stream.missing == local.missing
        assert stream.receipts == local.receipts


@pytest.mark.parametrize("name", WRITERS)
def test_server_streams_what_the_local_reader_reads(reading: tuple[rollserve.Sampler, Path], name: str) -> None:
    sampler, folder = reading
    path = WRITERS[name](ended(whole_episodes()), folder)
    assert_streams_same(sampler, folder, path, batch_size=4)


def test_server_streams_with_the_options_of_the_local_reader(reading: tuple[rollserve.Sampler, Path]) -> None:
    sampler, folder = reading
    path = WRITERS["minari"](ended(whole_episodes()), folder)
    options = {"length": 2, "num_epochs": 2, "shuffle_seed": 3, "shuffle_steps": 8, "shard": (1, 2)}
    assert_streams_same(sampler, folder, path, batch_size=3, infos=False, **options)


def test_batches_larger_than_messages_come_whole(recording_server: tuple[LocalServer, Path], tmp_path: Path) -> None:
    server, root = recording_server
    generator = np.random.default_rng(0)
    lengths = np.array([1, 900, 3, 2, 2000, 1])
    rows = int(lengths.sum())
    batch = EpisodeBatch(
        observations={"a": generator.normal(size=(rows, 40)), "b": generator.integers(0, 9, (rows, 3))},
        last_observations={"a": generator.normal(size=(6, 40)), "b": generator.integers(0, 9, (6, 3))},
        actions=generator.normal(size=(rows, 2)),
        rewards=generator.normal(size=rows),
        lengths=lengths,
        terminated=np.array([True, False, True, False, False, True]),
        truncated=np.array([False, True, False, True, False, False]),
        last_values=np.arange(6.0),
        env_seeds=np.array([1, -5, 1 << 40, 3, 4, 5]),
        row_indices=np.arange(6),
        initial_states={"h": generator.normal(size=(6, 2))},
        episode_infos={"x": np.arange(6)},
    )
    batch.save(root / "large.npz")
    with rollserve.connect(server.address, max_message_bytes=65_536) as sampler:
        for options in ({}, {"length": 700}, {"length": 1, "batch_size": 1000}):
            for found, expected in itertools.zip_longest(
                sampler.read("large.npz", **options), rollserve.data.read(root / "large.npz", **options)
            ):
                assert_same(found, expected)
    huge = dataclasses.replace(batch, observations=np.zeros((rows, 900)), last_observations=np.zeros((6, 900)))
    huge.save(root / "huge.npz")
    with rollserve.connect(server.address, max_message_bytes=4096) as sampler:
        with pytest.raises(rollserve.LimitError, match="single step") as caught:
            list(sampler.read("huge.npz"))
        assert caught.value.reason is Reason.MESSAGE_TOO_SMALL


def test_live_episodes_are_mixed_by_weight_and_go_on_from_a_position(
    reading: tuple[rollserve.Sampler, Path],
) -> None:
    sampler, folder = reading
    sampler.update_env("CartPole-v1")
    sampler.update_agent(rollserve.RandomAgent())
    paths = [WRITERS[name](whole_episodes(), folder) for name in ("minari", "rollserve")]
    files = [Files(named(folder, path), length=1, num_epochs=None) for path in paths]
    sources = [(files[0], 1.0), (Live(30), 2.0), (files[1], 1.0)]
    with sampler.read_mix(sources, mix_seed=7, batch_size=5) as stream:
        first = [(batch, stream.mix_position) for batch in itertools.islice(stream, 40)]
    live = [batch for batch, _ in first if batch.num_steps > 5]
    assert 10 < len(live) < 30
    assert all(batch.num_steps >= 30 and (batch.policy_versions > 0).all() for batch in live)
    indices = np.concatenate([batch.episode_indices for batch in live])
    assert len(set(indices.tolist())) == len(indices)
    with sampler.read_mix(sources, mix_seed=7, batch_size=5, position=first[19][1]) as stream:
        for (expected, position), batch in zip(first[20:], stream, strict=False):
            assert stream.mix_position == position
            if expected.num_steps <= 5:
                assert_same(batch, expected)


def test_async_stream_reads_the_same(
    recording_server: tuple[LocalServer, Path], reading: tuple[rollserve.Sampler, Path]
) -> None:
    _, folder = reading
    path = WRITERS["minari"](whole_episodes(), folder)

    async def read() -> list[EpisodeBatch]:
        async with rollserve.aconnect(recording_server[0].address) as connected:
            return [batch async for batch in connected.read(named(folder, path), batch_size=2)]

    for batch, expected in zip(asyncio.run(read()), rollserve.data.read(path, batch_size=2), strict=True):
        assert_same(batch, expected)


def test_stream_goes_on_after_a_lost_connection(
    recording_server: tuple[LocalServer, Path], reading: tuple[rollserve.Sampler, Path]
) -> None:
    _, folder = reading
    path = WRITERS["minari"](whole_episodes(), folder)
    cutting = cutting_proxy(recording_server[0].address, num_cuts=2, max_bytes=20_000, seed=1)
    with cutting as proxy, rollserve.connect(proxy.address) as sampler:
        found = list(sampler.read(named(folder, path), length=1, batch_size=2, num_epochs=20))
        assert proxy.num_cuts == 2
    for batch, expected in zip(found, rollserve.data.read(path, length=1, batch_size=2, num_epochs=20), strict=True):
        assert_same(batch, expected)


@pytest.mark.parametrize("path", ["/etc", "../x", "reading/../../x", "reading/out", "reading/linked", ""])
def test_paths_that_leave_the_folder_are_refused(reading: tuple[rollserve.Sampler, Path], path: str) -> None:
    sampler, folder = reading
    (folder / "out").symlink_to("/etc")
    (folder / "linked").mkdir()
    (folder / "linked" / "a.npz").symlink_to("/etc/passwd")
    with pytest.raises(rollserve.InvalidArgumentError, match="expected a relative path") as caught:
        list(sampler.read(path))
    assert caught.value.reason is Reason.PATH_NOT_ALLOWED
    assert caught.value.field == "sources[0].files.paths[0]"


def test_requests_that_do_not_fit_are_refused_by_name(reading: tuple[rollserve.Sampler, Path]) -> None:
    sampler, folder = reading
    path = named(folder, WRITERS["minari"](whole_episodes(), folder))
    for absent in ("reading/none", f"reading/{'x' * 300}/a"):
        with pytest.raises(rollserve.RollserveError, match="in the folder of datasets") as caught:
            list(sampler.read(absent))
        assert caught.value.reason is Reason.DATASET_NOT_FOUND
    refused: list[tuple[str, dict[str, Any]]] = [
        ("sources[0].files.position.chunk", {"position": Position(0, 99, 0)}),
        ("sources[0].files.shuffle.step_count", {"shuffle_steps": 1 << 30, "shuffle_seed": 1}),
        ("sources[0].shuffle_steps", {"shuffle_steps": 100}),
        ("batch_size", {"batch_size": 1 << 21}),
        ("sources[0].files.format", {"format": "csv"}),
        ("sources[0].files.dones", {"dones": "maybe"}),
    ]
    for field, options in refused:
        with pytest.raises(rollserve.InvalidArgumentError) as invalid:
            list(sampler.read(path, **options))
        assert invalid.value.field == field
    for options in ({"prefetch": True}, {"seed": 3}, {"blackhole": True}):
        with pytest.raises(rollserve.InvalidArgumentError) as invalid:
            list(sampler.read_mix([(Live(10), 1.0)], **options))  # type: ignore[arg-type]
        assert invalid.value.field == f"live_options.{next(iter(options))}"
    for weight in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(rollserve.InvalidArgumentError, match="weight"):
            list(sampler.read_mix([(Files(path), weight)]))
    with pytest.raises(rollserve.InvalidArgumentError, match="sources"):
        list(sampler.read_mix([]))


@pytest.mark.parametrize(
    "name", [name if name == "minari" else pytest.param(name, marks=pytest.mark.slow) for name in WRITERS]
)
def test_truncated_files_are_refused_without_the_servers_folder(
    reading: tuple[rollserve.Sampler, Path], name: str
) -> None:
    sampler, folder = reading
    path = WRITERS[name](ended(whole_episodes()), folder)
    file = path / "data/main_data.hdf5" if path.is_dir() else path
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(rollserve.PreconditionError) as caught:
        list(sampler.read(named(folder, path)))
    assert caught.value.reason is Reason.DATASET_UNREADABLE
    assert str(folder.parent) not in str(caught.value)


def test_errors_while_episodes_are_read_have_paths_in_the_folder(reading: tuple[rollserve.Sampler, Path]) -> None:
    sampler, folder = reading
    path = WRITERS["minari"](ended(whole_episodes()), folder)
    with h5py.File(path / "data/main_data.hdf5", "a") as file:
        del file["episode_1/rewards"]
    name = named(folder, path)
    with pytest.raises(
        rollserve.PreconditionError, match=f"files: {name}/data: expected episodes of a Minari"
    ) as caught:
        list(sampler.read(name))
    assert caught.value.reason is Reason.DATASET_UNREADABLE
    assert str(folder.parent) not in str(caught.value)


def test_paths_that_name_no_dataset_say_so(reading: tuple[rollserve.Sampler, Path]) -> None:
    sampler, folder = reading
    with pytest.raises(rollserve.InvalidArgumentError, match="expected a path that exists in the folder of datasets"):
        list(sampler.read("reading/none-v0"))
    path = WRITERS["minari"](whole_episodes(), folder)
    parent = named(folder, path.parent)
    with pytest.raises(rollserve.InvalidArgumentError) as caught:
        list(sampler.read(parent))
    assert f"got folders without files: {parent}; {parent} has the datasets {path.name}" in str(caught.value)


def test_relative_folder_of_datasets_is_left_out_of_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "data/run/data/a.npz"
    file.parent.mkdir(parents=True)
    whole_episodes().save(file)
    file.write_bytes(file.read_bytes()[:1000])
    options = ("--env", "CartPole-v1", "--workers", "1", "--backend", "in-process", "--data-dir", "data")
    with local_server(*options, log=tmp_path / "log") as server, rollserve.connect(server.address) as sampler:
        with pytest.raises(
            rollserve.PreconditionError, match=r"files: run/data/a\.npz: expected a saved batch"
        ) as caught:
            list(sampler.read("run/data/a.npz"))
        assert str(tmp_path) not in str(caught.value)


def test_dataset_that_changes_while_it_is_read_is_refused(reading: tuple[rollserve.Sampler, Path]) -> None:
    sampler, folder = reading
    path = WRITERS["parquet"](whole_episodes(), folder)
    with sampler.read(named(folder, path), num_epochs=None) as stream:
        next(stream)
        with open(path, "ab") as file:
            file.write(b"x")
        with pytest.raises(rollserve.PreconditionError, match="a file that stays as it is") as caught:
            list(itertools.islice(stream, 20))
    assert caught.value.reason is Reason.DATASET_UNREADABLE
