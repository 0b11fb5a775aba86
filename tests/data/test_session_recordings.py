"""Sessions that the server records into datasets: the episodes that their clients would have got."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import minari
import numpy as np
import pytest
from cutting_proxy import cutting_proxy
from raw_calls import soon
from support import raises

import rollserve
from rollserve import EpisodeBatch
from rollserve.data import verify
from rollserve_server.local import LocalServer

COLUMNS = ("observations", "actions", "rewards", "lengths", "terminated", "truncated", "last_observations", "env_seeds")
NUM_STEPS = 90

Recording = tuple[rollserve.Sampler[Any], str, Path]
VERSIONS = itertools.count()


@pytest.fixture
def recording(recording_server: tuple[LocalServer, Path], request: pytest.FixtureRequest) -> Iterator[Recording]:
    """The server's sampler, and the id and the folder of a dataset that does not exist."""
    server, folder = recording_server
    server.reset()
    name = f"{request.node.originalname.replace('_', '-')}-v{next(VERSIONS)}"
    with rollserve.connect(server.address) as sampler:
        yield sampler, name, folder / name


def driven(sampler: rollserve.Sampler[Any], num_steps: int = NUM_STEPS, **options: Any) -> rollserve.Session:
    """Return a session that has ended."""
    options = {"seed": 5, "fragment_length": 16, "agent_infos": {"number": np.int64(0)}, **options}
    generator = np.random.default_rng(1)
    with sampler.drive(**options) as session:
        session.observe()
        for number in range(num_steps):
            session.policy_version = number // 9
            numbers = {"number": np.full(session.num_rows, number)}
            session.step(generator.integers(2, size=session.num_rows), numbers)
    return session


def whole(batch: EpisodeBatch) -> EpisodeBatch:
    """Return the whole episodes of a session's fragments, each with the version of its beginning."""
    ordered = batch.take(np.lexsort((batch.first_steps, batch.episode_indices)))
    _, firsts, numbers = np.unique(ordered.episode_indices, return_index=True, return_inverse=True)
    ordered = dataclasses.replace(ordered, policy_versions=ordered.policy_versions[firsts][numbers]).joined()
    return ordered.take(np.flatnonzero(ordered.terminated | ordered.truncated))


def read(folder: Path) -> EpisodeBatch:
    """Return the episodes of a dataset of one session, in the order of their indices; Minari finds as many."""
    batch = EpisodeBatch.concatenate(*rollserve.data.read(folder))
    assert minari.MinariDataset(folder / "data").total_episodes == len(batch)
    return batch.take(np.argsort(batch.episode_indices))


