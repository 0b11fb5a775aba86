"""Fixtures of many tests: a shared server, its client, and the two backends; starting a server takes seconds."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Generator, Iterator
from pathlib import Path

import grpc
import pytest
from hypothesis import settings
from recycled_workers import RecyclingBackend
from support import Sampled, server_environment

import rollserve
from rollserve_server.local import LocalServer, local_server
from rollserve_server.pool import Backend, InProcessBackend
from rollserve_server.settings import RaySettings
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub

# The same examples on every machine; `--hypothesis-profile=default` draws others each time.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what is collected out of garbage collections: it stays, and to traverse it takes 0.5 s each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Name the groups of `--dist loadgroup`, so that each process starts few servers.

    All tests with the shared server on Ray are one group, and so are all with the shared Ray cluster: each takes 10 s
    of processor time to start, and 4 % of a core as long as it runs. Other tests are grouped by file. With a parameter
    "ray", a fixture takes the cluster, which the test then does not name.
    """
    for item in items:
        assert isinstance(item, pytest.Function)
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        takes_cluster = any(isinstance(each, str) and each == "ray" for each in parameters)
        used = {*item.fixturenames, *(("ray_backend",) if takes_cluster else ())}
        shared = (name for name in ("ray_server", "ray_backend") if name in used)
        group = next((name for name in shared if not hasattr(item.module, name)), item.location[0])
        item.add_marker(pytest.mark.xdist_group(group))


@contextlib.contextmanager
def _shared_server(log: Path, *others: str) -> Iterator[LocalServer]:
    """A server with two workers that tests share; each test sets the environment and agent it needs."""
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
        "--straggler-factor",  # test machines may be slow enough to make any episode a straggler
        "0",
    )
    with local_server(*options, *others, log=log, environment=server_environment()) as running:
        yield running
    text = log.read_text()
    assert "Traceback" not in text, text


@pytest.fixture(scope="session")
def ray_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """The server whose workers are Ray's."""
    with _shared_server(tmp_path_factory.mktemp("server") / "server.log") as running:
        yield running


@pytest.fixture(scope="session")
def light_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """The server whose workers are threads: starts, updates and calls take a third less processor time, or far less."""
    with _shared_server(tmp_path_factory.mktemp("server") / "server.log", "--backend", "in-process") as running:
        yield running


@pytest.fixture(scope="session")
def server(ray_server: LocalServer) -> LocalServer:
    """The shared server; folders and files whose tests need no processes of workers have `light_server` here."""
    return ray_server


@pytest.fixture(scope="session")
def thread_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server that tests share whose workers are threads, so that their number changes fast: two, with four rows."""
    options = ("--env", "CartPole-v1", "--vectorization", "rows", "--rows", "4", "--workers", "2")
    options += ("--backend", "in-process", "--allow-module", "sample_envs")
    log = tmp_path_factory.mktemp("server") / "server.log"
    with local_server(*options, log=log, environment=server_environment()) as running:
        yield running


@pytest.fixture
def thread_sampler(thread_server: LocalServer) -> Iterator[rollserve.Sampler]:
    """The sampler of the server with threads, as it was at its start."""
    thread_server.reset()
    with rollserve.connect(thread_server.address) as connected:
        yield connected


@pytest.fixture
def sampler(server: LocalServer) -> Iterator[rollserve.Sampler]:
    """The shared server's sampler, with CartPole-v1 and an untrained agent."""
    with rollserve.connect(server.address) as connected:
        updated = connected.update_env("CartPole-v1")
        agent = rollserve.MlpAgent.initial(updated.observation_space, updated.action_space, seed=0)
        connected.update_agent(agent)
        yield connected


@pytest.fixture
def cartpole(server: LocalServer) -> Iterator[rollserve.Sampler]:
    """The shared server's sampler, with CartPole-v1 and any agent."""
    with rollserve.connect(server.address) as connected:
        connected.update_env("CartPole-v1")
        yield connected


@pytest.fixture
def sandboxes_find_test_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sandboxes of this process find the environments and agents of the tests."""
    monkeypatch.setenv("PYTHONPATH", server_environment()["PYTHONPATH"])


@pytest.fixture
def stub(server: LocalServer, sampler: rollserve.Sampler) -> Iterator[SamplerServiceStub]:
    """The generated stub of the shared server, prepared by `sampler`."""
    with grpc.insecure_channel(server.address) as channel:
        yield SamplerServiceStub(channel)


@pytest.fixture
def unchanged(sampler: rollserve.Sampler) -> Iterator[None]:
    """Check that a test leaves the shared server's sampler as it was."""
    before = Sampled(sampler)
    yield
    before.check()


@pytest.fixture(scope="session")
def ray_backend() -> Iterator[Backend]:
    """A backend whose workers are Ray actors, in a cluster that all tests of this process share."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server_environment().items():
            patch.setenv(name, value)
        backend = _start_ray()
        yield backend
        backend.close()


def _start_ray() -> Backend:
    """Start the cluster; like a server, start it again if a busy machine takes longer than Ray's own limit of 30 s."""
    # Several pools exist at once, and each worker would claim a core.
    settings, num_workers = RaySettings(worker_num_cpus=0.5), 8
    with warnings.catch_warnings():
        # Ray waits for no process of a cluster that did not start, and lets go of them when it starts the next one.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            for _ in range(2):
                with contextlib.suppress(OSError):
                    return RecyclingBackend(settings, num_workers=num_workers)
            return RecyclingBackend(settings, num_workers=num_workers)
        finally:
            gc.collect()


@pytest.fixture
def without_recycling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processes of workers end with their pool, or when a resize removes them."""
    monkeypatch.setattr(RecyclingBackend, "recycles", False)


@pytest.fixture(params=["in-process", pytest.param("ray", marks=pytest.mark.slow)])
def backend(request: pytest.FixtureRequest) -> Backend:
    """The two backends in turn: threads of this process, and Ray.

    Faults of processes, which only Ray has, are tested by tests that ask for `ray_backend`.
    """
    if request.param == "ray":
        ray: Backend = request.getfixturevalue("ray_backend")
        return ray
    return InProcessBackend()
