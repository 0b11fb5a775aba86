"""Rows that step at the same time, each in a thread (`--row-threads`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import raises, server_environment

import rollserve
from rollserve_server.local import LocalServer, local_server


def server(folder: Path, *options: str) -> Any:
    rows = ("--env", "CartPole-v1", "--vectorization", "rows", "--rows", "4", "--workers", "1", "--seed", "1")
    allowed = ("--backend", "in-process", "--allow-module", "sample_envs", "--allow-path", str(folder.parent))
    return local_server(*rows, *allowed, *options, log=folder / "server.log", environment=server_environment())


@pytest.fixture(scope="module")
def threaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with server(tmp_path_factory.mktemp("threaded"), "--row-threads") as running:
        yield running


@pytest.fixture
def sampler(threaded: LocalServer) -> Iterator[rollserve.Sampler]:
    with rollserve.connect(threaded.address) as connected:
        yield connected


def test_rows_step_and_are_reset_at_the_same_time(sampler: rollserve.Sampler) -> None:
    sampler.update_env("sample_envs:Meeting")
    sampler.update_agent(rollserve.RandomAgent())
    batch = sampler.obtain_fragments(60, seed=3)
    assert batch.rewards.tolist() == [1.0] * 60
    assert set(batch.lengths.tolist()) == {5}
    with sampler.drive(seed=3) as session:
        steps = [session.step(np.zeros(4, np.int64)) for _ in range(12)]
        driven = session.batch()
    assert all(step.rewards.all() for step in steps)
    assert np.array_equal(driven.observations[:5], batch.observations[:5])


def test_threads_change_nothing_that_is_sampled(sampler: rollserve.Sampler, tmp_path: Path) -> None:
    def sampled(connected: rollserve.Sampler) -> list[rollserve.EpisodeBatch]:
        updated = connected.update_env("CartPole-v1")
        connected.update_agent(rollserve.MlpAgent.initial(updated.observation_space, updated.action_space, seed=0))
        return [connected.obtain_samples(200, seed=5), connected.obtain_fragments(200, seed=5)]

    with server(tmp_path) as running, rollserve.connect(running.address) as plain:
        expected = sampled(plain)
    for found, batch in zip(sampled(sampler), expected, strict=True):
        for name in ("observations", "actions", "rewards", "lengths", "terminated", "env_seeds", "last_observations"):
            assert np.array_equal(vars(found)[name], vars(batch)[name])


@pytest.mark.parametrize("at", ["step", "reset"])
def test_episodes_that_fail_in_threads_run_again(sampler: rollserve.Sampler, tmp_path: Path, at: str) -> None:
    def sampled(folder: Path, times: int) -> rollserve.EpisodeBatch:
        folder.mkdir()
        sampler.update_env(rollserve.EnvSpec("sample_envs:Flaky", {"folder": str(folder), "at": at, "times": times}))
        sampler.update_agent(rollserve.RandomAgent())
        return sampler.obtain_fragments(400, seed=5)

    flawless, flaky = sampled(tmp_path / "flawless", 0), sampled(tmp_path / "flaky", 1)
    assert flaky.account.num_retried_episodes > 0
    assert all(np.array_equal(vars(flaky)[name], vars(flawless)[name]) for name in ("observations", "env_seeds"))
    sampler.update_env(rollserve.EnvSpec("sample_envs:Failing", {"at": at}))
    with raises(rollserve.ServerError, reason="ENV_FAILED", quotes="broken by design"):
        sampler.obtain_fragments(4, seed=1)
