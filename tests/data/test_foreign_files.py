"""Files of other programs: old and new names of columns, what they lack, and what RLlib itself writes and reads."""

from __future__ import annotations

import base64
import json
import math
import pickle
from pathlib import Path
from typing import Any

import h5py
import lz4.frame
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from data.conftest import ended, whole_episodes, write_d4rl

import rollserve

KNOWN = "last_observation_known"


def write_lines(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def steps(number: int, first: int = 0, **columns: Any) -> dict[str, Any]:
    """Return a record of RLlib with the old names of columns, without the observations after."""
    rows = np.arange(first, first + number)
    return {
        "type": "SampleBatch",
        "obs": np.stack([rows, -rows], axis=1).astype(float).tolist(),
        "actions": (rows % 2).tolist(),
        "rewards": [1.0] * number,
        "eps_id": [7] * number,
        "dones": [False] * (number - 1) + [True],
        **columns,
    }


def test_dones_of_old_files_need_a_meaning(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "old.json", steps(3))
    with pytest.raises(ValueError, match=r"terminateds: expected columns `terminateds` and `truncateds`, got `dones`"):
        next(rollserve.data.read(path))
    for meaning, flags in (("terminated", (True, False)), ("truncated", (False, True))):
        reader = rollserve.data.read(path, dones=meaning)
        batch = next(reader)
        assert (batch.terminated[0], batch.truncated[0]) == flags
        assert reader.missing["truncated"] == f"`dones` stands for {meaning}"


def test_missing_last_observations_are_said_and_not_made_up(tmp_path: Path) -> None:
    reader = rollserve.data.read(write_lines(tmp_path / "old.json", steps(3)), dones="terminated")
    batch = next(reader)
    assert np.isnan(batch.last_observations).all()
    assert batch.episode_infos[KNOWN].tolist() == [False]
    assert "last_observations" in reader.missing
    assert "first_steps" in reader.missing


def test_policy_outputs_become_infos_of_the_agent(tmp_path: Path) -> None:
    outputs = {
        "new_obs": [[1.0, 2.0]] * 2,
        "action_logp": [-1.0, -2.0],
        "vf_preds": [3.0, 4.0],
        "action_dist_inputs": [[0.0, 1.0]] * 2,
        "infos": [{"x": 1, "y": 2.0}, {"x": 3}],
        "prev_actions": [0, 0],
        "agent_index": [0, 0],
        "t": [4, 5],
    }
    record = steps(2, **outputs)
    del record["dones"]
    record |= {"terminateds": [False, False], "truncateds": [False, True]}
    batch = next(rollserve.data.read(write_lines(tmp_path / "new.json", record)))
    assert sorted(batch.agent_infos) == ["action_dist_inputs", "log_prob", "value"]
    assert batch.env_infos["x"].tolist() == [1, 3]
    assert batch.env_infos["_y"].tolist() == [True, False]
    assert batch.last_observations.tolist() == [[1.0, 2.0]]
    assert (batch.first_steps.tolist(), batch.episode_indices.tolist()) == ([4], [7])
    assert (batch.terminated.tolist(), batch.truncated.tolist()) == ([False], [True])


def test_episodes_over_several_lines_are_fragments_that_join(tmp_path: Path) -> None:
    first = steps(3, t=[0, 1, 2], dones=[False] * 3, new_obs=[[0.0, 0.0]] * 2 + [[3.0, -3.0]])
    second = steps(2, 3, t=[3, 4], new_obs=[[0.0, 0.0]] * 2)
    reader = rollserve.data.read(write_lines(tmp_path / "a.json", first, second), dones="terminated", batch_size=1)
    batch = rollserve.EpisodeBatch.concatenate(*reader)
    assert (batch.lengths.tolist(), batch.first_steps.tolist()) == ([3, 2], [0, 3])
    assert batch.joined().lengths.tolist() == [5]


def test_lines_with_other_columns_are_read_one_after_the_other(tmp_path: Path) -> None:
    """Lines are segments whether they are alike or not, and NaN is a number, though JSON has none."""
    line = {"type": "SampleBatch", "obs": [1.0, 2.0], "actions": [0, 1], "rewards": [1.0, math.nan]}
    line |= {"terminateds": [False, False]}
    others = {**line, "x": [3, 4]}, {**line, "x": [0.5, 1.5], "state_in_0": [[0.0]]}
    path = tmp_path / "a.json"
    path.write_text("\n".join(map(json.dumps, (line, line, *others, line))))
    for options in ({}, {"batch_size": 1}, {"shard": (0, 1)}):
        batch = rollserve.EpisodeBatch.concatenate(*rollserve.data.read(path, **options))  # type: ignore[arg-type]
        assert batch.lengths.tolist() == [2] * 5
        assert np.array_equal(batch.rewards, [1.0, math.nan] * 5, equal_nan=True)
        assert batch.agent_infos["x"].tolist() == [0, 0, 0, 0, 3, 4, 0.5, 1.5, 0, 0]
        assert batch.agent_infos["_x"].tolist() == [False] * 4 + [True] * 4 + [False] * 2
    whole = rollserve.data.read(path, batch_size=1)
    batches = [(batch, whole.position) for batch in whole]
    for number, (_, position) in enumerate(batches):
        rest = [*rollserve.data.read(path, batch_size=1, position=position)]
        assert [batch.agent_infos.keys() for batch in rest] == [b.agent_infos.keys() for b, _ in batches[number + 1 :]]


def test_one_policy_of_several_agents_is_read_and_several_are_refused(tmp_path: Path) -> None:
    columns = {name: column for name, column in steps(3).items() if name != "type"}
    record = {"type": "MultiAgentBatch", "count": 3, "policy_batches": {"default_policy": columns}}
    path = write_lines(tmp_path / "one.json", record)
    assert next(rollserve.data.read(path, dones="truncated")).num_steps == 3
    record["policy_batches"] |= {"other": columns}  # type: ignore[operator]
    with pytest.raises(ValueError, match=r"policy_batches: expected one policy, got \['default_policy', 'other'\]"):
        rollserve.data.read(write_lines(tmp_path / "two.json", record))


class _Attack:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path("unpickled").touch, ()


@pytest.mark.parametrize(
    "value",
    [_Attack(), np.array([{}]), np.array(["a"]), [1, 2], np.float32(3), b"\0" * 9],
    ids=["call", "objects", "texts", "list", "scalar", "bytes"],
)
def test_packed_columns_are_read_without_unpickling(
    value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    packed = base64.b64encode(lz4.frame.compress(pickle.dumps(value, protocol=5))).decode()
    path = write_lines(tmp_path / "packed.json", steps(2, obs=packed))
    with pytest.raises(ValueError, match=r"obs: expected a packed array of numbers, got "):
        rollserve.data.read(path, dones="terminated")
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4).T,
        np.arange(6)[::2],
        np.array([1, 2], ">i4"),
        np.zeros((0, 3), np.float32),
        np.asfortranarray(np.ones((2, 3))),
        np.array([True, False]),
    ],
    ids=["transposed", "strided", "big-endian", "empty", "fortran", "bool"],
)
@pytest.mark.parametrize("protocol", [4, 5])
def test_packed_arrays_of_all_layouts_are_read(array: np.ndarray, protocol: int) -> None:
    from rollserve._formats.packed_arrays import unpack_array

    packed = base64.b64encode(lz4.frame.compress(pickle.dumps(array, protocol=protocol))).decode()
    found = unpack_array("obs", packed)
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)


