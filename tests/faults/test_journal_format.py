"""A journal in another format, which another version of the server left on a Ray cluster."""

from __future__ import annotations

import hashlib
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from raw_calls import soon
from ray_clusters import RayCluster, cluster_server, ray_cluster
from support import raises

import rollserve
from rollserve_server.envs import ProfileEnv
from rollserve_server.errors import InvalidValueError
from rollserve_server.pool.backends.ray.identity import SamplerIdentity, Seal
from rollserve_server.pool.backends.ray.journal_actor import JournalKeeper
from rollserve_server.pool.backends.ray.journal_handle import JournalHandle
from rollserve_server.pool.backends.ray.journal_opening import acquire_lease
from rollserve_server.pool.backends.ray.names import JOURNAL_FORMAT
from rollserve_server.pool.state import codec
from rollserve_server.pool.state.ownership import Owner
from rollserve_server.settings import WorkerSettings

LAYOUTS = {6: "d3df6393b4607af5"}
"""The layout of the journal in each format, as `layout` has it."""

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


def layout() -> str:
    """Return a digest of what server and journal exchange: records and their fields, forms, settings, and methods."""
    records = [f"{kind.__name__}({', '.join(names)})" for kind, names in codec._FIELDS.items()]
    methods = [
        f"{name}{inspect.signature(each)}" for name, each in inspect.getmembers(JournalKeeper, inspect.isfunction)
    ]
    texts = sorted([*records, *codec._FORMS, *WorkerSettings.model_fields, *(m for m in methods if m[0] != "_")])
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def test_each_layout_has_a_format_of_its_own() -> None:
    assert LAYOUTS[JOURNAL_FORMAT] == layout(), "raise JOURNAL_FORMAT, and record the layout here"


async def test_state_that_another_version_left_in_this_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = SamplerIdentity.of(b"secret", "namespace")
    seal = Seal(identity.key)
    message = seal.sealed(ProfileEnv("CartPole-v1", profile="short"))
    monkeypatch.delitem(codec._KINDS, "ProfileEnv")  # as in a server from before there were profiles

    class Journal:
        async def call(self, *_: object) -> object:
            return seal.opened(message)

    monkeypatch.setattr(JournalHandle, "find_or_start", lambda _: Journal())
    expected = raises(InvalidValueError, field="journal", match=r"\b6\b.*ProfileEnv.*--no-adopt")
    with expected:
        await acquire_lease(identity, Owner("host", 1), 60.0, discard=False)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), [("journal", 1), ("journal-4", 4)])
def test_server_refuses_a_journal_in_another_format_unless_it_may_end_the_sampler(
    cluster: RayCluster, tmp_path: Path, name: str, number: int
) -> None:
    with old_server(cluster, "leave", name) as old:
        journal, worker = process_ids(old)
    with (
        pytest.raises(RuntimeError, match=rf"cannot serve error='journal: .*\b6\b.*\b{number}\b.*--no-adopt"),
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
