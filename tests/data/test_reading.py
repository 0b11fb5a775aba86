"""Files of all formats: what comes back, in which parts, and from which position on."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from data.conftest import LACKING, WRITERS, assert_same, ended, whole_episodes

import rollserve
from rollserve import EpisodeBatch, spaces


@pytest.fixture
def batch() -> EpisodeBatch:
    return ended(whole_episodes())


@pytest.fixture
def path(batch: EpisodeBatch, file_format: str, tmp_path: Path) -> Path:
    return WRITERS[file_format](batch, tmp_path)


def joined(reader: rollserve.data.Reader) -> EpisodeBatch:
    return EpisodeBatch.concatenate(*reader)


def test_read_returns_what_was_written(batch: EpisodeBatch, path: Path, file_format: str) -> None:
    found = joined(rollserve.data.read(path))
    assert_same(batch, found, LACKING[file_format])
    assert np.array_equal(found.agent_infos["log_prob"], batch.agent_infos["log_prob"])


def test_reader_says_what_is_missing(path: Path, file_format: str) -> None:
    missing = rollserve.data.read(path).missing
    assert ("policy_versions" in missing) == ("policy_versions" in LACKING[file_format])
    if file_format in ("rllib-json", "packed", "d4rl"):
        assert next(rollserve.data.read(path)).env_seeds is None


@pytest.mark.parametrize("name", ["minari", "rollserve", "parquet", "rllib-json", "packed"])
def test_read_returns_nested_columns(name: str, tmp_path: Path) -> None:
    batch = whole_episodes(nested=True)
    assert_same(batch, joined(rollserve.data.read(WRITERS[name](batch, tmp_path))), LACKING[name])


def test_fragments_and_transitions_are_cut_from_episodes(path: Path) -> None:
    whole = joined(rollserve.data.read(path))
    for length in (1, 2, 4):
        batches = list(rollserve.data.read(path, length=length, batch_size=5))
        assert [len(each) for each in batches[:-1]] == [5] * (len(batches) - 1)
        cut = EpisodeBatch.concatenate(*batches)
        assert cut.lengths.max() == length
        assert_same(cut.joined(), whole)
        assert np.array_equal(cut.cut(1).last_observations, whole.next_observations)
    assert (cut.lengths.sum(), cut.terminated.sum()) == (whole.num_steps, whole.terminated.sum())


@pytest.mark.parametrize("shuffle_seed", [None, 5])
def test_reader_goes_on_from_a_position(path: Path, shuffle_seed: int | None) -> None:
    def reader(position: rollserve.data.Position = rollserve.data.Position()) -> rollserve.data.Reader:  # noqa: B008
        return rollserve.data.read(
            path,
            length=2,
            batch_size=3,
            num_epochs=2,
            shuffle_seed=shuffle_seed,
            shuffle_steps=None if shuffle_seed is None else 8,
            position=rollserve.data.Position(*position),
        )

    first = reader()
    whole = [(batch, first.position) for batch in first]
    assert len(whole) == 2 * 6
    for number, (_, position) in enumerate(whole[:-1]):
        for (batch, _), again in itertools.zip_longest(whole[number + 1 :], reader(position)):
            assert_same(batch, again)


def test_shards_do_not_overlap(path: Path) -> None:
    whole = joined(rollserve.data.read(path))
    shards = [list(rollserve.data.read(path, shard=(index, 4))) for index in range(4)]
    starts = [float(start) for shard in shards for batch in shard for start in batch.observations[:, 0]]
    assert sorted(starts) == sorted(whole.observations[:, 0].tolist())


def test_epochs_are_shuffled_anew(path: Path) -> None:
    reader = rollserve.data.read(path, length=1, batch_size=27, num_epochs=None, shuffle_seed=1)
    one, other = next(reader), next(reader)
    assert not np.array_equal(one.observations, other.observations)
    assert sorted(one.observations[:, 0]) == sorted(other.observations[:, 0])
    assert_same(one, next(rollserve.data.read(path, length=1, batch_size=27, shuffle_seed=1)))


def test_columns_are_checked_against_given_spaces(path: Path, batch: EpisodeBatch) -> None:
    box = spaces.Box(-1e4, 1e4, (2,), np.dtype(np.float32))
    found = joined(rollserve.data.read(path, observation_space=box, action_space=spaces.Discrete(6000)))
    assert found.observations.dtype == found.last_observations.dtype == np.float32
    assert found.observation_space is box
    with pytest.raises(ValueError, match=r"observations: expected rows of shape \(3,\)"):
        joined(rollserve.data.read(path, observation_space=spaces.Box(-1, 1, (3,), np.dtype(float))))
    with pytest.raises(
        ValueError, match=r"actions: expected values of Discrete\(4\), got 0 to .*: the argument `action_space` asks"
    ):
        joined(rollserve.data.read(path, action_space=spaces.Discrete(4)))


def test_infos_can_be_left_out(path: Path) -> None:
    assert joined(rollserve.data.read(path, infos=False)).env_infos == {}


def test_files_of_a_folder_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    batch = whole_episodes()
    for number, part in enumerate(batch.split()):
        part.save(tmp_path / f"part-{number}.npz")
    assert_same(batch, joined(rollserve.data.read(tmp_path)))
    (tmp_path / "part-7").write_text("{}")
    with pytest.raises(rollserve.InvalidArgumentError, match=r"path: expected files of one format, got part-0"):
        rollserve.data.read(tmp_path)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"shard": (2, 2)}, "shard: expected a part from 0 to 1, got 2"),
        ({"batch_size": 0}, "batch_size: expected a positive number, got 0"),
        ({"length": 0}, "length: expected a positive number, got 0"),
        ({"format": "csv"}, "format: expected 'minari' or"),
        ({"dones": "both"}, "dones: expected 'terminated' or 'truncated', got 'both'"),
        ({"position": (0, 99, 0)}, "position.chunk: expected a chunk from 0 to 1, got 99"),
        ({"position": (0, 1, 0), "shuffle_seed": 1}, "position.chunk: expected a chunk from 0 to 0, got 1"),
        ({"position": (0, 0)}, "position: expected (epoch, chunk, segment), got (0, 0)"),
        ({"position": (2, 0, 0)}, "position: expected a position up to the end of 1 epochs, got (2, 0, 0)"),
        ({"shard": (0, 1, 2)}, "shard: expected (i, n), got (0, 1, 2)"),
        ({"shuffle_steps": 8}, "shuffle_steps: expected none without shuffle_seed"),
    ],
)
def test_read_rejects_arguments(options: dict[str, object], text: str, tmp_path: Path) -> None:
    whole_episodes().save(tmp_path / "a.npz")
    with pytest.raises(rollserve.InvalidArgumentError) as raised:
        rollserve.data.read(tmp_path / "a.npz", **options)  # type: ignore[arg-type]
    assert raised.value.message.startswith(text)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"shard": 5}, "shard: expected (i, n), got int"),
        ({"action_space": 5}, "action_space: expected a space of rollserve.spaces, got int"),
        ({"position": 3}, "position: expected (epoch, chunk, segment), got int"),
        ({"path": 5}, "path: expected a path or a sequence of paths, got int"),
        ({"path": [5]}, "path: expected a path or a sequence of paths, got list"),
    ],
)
def test_read_rejects_arguments_of_other_types(options: dict[str, object], text: str, tmp_path: Path) -> None:
    whole_episodes().save(tmp_path / "a.npz")
    with pytest.raises(TypeError) as raised:
        rollserve.data.read(**{"path": tmp_path / "a.npz", **options})  # type: ignore[arg-type]
    assert str(raised.value) == text


@pytest.mark.parametrize("shuffle_seed", [None, 1])
def test_positions_beyond_the_data_are_refused(path: Path, batch: EpisodeBatch, shuffle_seed: int | None) -> None:
    reader = rollserve.data.read(path, position=(0, 0, len(batch) + 1), shuffle_seed=shuffle_seed)
    with pytest.raises(rollserve.InvalidArgumentError, match=r"position\.segment: expected at most 6, got 7"):
        next(reader)
    assert list(rollserve.data.read(path, position=(1, 0, 0), shuffle_seed=shuffle_seed)) == []


def test_several_minari_datasets_are_refused(tmp_path: Path) -> None:
    folders = [whole_episodes().to_minari(name, root=tmp_path) for name in ("a-v0", "b-v0")]
    with pytest.raises(rollserve.InvalidArgumentError, match="path: expected the folder of one Minari dataset, or "):
        rollserve.data.read(folders)
