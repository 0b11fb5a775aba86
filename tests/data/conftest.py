"""Batches, and the files of all formats that hold them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from learner_batches import random_batch
from support import server_environment

from rollserve import EpisodeBatch, spaces
from rollserve_server.local import LocalServer, local_server
from rollserve_wire.columns import COLUMNS, leaves_of

pytest.importorskip("minari", reason="formats of files are an extra: pip install 'rollserve[data]'")


@pytest.fixture(scope="session")
def recording_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalServer, Path]]:
    """A server that records into a folder."""
    folder = tmp_path_factory.mktemp("datasets")
    log = tmp_path_factory.mktemp("server") / "server.log"
    options = ("--env", "CartPole-v1", "--vectorization", "rows", "--rows", "4", "--workers", "2")
    options += ("--backend", "in-process", "--allow-module", "sample_envs", "--data-dir", str(folder))
    with local_server(*options, log=log, environment=server_environment()) as server:
        yield server, folder


LENGTHS = [5, 1, 7, 3, 9, 2]


def whole_episodes(*, nested: bool = False, **changes: Any) -> EpisodeBatch:
    """Return a batch of whole episodes with all kinds of columns and its spaces."""
    number, size = len(LENGTHS), sum(LENGTHS)
    batch = random_batch(
        LENGTHS,
        3,
        nested=nested,
        first_steps=np.zeros(number, np.int64),
        policy_versions=np.arange(1, number + 1),
        env_seeds=np.arange(number) * 7,
        episode_indices=np.arange(10, 10 + number),
        env_infos={
            "x": np.arange(size),
            "pose/left": np.ones((size, 2)),
            "gap": np.where(np.arange(size) % 2, 0, 3.0),
            "_gap": np.arange(size) % 2 == 0,
        },
        episode_infos={"start": np.arange(number) + 0.5},
    )
    box, discrete = spaces.Box(-np.inf, np.inf, (2,), np.dtype(float)), spaces.Discrete(6000)
    observation_space, action_space = box, discrete
    if nested:
        image = spaces.Box(-6000, 6000, (2, 1), np.dtype(np.int32))
        number_space = spaces.Box(-np.inf, np.inf, (), np.dtype(float))
        observation_space = spaces.Dict({"image": image, "0": spaces.Dict({"x": number_space})})
        action_space = spaces.Dict({"a": discrete, "b": spaces.Box(0, 6000, (1,), np.dtype(int))})
    batch = dataclasses.replace(batch, observation_space=observation_space, action_space=action_space, **changes)
    return ended(batch)


def write_minari(batch: EpisodeBatch, folder: Path) -> Path:
    return batch.to_minari("some/episodes-v0", root=folder)


def write_own(batch: EpisodeBatch, folder: Path) -> Path:
    batch.save(folder / "batch.npz")
    return folder / "batch.npz"


def write_parquet(batch: EpisodeBatch, folder: Path) -> Path:
    batch.to_parquet(folder / "batch.parquet")
    return folder / "batch.parquet"


def write_json(batch: EpisodeBatch, folder: Path) -> Path:
    batch.to_rllib_json(folder / "batch.json")
    return folder / "batch.json"


def write_packed(batch: EpisodeBatch, folder: Path) -> Path:
    batch.to_rllib_json(folder / "packed.json", compress=["obs", "new_obs", "rewards"])
    return folder / "packed.json"


def write_d4rl(batch: EpisodeBatch, folder: Path) -> Path:
    import h5py

    with h5py.File(folder / "batch.hdf5", "w") as file:
        ends = np.cumsum(batch.lengths) - 1
        for name, flags in (("terminals", batch.terminated), ("timeouts", batch.truncated)):
            column = np.zeros(batch.num_steps, np.bool_)
            column[ends] = flags
            file[name] = column
        file["observations"], file["next_observations"] = batch.observations, batch.next_observations
        file["actions"], file["rewards"] = batch.actions, batch.rewards
        file["infos/action_log_probs"] = batch.agent_infos["log_prob"]
        file["infos/x"] = batch.env_infos["x"]
        file["metadata/algorithm"] = "random"
    return folder / "batch.hdf5"


WRITERS: dict[str, Callable[[EpisodeBatch, Path], Path]] = {
    "minari": write_minari,
    "rollserve": write_own,
    "parquet": write_parquet,
    "rllib-json": write_json,
    "packed": write_packed,
    "d4rl": write_d4rl,
}

LACKING: dict[str, set[str]] = {
    "minari": set(),
    "rollserve": set(),
    "parquet": set(),
    "rllib-json": {"env_seeds", "policy_versions", "env_infos", "episode_infos", "agent_infos"},
    "packed": {"env_seeds", "policy_versions", "env_infos", "episode_infos", "agent_infos"},
    "d4rl": {"env_seeds", "policy_versions", "env_infos", "episode_infos", "agent_infos", "episode_indices"},
}
"""Fields that a format does not hold, or holds otherwise."""


@pytest.fixture(params=list(WRITERS))
def file_format(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def ended(batch: EpisodeBatch) -> EpisodeBatch:
    """Return the batch with a flag set for each segment, as D4RL needs it to tell episodes apart."""
    return dataclasses.replace(batch, truncated=batch.truncated | ~batch.terminated)


def assert_same(one: EpisodeBatch, other: EpisodeBatch, without: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    """Check that two batches have the same bits, without some fields."""
    for field in COLUMNS:
        if field in without:
            continue
        columns, others = getattr(one, field), getattr(other, field)
        assert (columns is None) == (others is None), field
        if columns is not None:
            leaves, other_leaves = leaves_of(columns), leaves_of(others)
            assert leaves.keys() == other_leaves.keys(), field
            for name, array in leaves.items():
                assert np.array_equal(array, other_leaves[name], equal_nan=array.dtype.kind == "f"), (field, name)
