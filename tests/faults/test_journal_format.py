"""A journal in another format, which another version of the server left on a Ray cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from raw_calls import soon
from ray_clusters import RayCluster, cluster_server, ray_cluster

import rollserve

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
print(*map(start, ("journal", "worker-0-1-1")), flush=True)
while sys.argv[2] == "serve":
    try:
        start("journal")
    except ray.exceptions.RayError:
        pass
    time.sleep(0.5)
"""
"""A program that starts a sampler of format 1. In mode `serve` it restarts the journal when that is lost."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as running:
        yield running


def old_server(cluster: RayCluster, mode: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", ACTORS, cluster.address, mode]
    environment = {**os.environ, **cluster.environment}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def process_ids(old: subprocess.Popen[str]) -> tuple[int, int]:
    """Return the process ids of the journal and the worker once both run."""
    assert old.stdout is not None
    journal, worker = map(int, old.stdout.readline().split())
    return journal, worker


@pytest.mark.slow
def test_server_refuses_a_journal_in_another_format_unless_it_may_end_the_sampler(
    cluster: RayCluster, tmp_path: Path
) -> None:
    with old_server(cluster, "leave") as old:
        journal, worker = process_ids(old)
    with (
        pytest.raises(RuntimeError, match=r"cannot serve error='journal: .*\b5\b.*\b1\b.*--no-adopt"),
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
