"""Several samplers on a Ray cluster: each has processes of its own, and they outlive their server together."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_clusters import ClusterServer, RayCluster, cluster_server, free_port, ray_cluster
from support import equal, raises

import rollserve

OPTIONS = ("--env", "CartPole-v1", "--workers", "1", "--vectorization", "rows", "--rows", "4", "--seed", "7")
OPTIONS += ("--worker-num-cpus", "0.25", "--max-samplers", "3", "--max-workers", "8")
SPEC = rollserve.EnvSpec("CartPole-v1", {"max_episode_steps": 60})


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as running:
        yield running


def connect(server: ClusterServer, sampler: str = "") -> rollserve.Sampler:
    return rollserve.connect(server.address, sampler=sampler, timeout=120)


def wait_for_actors(cluster: RayCluster, num_workers: int, num_journals: int) -> None:
    """Wait until the cluster has these numbers of processes."""
    deadline = time.monotonic() + 30
    while (len(cluster.actors("WorkerActor")), len(cluster.actors("JournalActor"))) != (num_workers, num_journals):
        assert time.monotonic() < deadline, cluster.actors()
        time.sleep(0.2)


@pytest.mark.slow
def test_next_server_takes_over_all_samplers(cluster: RayCluster, tmp_path: Path) -> None:
    port = free_port()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(cluster_server(cluster, tmp_path, *OPTIONS, port=port))
        default, created = (stack.enter_context(connect(server, name)) for name in ("", "run-7"))
        quota = rollserve.Quota(num_workers=3, num_calls=2)
        created.create_sampler(SPEC, num_workers=2, seed=5, lease_seconds=600, quota=quota)
        for seed, sampler in enumerate((default, created)):
            status = sampler.status()
            agent = rollserve.MlpAgent.initial(status.observation_space, status.action_space, seed=seed)
            sampler.update_agent(agent)
        expected = [sampler.obtain_samples(300, seed=3) for sampler in (default, created)]
        assert not equal(*expected)
        workers = cluster.actors("WorkerActor")
        assert len(workers) == 3
        with created.stream_samples(20_000, seed=4) as stream:
            parts = [next(stream)]
            server.process.kill()
            server.process.wait()
            server = stack.enter_context(cluster_server(cluster, tmp_path, *OPTIONS, port=port))
            parts += stream
            assert sum(part.num_steps for part in parts) >= 20_000
        assert cluster.actors("WorkerActor") == workers
        again = [sampler.obtain_samples(300, seed=3) for sampler in (default, created)]
        assert all(map(equal, again, expected))
        summary = default.list_samplers()[1]
        assert (summary.sampler, summary.owner, summary.num_workers) == ("run-7", "anonymous", 2)
        assert (summary.lease_seconds, summary.quota.num_workers, summary.quota.num_calls) == (600, 3, 2)
        created.create_sampler(SPEC, num_workers=2, seed=5, lease_seconds=600, quota=quota, exist_ok=True)
        assert created.status().policy_version == 1
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(30)
        wait_for_actors(cluster, 0, 0)
        server = stack.enter_context(cluster_server(cluster, tmp_path, *OPTIONS, port=port))
        assert [each.sampler for each in default.list_samplers()] == ["default"]
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(30)


@pytest.mark.slow
def test_takeover_keeps_to_the_bound_on_all_workers(cluster: RayCluster, tmp_path: Path) -> None:
    """A created sampler that would have too many workers beside the others is left out, and ends."""
    orphans = ("--orphan-seconds", "5")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(cluster_server(cluster, tmp_path, *OPTIONS, *orphans))
        stack.enter_context(connect(server, "a")).create_sampler(SPEC, num_workers=2)
        server.process.kill()
        server.process.wait()
        server = stack.enter_context(cluster_server(cluster, tmp_path, *OPTIONS, *orphans, "--max-workers", "2"))
        default = stack.enter_context(connect(server))
        assert [each.sampler for each in default.list_samplers()] == ["default"]
        wait_for_actors(cluster, 1, 1)
        assert default.resize(2) == 1
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(30)


@pytest.mark.slow
def test_server_without_adoption_ends_all_samplers(cluster: RayCluster, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(cluster_server(cluster, tmp_path, *OPTIONS))
        stack.enter_context(connect(server, "a")).create_sampler(SPEC, num_workers=2)
        workers = cluster.actors("WorkerActor")
        server.process.kill()
        server.process.wait()
        server = stack.enter_context(cluster_server(cluster, tmp_path, *OPTIONS, "--no-adopt"))
        wait_for_actors(cluster, 1, 1)
        assert not workers & cluster.actors("WorkerActor")
        created = stack.enter_context(connect(server, "a"))
        created.create_sampler(SPEC)
        assert created.status().num_workers == 1
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(30)


@pytest.mark.slow
def test_samplers_end_and_fail_apart(cluster: RayCluster, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(cluster_server(cluster, tmp_path, *OPTIONS))
        default, other = (stack.enter_context(connect(server, name)) for name in ("", "other"))
        default.update_agent(rollserve.RandomAgent())
        expected = default.obtain_samples(20_000, seed=1)
        of_default = cluster.actors("WorkerActor")
        other.create_sampler(SPEC, num_workers=2, lease_seconds=5)
        wait_for_actors(cluster, 3, 2)
        other.update_agent(rollserve.RandomAgent())
        before = other.obtain_samples(300, seed=1)
        with default.stream_samples(20_000, seed=1) as stream:
            next(stream)
            for process in cluster.actors("WorkerActor") - of_default:
                os.kill(process, signal.SIGKILL)
            assert equal(default.obtain_samples(20_000, seed=1), expected)
            for _ in stream:
                pass
        assert default.status().counters.num_worker_restarts == 0
        assert equal(other.obtain_samples(300, seed=1), before)  # by replaced workers
        assert other.status().counters.num_worker_restarts >= 2
        wait_for_actors(cluster, 1, 1)  # the lease has expired
        with raises(rollserve.InvalidArgumentError, field="sampler", reason="LEASE_EXPIRED"):
            other.status()
        assert cluster.actors("WorkerActor") == of_default
        other.create_sampler(SPEC, num_workers=1)
        other.delete_sampler()
        wait_for_actors(cluster, 1, 1)
        assert equal(default.obtain_samples(20_000, seed=1), expected)
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(30)
