"""Servers that tests of agents share, which need no processes of workers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support import server_environment

import rollserve
from rollserve_server.local import LocalServer, local_server


@pytest.fixture(scope="session")
def server(light_server: LocalServer) -> LocalServer:
    return light_server


@pytest.fixture(scope="session")
def in_process_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server with two workers of three rows in its own process; failed episodes are not repeated."""
    log = tmp_path_factory.mktemp("agents") / "server.log"
    options = ("--env", "CartPole-v1", "--backend", "in-process", "--workers", "2", "--rows", "3", "--seed", "3")
    options = (*options, "--vectorization", "rows", "--allow-module", "sample_envs", "--env-retries", "0")
    with local_server(*options, log=log, environment=server_environment()) as running:
        yield running


@pytest.fixture
def fed(in_process_server: LocalServer) -> Iterator[rollserve.Sampler]:
    """The sampler of that server; each test sets environment and agent."""
    with rollserve.connect(in_process_server.address) as sampler:
        yield sampler
