"""Batches as data frames of pandas and tables of Arrow."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from learner_batches import random_batch

import rollserve

pandas = pytest.importorskip("pandas", reason="pandas is an extra: pip install pandas")
arrow = pytest.importorskip("pyarrow", reason="Arrow is an extra: pip install pyarrow")
BATCH = random_batch([3, 1, 4], 0)
STEPS = BATCH.first_steps.repeat(BATCH.lengths) + np.array([0, 1, 2, 0, 0, 1, 2, 3])


def frame_of(batch: rollserve.EpisodeBatch, kind: str, **options: Any) -> Any:
    return batch.to_pandas(**options) if kind == "pandas" else batch.to_arrow(**options).to_pandas()


@pytest.mark.parametrize("kind", ["pandas", "arrow"])
def test_table_has_a_row_for_each_step(kind: str) -> None:
    frame = frame_of(BATCH, kind)
    assert frame["segments"].tolist() == [0, 0, 0, 1, 2, 2, 2, 2]
    assert frame["steps"].tolist() == STEPS.tolist()
    assert np.array_equal(frame["rewards"], BATCH.rewards)
    assert np.array_equal(frame["actions"], BATCH.actions)
    assert np.array_equal(frame["agent_infos/log_prob"], BATCH.agent_infos["log_prob"])
    assert np.array_equal(frame["env_infos/x"], BATCH.env_infos["x"])
    for name in ("terminated", "truncated"):
        assert np.array_equal(np.flatnonzero(frame[name]), (np.cumsum(BATCH.lengths) - 1)[getattr(BATCH, name)])
    assert np.allclose(frame.groupby("segments")["rewards"].sum(), BATCH.returns)


def test_vectors_are_columns_of_a_frame_and_lists_of_a_table() -> None:
    frame, table = BATCH.to_pandas(next_observations=True), BATCH.to_arrow(next_observations=True)
    assert np.array_equal(frame[["observations/0", "observations/1"]], BATCH.observations)
    assert np.array_equal(frame[["next_observations/0", "next_observations/1"]], BATCH.next_observations)
    assert table["observations"].type == arrow.list_(arrow.float64(), 2)
    assert np.array_equal(table["observations"].to_pylist(), BATCH.observations)
    assert np.array_equal(table["next_observations"].to_pylist(), BATCH.next_observations)


def test_leaves_and_images_are_columns_by_their_paths() -> None:
    batch = random_batch([2, 3], 1, nested=True)
    frame, table = batch.to_pandas(), batch.to_arrow()
    assert isinstance(batch.observations, dict)
    assert table["observations/image"].type == arrow.list_(arrow.list_(arrow.int32(), 1), 2)
    assert np.array_equal(table["observations/image"].to_pylist(), batch.observations["image"])
    assert np.array_equal(np.stack(frame["observations/image"]), batch.observations["image"])
    assert np.array_equal(frame["observations/0/x"], batch.observations["0/x"])
    assert {"actions/a", "actions/b/0"} <= set(frame.columns)


def test_gaps_of_infos_are_missing_values() -> None:
    mask = np.array([True, False] * 4)
    columns = {
        "integer": np.arange(8),
        "float": np.arange(8, dtype=np.float32),
        "flag": np.ones(8, np.bool_),
        "vector": np.arange(16.0).reshape(8, 2),
        "image": np.zeros((8, 2, 2), np.uint8),
    }
    infos = columns | {f"_{name}": mask for name in columns}
    batch = dataclasses.replace(BATCH, env_infos=infos)
    frame, table = batch.to_pandas(), batch.to_arrow()
    for name in ("integer", "float", "flag", "vector/0", "vector/1", "image"):
        assert frame[f"env_infos/{name}"].notna().tolist() == mask.tolist(), name
    assert frame["env_infos/integer"].dropna().tolist() == [0, 2, 4, 6]
    assert [name for name in frame.columns if name.startswith("env_infos/_")] == []
    for name in columns:
        assert table[f"env_infos/{name}"].is_valid().to_pylist() == mask.tolist(), name
    assert table["env_infos/vector"].to_pylist()[::4] == [[0.0, 1.0], [8.0, 9.0]]


def test_tables_share_the_memory_of_the_batch() -> None:
    frame, table = BATCH.to_pandas(), BATCH.to_arrow()
    for name in ("rewards", "actions", "env_infos/x"):
        array = BATCH.env_infos["x"] if "/" in name else getattr(BATCH, name)
        assert np.shares_memory(frame[name].to_numpy(), array), name
        assert np.shares_memory(table[name].chunk(0).to_numpy(), array), name
    elements = table["observations"].chunk(0).flatten().to_numpy()
    assert np.shares_memory(elements, BATCH.observations)


@pytest.mark.parametrize("kind", ["pandas", "arrow"])
def test_table_of_a_sampled_batch_tells_its_episodes(kind: str, sampler: rollserve.Sampler) -> None:
    batch = sampler.obtain_fragments(80)
    frame = frame_of(batch, kind)
    assert len(frame) == 80
    assert batch.row_indices is not None
    assert set(frame["row_indices"]) == set(batch.row_indices.tolist())
    assert (frame["policy_versions"] == 1).all()


def test_empty_batch_is_an_empty_table() -> None:
    empty = random_batch([], 0)
    assert len(empty.to_pandas()) == 0
    assert empty.to_arrow().num_rows == 0
    assert empty.to_arrow().schema == BATCH.to_arrow().schema
