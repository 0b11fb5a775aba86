"""Servers that many tests share: starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from support import server_environment

import rollserve
from rollserve_server.local import LocalServer, local_server
from rollserve_server.pool import Backend, InProcessBackend
from rollserve_server.pool.backends.ray.backend import RayBackend, RayOptions

# The same examples on every machine; `--hypothesis-profile=default` draws others each time.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A real server on Ray with two workers, that tests share: what they need of it they set themselves."""
    log = tmp_path_factory.mktemp("server") / "server.log"
    options = (
        "--env",
        "CartPole-v1",
        "--workers",
        "2",
        "--vectorization",
        "rows",
        "--rows",
        "4",
        "--seed",
        "7",
        "--allow-module",
        "sample_envs",
        "--straggler-factor",  # machines that run tests may be slow enough for anything
        "0",
    )
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


@pytest.fixture(scope="session")
def ray_backend() -> Iterator[RayBackend]:
    """Workers as Ray's actors, in a cluster of this process that tests share."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server_environment().items():
            patch.setenv(name, value)
        # Several pools are there at once, each with workers that want a core.
        backend = RayBackend(RayOptions(num_cpus=0.5), num_workers=8)
        yield backend
        backend.close()


@pytest.fixture(params=["in-process", "ray"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each of the two ways to run workers."""
    if request.param == "ray":
        ray: RayBackend = request.getfixturevalue("ray_backend")
        return ray
    return InProcessBackend()
