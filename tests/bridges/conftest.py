"""Fixtures of the bridges: a server whose workers are threads, and batches of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import rollserve
from rollserve_server.local import LocalServer, local_server


@pytest.fixture(scope="session")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server with two workers of two rows, which tests of this folder share."""
    log = Path(tmp_path_factory.mktemp("bridges"), "server.log")
    options = (
        "--env",
        "CartPole-v1",
        "--backend",
        "in-process",
        "--workers",
        "2",
        "--rows",
        "2",
        "--vectorization",
        "rows",
    )
    with local_server(*options, log=log) as running:
        yield running


@pytest.fixture
def sampler(small_server: LocalServer) -> Iterator[rollserve.Sampler]:
    """A sampler with CartPole-v1, of at most 15 steps an episode, and an untrained agent that has a value."""
    small_server.reset()
    with rollserve.connect(small_server.address) as connected:
        env = connected.update_env("CartPole-v1", kwargs={"max_episode_steps": 15})
        spaces = env.observation_space, env.action_space
        connected.update_agent(rollserve.MlpAgent.initial(*spaces, seed=0, value="separate"))
        yield connected
