"""Local servers for tests of other programs: their log, and resets between tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import equal, raises

import rollserve
from rollserve_server.local import LocalServer, local_server

LIGHT = ("--env", "CartPole-v1", "--backend", "in-process", "--workers", "2", "--rows", "4")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("server") / "log")


@pytest.fixture(scope="module")
def running(log: str) -> Iterator[LocalServer]:
    with local_server(*LIGHT, log=log) as server:
        yield server


@pytest.fixture
def sampler(running: LocalServer) -> Iterator[rollserve.Sampler]:
    running.reset()
    with rollserve.connect(running.address) as connected:
        yield connected


@pytest.mark.parametrize("change", ["environment", "agents", "nothing"])
def test_reset_server_delivers_the_same_to_each_test(
    sampler: rollserve.Sampler, change: str, reference: list[rollserve.EpisodeBatch]
) -> None:
    assert sampler.status().policy_version == 0
    assert sampler.update_agent(rollserve.RandomAgent()) == 1
    batches = [sampler.obtain_samples(100), sampler.obtain_samples(100), sampler.obtain_fragments(1280)]
    if not reference:
        reference += batches
    assert all(map(equal, batches, reference))
    if change == "environment":
        sampler.update_env("Acrobot-v1")
    elif change == "agents":
        assert sampler.update_agent(rollserve.RandomAgent()) == 2


@pytest.fixture(scope="module")
def reference() -> list[rollserve.EpisodeBatch]:
    """Batches of the first test."""
    return []


def test_stream_from_before_a_reset_ends_with_the_run(running: LocalServer, sampler: rollserve.Sampler) -> None:
    sampler.update_agent(rollserve.RandomAgent())
    with sampler.stream_samples(10**9) as stream:
        next(stream)
        running.reset()
        with raises(rollserve.PreconditionError, reason=rollserve.Reason.SAMPLER_RUN):
            for _ in stream:
                pass


def test_log_is_written_to_a_path_that_is_text(running: LocalServer, log: str) -> None:
    running.reset()
    assert "sampler reset" in Path(log).read_text()


def test_server_shows_its_address_and_process_and_is_not_reset_when_it_has_ended(tmp_path: Path) -> None:
    with local_server(*LIGHT, log=tmp_path / "log") as server:
        assert repr(server) == f"<LocalServer '{server.address}', process {server.process.pid}>"
        assert server.stop() == 0
        assert repr(server) == f"<LocalServer '{server.address}', ended with status 0>"
        with pytest.raises(RuntimeError, match="server"):
            server.reset()
