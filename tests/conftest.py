"""Servers that many tests share: starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from support import server_environment

import rollserve
from rollserve_server.local import LocalServer, local_server

# The same examples on every machine; `--hypothesis-profile=default` draws others each time.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A real server on Ray with two workers, that tests share: what they need of it they set themselves."""
    log = tmp_path_factory.mktemp("server") / "server.log"
    options = ("--env", "CartPole-v1", "--workers", "2", "--rows", "4", "--seed", "7", "--allow-module", "sample_envs")
    with local_server(*options, log=log, environment=server_environment()) as running:
        yield running
    text = log.read_text()
    assert "Traceback" not in text, text


@pytest.fixture
def sampler(server: LocalServer) -> Iterator[rollserve.Sampler]:
    """The shared server's sampler, with CartPole-v1 and an untrained agent."""
    with rollserve.connect(server.address) as connected:
        updated = connected.update_env("CartPole-v1")
        agent = rollserve.MlpAgent.initial(updated.observation_space, updated.action_space, seed=0)
        connected.update_agent(agent)
        yield connected
