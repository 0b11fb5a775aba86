"""Journals that other versions of the server left on a Ray cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray.exceptions
from faults.test_journal import LastingBackend, pool_on
from onnx_models import categorical
from pools import until
from raw_calls import soon
from ray_clusters import OTHER_VERSION, RayCluster, cluster_server, ray_cluster
from support import equal, raises

import rollserve
from rollserve import Reason
from rollserve_server.agents import AgentSource, OnnxModel, RandomSpec
from rollserve_server.errors import InvalidValueError, SamplerLostError
from rollserve_server.pool.backends.ray.identity import SamplerIdentity
from rollserve_server.pool.backends.ray.journal import RayJournal
from rollserve_server.pool.backends.ray.journal_actor import JOURNAL_FORMAT
from rollserve_server.pool.backends.ray.journal_handle import JournalHandle
from rollserve_server.pool.state.records import Record, sampler_records
from rollserve_server.pool.state.saved_sampler import SavedSampler
from rollserve_server.sampling import ORDERS_FORMAT
from rollserve_wire.v1 import journal_pb2
from rollserve_wire.v1.saved_sampler_pb2 import SavedHeader, SavedRecord

OPTIONS = ("--env", "CartPole-v1", "--workers", "2", "--worker-num-cpus", "0.25")

ACTORS = """
import os, sys, time
import ray

class Old:
    def process_id(self):
        return os.getpid()

def start(name):
    old = ray.remote(Old).options(name=name, lifetime="detached", get_if_exists=True, num_cpus=0).remote()
    return ray.get(old.process_id.remote())

ray.init(address=sys.argv[1], namespace="rollserve", log_to_driver=False)
print(*map(start, (sys.argv[3], "worker-0-1-1")), flush=True)
while sys.argv[2] == "serve":
    try:
        start(sys.argv[3])
    except ray.exceptions.RayError:
        pass
    time.sleep(0.5)
"""
"""A program that starts a sampler of an earlier format. In mode `serve` it restarts the journal when that is lost."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as running:
        yield running


def old_server(cluster: RayCluster, mode: str, journal: str = "journal") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", ACTORS, cluster.address, mode, journal]
    environment = {**os.environ, **cluster.environment}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def process_ids(old: subprocess.Popen[str]) -> tuple[int, int]:
    """Return the process ids of the journal and the worker once both run."""
    assert old.stdout is not None
    journal, worker = map(int, old.stdout.readline().split())
    return journal, worker


class FakeJournal:
    """A journal in this process.

    Attributes:
        requests: method of each request, and the records behind it.
        is_lost: whether the next request finds that the journal is lost.
        is_alive: whether nobody has killed it.
    """

    def __init__(
        self, left: Sequence[bytes], journal_format: int = JOURNAL_FORMAT, replaces: FakeJournal | None = None
    ) -> None:
        self._left = left
        self._replaces = replaces
        self._format = journal_format
        self.requests: list[tuple[int, list[bytes]]] = []
        self.is_lost = False
        self.is_alive = True

    async def call(self, request: journal_pb2.JournalRequest, records: Iterable[Record] = (), more: Any = None) -> Any:
        if self.is_lost:
            self.is_lost = False
            raise ray.exceptions.RayActorError
        self.requests.append((request.method, list(map(b"".join, records))))
        has_state = request.method in (journal_pb2.JOURNAL_METHOD_ACQUIRE, journal_pb2.JOURNAL_METHOD_READ)
        answer = journal_pb2.JournalAnswer(epoch=1, software_version="0.1.99", format=self._format)
        return answer, [memoryview(each) for each in self._left if has_state]

    def kill(self) -> None:
        self.is_alive = False

    def end_others(self) -> None:
        if self._replaces is not None:
            self._replaces.kill()


@contextlib.asynccontextmanager
async def opened(monkeypatch: pytest.MonkeyPatch, journal: FakeJournal) -> AsyncIterator[RayJournal]:
    """Open a journal that a server has left."""

    async def has_none(*_: object, **__: object) -> bool:
        return False

    monkeypatch.setattr("rollserve_server.pool.backends.ray.journal.has_other_journals", has_none)
    monkeypatch.setattr(JournalHandle, "find_or_start", lambda _: journal)
    identity = SamplerIdentity.of(b"", "namespace")
    opened = await RayJournal.open(identity, 60.0, check=lambda _: None, discard=False, on_wait=None)
    try:
        yield opened
    finally:
        opened.abandon()


async def test_state_in_a_later_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = FakeJournal([SavedRecord(header=SavedHeader(format=2, worker_count=1)).SerializeToString()])
    with raises(InvalidValueError, field="journal.header.format", match=r"up to 1.*\b2\b.*--no-adopt"):
        async with opened(monkeypatch, journal):
            pass


async def left_by_a_pool(agent: AgentSource) -> tuple[list[bytes], SavedSampler]:
    """Return the state that a pool with an agent leaves, as records and read."""
    backend = LastingBackend()
    async with pool_on(backend, keep=False) as pool:
        await pool.update_agent([agent])
    left = backend.left()
    assert backend.kept is not None
    assert left is not None
    return list(map(b"".join, backend.kept)), left


async def test_journal_that_is_lost_during_takeover_gets_back_what_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    model = OnnxModel(categorical().SerializeToString(), {}, {}, "categorical", ())
    records, _ = await left_by_a_pool(model)
    journal = FakeJournal(records)
    async with opened(monkeypatch, journal):
        journal.is_lost = True
        async with asyncio.timeout(10):
            await until(lambda: len(journal.requests) > 2)
    assert journal.requests[2] == (journal_pb2.JOURNAL_METHOD_RESTORE, records)