def state_of(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((folder / "data/metadata.json").read_text())["rollserve_recording"]
    return state


def assert_same(found: EpisodeBatch, expected: EpisodeBatch) -> None:
    for name in (*COLUMNS, "episode_indices", "policy_versions"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    assert np.array_equal(found.agent_infos["number"], expected.agent_infos["number"])


def test_dataset_has_the_whole_episodes_of_the_session(recording: Recording) -> None:
    sampler, name, folder = recording
    session = driven(sampler, dataset=name, metadata={"author": {"A"}})
    expected = whole(driven(sampler).batch())
    assert len(expected) > 20
    assert_same(read(folder), expected)
    dataset = minari.MinariDataset(folder / "data")
    assert dataset.storage.metadata["author"] == {"A"}
    assert dataset.recover_environment().spec.id == "CartPole-v1"
    recorded = session.recording
    assert recorded is not None
    assert (recorded.dataset, recorded.seed, recorded.num_episodes) == (name, 5, len(expected))
    assert (recorded.num_added_steps, recorded.num_added_episodes) == (expected.num_steps, len(expected))
    assert session.account.num_steps == 8 * NUM_STEPS
    assert verify(folder).is_equal
    assert state_of(folder)["state"] == "complete"
    with raises(rollserve.PreconditionError, field="batch"):
        session.batch()
    with sampler.read(name) as stream:
        assert sum(batch.num_steps for batch in stream) == expected.num_steps


def test_sessions_extend_a_dataset(recording: Recording) -> None:
    sampler, name, folder = recording
    first = driven(sampler, dataset=name).recording
    second = driven(sampler, dataset=name, seed=6, min_ready=None).recording
    assert first is not None
    assert second is not None
    assert second.num_episodes == first.num_episodes + second.num_added_episodes > first.num_episodes
    found = EpisodeBatch.concatenate(*rollserve.data.read(folder))
    expected = [whole(driven(sampler, seed=seed).batch()) for seed in (5, 6)]
    parts = np.split(np.arange(len(found)), [first.num_episodes])
    for part, batch in zip(parts, expected, strict=True):
        its = found.take(part)
        assert_same(its.take(np.argsort(its.episode_indices)), batch)
    assert verify(folder).is_equal
    random = driven(sampler, dataset=name, seed=None).recording
    assert random is not None
    assert random.seed not in (5, 6)
    assert random.num_added_episodes


def test_datasets_of_other_origins_are_refused(recording: Recording) -> None:
    sampler, name, folder = recording
    sampler.update_agent(rollserve.RandomAgent())
    driven(sampler, dataset=name)
    before = state_of(folder)
    with raises(rollserve.PreconditionError, field="dataset", reason="DATASET_DIFFERS", quotes="client"):
        sampler.record(name, num_episodes=3)
    with raises(rollserve.PreconditionError, field="spec.dataset", reason="DATASET_DIFFERS"):
        driven(sampler, dataset=name, max_episode_length=7)
    assert state_of(folder) == before
    sampler.record(f"recorded-{name}", num_episodes=3)
    with raises(rollserve.PreconditionError, field="spec.dataset", reason="DATASET_DIFFERS"):
        driven(sampler, dataset=f"recorded-{name}")


def test_dataset_of_a_session_is_in_use(recording: Recording) -> None:
    sampler, name, _ = recording
    with sampler.drive(dataset=name) as session:
        session.observe()
        with raises(rollserve.PreconditionError, field="spec.dataset", reason="DATASET_IN_USE"):
            sampler.drive(dataset=name).observe()


@pytest.mark.parametrize("min_ready", [None, 4])
def test_dataset_is_whole_after_its_session_has_lost_connections(
    recording: Recording, recording_server: tuple[LocalServer, Path], min_ready: int | None
) -> None:
    sampler, name, folder = recording
    with (
        cutting_proxy(recording_server[0].address, num_cuts=12, max_bytes=6000, seed=3) as proxy,
        rollserve.connect(proxy.address, timeout=20) as other,
    ):
        other.status()
        if min_ready is None:
            session = driven(other, dataset=name, lease_seconds=30)
        else:
            with other.drive(seed=5, dataset=name, lease_seconds=30, min_ready=min_ready) as session:
                for _ in range(2 * NUM_STEPS):
                    step = session.recv()
                    session.send(np.zeros(len(step.rows), np.int64))
        assert proxy.num_cuts >= 4
    assert session.recording is not None
    found = read(folder)
    if min_ready is None:
        assert_same(found, whole(driven(sampler).batch()))
    assert len(np.unique(found.episode_indices)) == len(found) == session.recording.num_episodes
    assert not found.first_steps.any()


def test_session_that_is_cancelled_leaves_its_episodes(recording: Recording) -> None:
    sampler, name, folder = recording
    with sampler.drive(seed=5, fragment_length=16, dataset=name) as session:
        session.observe()
        for _ in range(NUM_STEPS):
            session.step(np.zeros(session.num_rows, np.int64))
        session.close()
    assert soon(lambda: state_of(folder)["state"] == "cancelled")
    assert len(read(folder))
    assert driven(sampler, dataset=name).recording is not None


def test_session_from_asyncio_is_recorded(recording: Recording, recording_server: tuple[LocalServer, Path]) -> None:
    async def run(name: str) -> rollserve.Recording | None:
        async with (
            rollserve.aconnect(recording_server[0].address) as sampler,
            sampler.drive(dataset=name, fragment_length=16) as session,
        ):
            for _ in range(NUM_STEPS):
                await session.step(np.zeros(8, np.int64))
        return session.recording

    _, name, folder = recording
    recorded = asyncio.run(run(name))
    assert recorded is not None
    assert recorded.num_episodes == len(read(folder)) > 0


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"dataset": "../a-v0"}, "spec.dataset"),
        ({"dataset": "no-version"}, "spec.dataset"),
        ({"env_version": 9}, "spec.options.environment_version"),
        ({"metadata": {"author": "me"}, "dataset": None}, "metadata"),
        ({"min_ready": 9}, "spec.min_ready_row_count"),
    ],
)
def test_wrong_requests_are_refused(recording: Recording, options: dict[str, Any], field: str) -> None:
    sampler, name, _ = recording
    with raises(rollserve.InvalidArgumentError, field=field):
        sampler.drive(**{"dataset": name, **options}).observe()


def test_environments_with_many_agents_are_refused(recording: Recording) -> None:
    sampler, name, _ = recording
    sampler.update_env(rollserve.EnvSpec("classic/connect_four-v3", multi_agent="aec"))
    with raises(rollserve.InvalidArgumentError, field="spec"):
        sampler.multi_agent.drive(dataset=name).observe()