def test_d4rl_without_timeouts_finds_ends_by_the_next_observations(tmp_path: Path) -> None:
    batch = ended(whole_episodes())
    path = write_d4rl(batch, tmp_path)
    with h5py.File(path, "a") as file:
        del file["timeouts"]
    with rollserve.data.read(path) as reader:
        found = next(reader)
    assert found.lengths.tolist() == batch.lengths.tolist()
    assert found.terminated.tolist() == batch.terminated.tolist()
    assert not found.truncated.any()
    assert "truncated" in reader.missing
    with h5py.File(path, "a") as file:
        del file["next_observations"]
    with pytest.raises(ValueError, match=r"timeouts: expected a column, or `next_observations`"):
        rollserve.data.read(path)


def test_d4rl_without_next_observations_says_so(tmp_path: Path) -> None:
    batch = ended(whole_episodes())
    path = write_d4rl(batch, tmp_path)
    with h5py.File(path, "a") as file:
        del file["next_observations"]
    found = next(rollserve.data.read(path))
    assert not found.episode_infos[KNOWN].any()
    assert np.isnan(found.last_observations).all()
    cut = found.cut(2)
    assert np.isnan(cut.last_observations[cut.terminated | cut.truncated]).all()


def test_parquet_by_rllibs_names_is_read(tmp_path: Path) -> None:
    columns = {
        "obs": [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]],
        "new_obs": [[2.0, 3.0], [9.0, 9.0], [8.0, 8.0]],
        "actions": [0, 1, 0],
        "rewards": [1.0, 2.0, 3.0],
        "eps_id": [1, 1, 2],
        "terminateds": [False, True, False],
        "truncateds": [False, False, False],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet", row_group_size=2)
    batch = next(rollserve.data.read(tmp_path / "a.parquet"))
    assert batch.lengths.tolist() == [2, 1]
    assert batch.last_observations.tolist() == [[9.0, 9.0], [8.0, 8.0]]
    assert batch.terminated.tolist() == [True, False]