@pytest.mark.parametrize("starts", [True, False])
async def test_journal_of_another_format_ends_once_another_has_the_state(
    monkeypatch: pytest.MonkeyPatch, starts: bool
) -> None:
    records, state = await left_by_a_pool(RandomSpec())
    old = FakeJournal(records, 0)
    new = FakeJournal((), JOURNAL_FORMAT, old)
    given: list[bytes] = []
    new.is_lost = not starts

    def replace(_: SamplerIdentity, __: journal_pb2.JournalRequest, records: Iterable[Record]) -> FakeJournal:
        assert old.is_alive
        given.extend(map(b"".join, records))
        return new

    monkeypatch.setattr(JournalHandle, "replace", replace)
    async with opened(monkeypatch, old) as journal:
        begun = journal.begin(lambda: state, lambda: state.header)
        if starts:
            await begun
            assert not old.is_alive
        else:
            with raises(SamplerLostError, reason=Reason.JOURNAL_LOST):
                await begun
            assert old.is_alive
    assert given == list(map(b"".join, sampler_records(state)))
    assert new.is_alive == starts


@pytest.mark.slow
@pytest.mark.parametrize("name", ["journal", "journal-4"])
def test_server_refuses_a_journal_in_an_old_format_unless_it_may_end_the_sampler(
    cluster: RayCluster, tmp_path: Path, name: str
) -> None:
    with old_server(cluster, "leave", name) as old:
        journal, worker = process_ids(old)
    with (
        pytest.raises(RuntimeError, match=rf"cannot serve error='journal: .*\b0\.2\.0\b.*\b{name},.*--no-adopt"),
        cluster_server(cluster, tmp_path, *OPTIONS),
    ):
        pass
    assert psutil.pid_exists(journal)
    assert psutil.pid_exists(worker)
    assert not cluster.actors()
    with cluster_server(cluster, tmp_path, *OPTIONS, "--no-adopt") as server:
        with rollserve.connect(server.address) as sampler:
            sampler.update_agent(rollserve.RandomAgent())
            assert sampler.obtain_samples(100).num_steps >= 100
        assert not psutil.pid_exists(journal)
        assert not psutil.pid_exists(worker)
        assert len(cluster.actors("WorkerActor")) == 2
        server.process.terminate()
        assert server.process.wait(30) == 0
    assert soon(lambda: not cluster.actors())


@pytest.mark.slow
@pytest.mark.parametrize("orders_format", [0, ORDERS_FORMAT])
def test_server_takes_over_from_another_version_with_workers_of_its_own(
    cluster: RayCluster, tmp_path: Path, orders_format: int
) -> None:
    run = "-c", OTHER_VERSION.format(orders_format)
    other = cluster_server(cluster, tmp_path, *OPTIONS, run=run)
    with other as server, rollserve.connect(server.address) as sampler:
        sampler.update_agent(rollserve.RandomAgent())
        expected = sampler.obtain_samples(100, seed=3)
    before = cluster.actors("WorkerActor")
    with cluster_server(cluster, tmp_path, *OPTIONS) as server:
        with rollserve.connect(server.address) as sampler:
            assert sampler.status().policy_version == 1
            assert equal(sampler.obtain_samples(100, seed=3), expected)
        assert soon(lambda: not before & cluster.actors("WorkerActor"))
        assert soon(lambda: len(cluster.actors()) == 3)
        server.process.kill()
    with cluster_server(cluster, tmp_path, *OPTIONS) as server:
        with rollserve.connect(server.address) as sampler:
            assert sampler.status().policy_version == 1
        server.process.terminate()
        assert server.process.wait(30) == 0
    assert soon(lambda: not cluster.actors())


@pytest.mark.slow
def test_server_that_cannot_take_over_from_another_version_leaves_its_workers(
    cluster: RayCluster, tmp_path: Path
) -> None:
    other = ("-c", OTHER_VERSION.format(ORDERS_FORMAT))
    with cluster_server(cluster, tmp_path, *OPTIONS, "--seed", "1", run=other) as server:
        server.process.kill()
    before, workers = cluster.actors(), cluster.actors("WorkerActor")
    assert (len(before), len(workers)) == (3, 2)
    with (
        pytest.raises(RuntimeError, match=r"cannot serve error='seed: expected 1, got 2"),
        cluster_server(cluster, tmp_path, *OPTIONS, "--seed", "2"),
    ):
        pass
    assert cluster.actors() == before
    with cluster_server(cluster, tmp_path, *OPTIONS, "--seed", "1", run=other):
        assert cluster.actors() == before
    with cluster_server(cluster, tmp_path, *OPTIONS, "--no-adopt") as server:
        assert soon(lambda: not workers & cluster.actors())
        server.process.terminate()
        assert server.process.wait(30) == 0
    assert soon(lambda: not cluster.actors())


@pytest.mark.slow
def test_server_leaves_the_sampler_of_another_version_that_serves(cluster: RayCluster, tmp_path: Path) -> None:
    with old_server(cluster, "serve") as old:
        try:
            _, worker = process_ids(old)
            with (
                pytest.raises(RuntimeError, match=r"cannot serve error=.* another version"),
                cluster_server(cluster, tmp_path, *OPTIONS, "--no-adopt"),
            ):
                pass
            assert psutil.pid_exists(worker)
            assert soon(lambda: not cluster.actors())
        finally:
            old.kill()