@pytest.mark.parametrize("data_format", ["hdf5", "arrow", "parquet"])
def test_datasets_by_minari_itself_are_read(
    data_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    import gymnasium
    import minari
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    space = gymnasium.spaces.Tuple((gymnasium.spaces.Box(0, 255, (40, 40), np.uint8), gymnasium.spaces.Text(4)))
    generator = np.random.default_rng(0)
    images = [generator.integers(0, 256, (length + 1, 40, 40)).astype(np.uint8) for length in (3, 2)]
    buffers = [
        EpisodeBuffer(
            seed=5,
            observations=(image, ["ab"] * len(image)),
            actions=np.arange(len(image) - 1),
            rewards=np.ones(len(image) - 1),
            terminations=np.zeros(len(image) - 1, np.bool_),
            truncations=np.arange(len(image) - 1) == len(image) - 2,
            infos={"x": np.arange(len(image))[:, np.newaxis]},
        )
        for image in images
    ]
    minari.create_dataset_from_buffers(
        "images-v0",
        buffers,
        observation_space=space,
        action_space=gymnasium.spaces.Discrete(3),
        data_format=data_format,
        jpeg_encoding=False,
    )
    reader = rollserve.data.read(tmp_path / "images-v0")
    batch = next(reader)
    assert isinstance(batch.observations, dict)
    assert isinstance(batch.last_observations, dict)
    assert np.array_equal(batch.observations["0"], np.concatenate([image[:-1] for image in images]))
    assert np.array_equal(batch.last_observations["0"], np.stack([image[-1] for image in images]))
    assert isinstance(reader.observation_space, rollserve.spaces.Tuple)
    text = reader.observation_space.spaces[1]
    assert isinstance(text, rollserve.spaces.Text)
    assert text.decode(batch.observations["1"]).tolist() == ["ab"] * 5
    assert batch.truncated.all()
    assert batch.env_seeds is not None
    assert batch.env_seeds.tolist() == [5, 5]
    assert batch.env_infos["x"][:, 0].tolist() == [1, 2, 3, 1, 2]
    assert batch.episode_infos["x"].tolist() == [[0], [0]]


@pytest.mark.parametrize("column", [{"agent_index": [0, 1]}, {"agent_id": ["a", "b"]}])
@pytest.mark.parametrize("form", ["json", "parquet"])
def test_agents_of_one_policy_have_segments_of_their_own(column: dict[str, object], form: str, tmp_path: Path) -> None:
    columns = {"obs": [1.0, 2.0], "new_obs": [2.0, 3.0], "actions": [0, 1], "rewards": [1.0, 2.0], "eps_id": [7, 7]}
    columns |= {"terminateds": [False, False], "truncateds": [False, False], **column}
    path = tmp_path / f"a.{form}"
    if form == "json":
        path.write_text(json.dumps({"type": "SampleBatch", **columns}))
    else:
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    batch = next(rollserve.data.read(path))
    assert batch.lengths.tolist() == [1, 1]
    assert batch.last_observations.tolist() == [2.0, 3.0]  # type: ignore[union-attr]


def test_truncations_beside_dones_are_kept(tmp_path: Path) -> None:
    columns = {"obs": [1.0, 2.0], "actions": [0, 1], "rewards": [1.0, 2.0], "dones": [True, False]}
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"type": "SampleBatch", **columns, "truncateds": [False, True]}))
    batch = next(rollserve.data.read(path, dones="terminated"))
    assert (batch.terminated.tolist(), batch.truncated.tolist()) == ([True, False], [False, True])
    with pytest.raises(ValueError, match="dones: expected no column `truncateds` beside truncations, got one"):
        next(rollserve.data.read(path, dones="truncated"))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x80\x04K\x01)R.", "a pickle that calls what is no function"),
        (b"\x80\x04K\x01)b.", "a pickle that sets the state of another object"),
    ],
)
def test_packed_calls_of_other_values_are_refused(data: bytes, text: str, tmp_path: Path) -> None:
    packed = base64.b64encode(lz4.frame.compress(data)).decode()
    path = write_lines(tmp_path / "packed.json", steps(2, obs=packed))
    with pytest.raises(ValueError, match=f"^{path}: .*obs: expected a packed array of numbers, got {text}"):
        rollserve.data.read(path, dones="terminated")
