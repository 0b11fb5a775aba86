"""Gateways that die: on a Ray cluster the next gateway takes the sampler over, elsewhere no process is left behind."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import psutil
import pytest
from connected_hosts import hosting
from grpc_health.v1 import health_pb2, health_pb2_grpc
from raw_calls import soon
from ray_clusters import RayCluster, cluster_server, free_port, ray_cluster
from support import equal, raises

import rollserve

OPTIONS = ("--env", "CartPole-v1", "--workers", "2", "--vectorization", "rows", "--rows", "4", "--seed", "7")
OPTIONS += ("--worker-num-cpus", "0.25", "--allow-module", "sample_envs")
CALLS: dict[str, Callable[[rollserve.Sampler], rollserve.SampleStream]] = {
    "at least": lambda sampler: sampler.stream_samples(1600, seed=3),
    "exactly": lambda sampler: sampler.stream_exact_episodes(40, seed=4),
    "fragments": lambda sampler: sampler.stream_fragments(1600, seed=5, row_step_count=10),
}
"""Calls whose results are larger than what gRPC buffers for a client that does not read."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as running:
        yield running


def connect(address: str) -> rollserve.Sampler:
    """Connect with small messages, so that the server keeps most of them while the client waits."""
    return rollserve.connect(address, max_message_bytes=1 << 16)


def is_serving(address: str) -> bool:
    """Whether gRPC's health service at an address says so."""
    with grpc.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        try:
            status = health.Check(health_pb2.HealthCheckRequest(), timeout=5, wait_for_ready=True).status
        except grpc.RpcError:
            return False
    return status == health_pb2.HealthCheckResponse.SERVING


def lasting(status: rollserve.SamplerStatus) -> str:
    """The part of the status that a takeover keeps."""
    counters = dataclasses.replace(status.counters, uptime_seconds=0)
    return repr(dataclasses.replace(status, seed=0, next_episode_index=0, policy_age_seconds=0, counters=counters))


@pytest.mark.slow
def test_takeover_keeps_versions_workers_and_running_streams(cluster: RayCluster, tmp_path: Path) -> None:
    port = free_port()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(cluster_server(cluster, tmp_path, *OPTIONS, port=port))
        sampler = stack.enter_context(connect(server.address))
        updated = sampler.update_env("sample_envs:Big", kwargs={"observation_bytes": 10_000, "length": 30})
        spaces = updated.observation_space, updated.action_space
        for seed in range(2):  # large enough for Ray's object store
            sampler.update_agent(rollserve.MlpAgent.initial(*spaces, hidden_sizes=(64,), seed=seed))
        sampler.obtain_fragments(80, seed=5)
        earlier = sampler.obtain_samples(100, seed=3, policy_version=1)
        expected = {name: call(sampler).join() for name, call in CALLS.items()}
        workers, (journal,) = cluster.actors("WorkerActor"), cluster.actors("JournalActor")
        assert len(workers) == 2
        os.kill(journal, signal.SIGKILL)  # its replacement gets the whole state
        sampler.obtain_samples(100)
        sampler.evaluate(10)
        before = sampler.status()
        streams = {name: stack.enter_context(call(sampler)) for name, call in CALLS.items()}
        parts = {name: [next(stream)] for name, stream in streams.items()}
        server.process.kill()
        server.process.wait()
        server = stack.enter_context(cluster_server(cluster, tmp_path, *OPTIONS, port=port))
        after = sampler.status()
        assert lasting(after) == lasting(before)
        assert after.counters.uptime_seconds > before.counters.uptime_seconds
        assert after.seed != before.seed
        assert equal(sampler.obtain_samples(100, seed=3, policy_version=1), earlier)
        for name, stream in streams.items():
            batch = rollserve.EpisodeBatch.concatenate(*parts[name], *stream).joined()
            assert equal(batch, expected[name]), name
            assert stream.end().num_resumptions == 1
        assert cluster.actors("WorkerActor") == workers
        assert sampler.update_agent(rollserve.RandomAgent()) == 3
        server.process.terminate()
        assert server.process.wait(30) == 0
        assert soon(lambda: not cluster.actors())


@pytest.mark.slow
def test_workers_and_connected_hosts_meet_again_after_a_takeover(cluster: RayCluster, tmp_path: Path) -> None:
    port, options = free_port(), (*OPTIONS, "--allow-host", "host:pole")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(cluster_server(cluster, tmp_path, *options, port=port))
        sampler = stack.enter_context(connect(server.address))
        sampler.update_agent(rollserve.RandomAgent())
        expected = CALLS["at least"](sampler).join()
        stack.enter_context(hosting(server.address, seats=2))
        sampler.update_env("host:pole")
        stream = stack.enter_context(CALLS["at least"](sampler))
        part, workers = next(stream), cluster.actors("WorkerActor")
        server.process.kill()
        server.process.wait()
        server = stack.enter_context(cluster_server(cluster, tmp_path, *options, port=port))
        batch = rollserve.EpisodeBatch.concatenate(part, *stream).joined()
        assert equal(batch, expected)
        assert stream.end().num_resumptions == 1
        assert equal(CALLS["at least"](sampler).join(), expected)
        assert cluster.actors("WorkerActor") == workers
        server.process.terminate()
        assert server.process.wait(30) == 0


@pytest.mark.slow
def test_sampler_lost_with_its_journal_begins_a_new_run_with_other_seeds(cluster: RayCluster, tmp_path: Path) -> None:
    port = free_port()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(cluster_server(cluster, tmp_path, *OPTIONS, port=port))
        sampler = stack.enter_context(connect(server.address))
        sampler.update_agent(rollserve.RandomAgent())
        own = [sampler.obtain_samples(100), sampler.obtain_fragments(80)]
        sampler.update_env("sample_envs:Big", kwargs={"observation_bytes": 10_000, "length": 30})
        stream = stack.enter_context(CALLS["at least"](sampler))
        next(stream)
        (journal,) = cluster.actors("JournalActor")
        os.kill(journal, signal.SIGKILL)
        log = server.log
        assert soon(lambda: "journal whole again" in log.read_text())
        (journal,) = cluster.actors("JournalActor")
        server.process.kill()
        os.kill(journal, signal.SIGKILL)
        server.process.wait()
        server = stack.enter_context(cluster_server(cluster, tmp_path, *OPTIONS, port=port))
        assert "WARNING sampler lost with its journal" in server.log.read_text()
        with raises(rollserve.PreconditionError, reason=rollserve.Reason.SAMPLER_RUN):
            list(stream)
        assert sampler.status().policy_version == 0
        with raises(rollserve.PreconditionError, reason=rollserve.Reason.SAMPLER_RUN):
            sampler.update_agent(rollserve.RandomAgent())  # the environment that this client has set is lost, too
        sampler = stack.enter_context(connect(server.address))
        sampler.update_agent(rollserve.RandomAgent())
        for before, after in zip(own, [sampler.obtain_samples(100), sampler.obtain_fragments(80)], strict=True):
            assert set(after.env_seeds).isdisjoint(before.env_seeds)
        server.process.terminate()
        assert server.process.wait(30) == 0
        assert soon(lambda: not cluster.actors())
        server = stack.enter_context(cluster_server(cluster, tmp_path, *OPTIONS, port=port))  # fresh on purpose
        sampler = stack.enter_context(connect(server.address))
        sampler.update_agent(rollserve.RandomAgent())
        assert equal(sampler.obtain_samples(100), own[0])
        assert "sampler lost" not in server.log.read_text()
        server.process.terminate()
        assert server.process.wait(30) == 0
        assert soon(lambda: not cluster.actors())


@pytest.mark.slow  # the server waits 30 s for the journal to answer
def test_hung_journal_is_replaced(cluster: RayCluster, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(cluster_server(cluster, tmp_path, *OPTIONS))
        with rollserve.connect(server.address, timeout=120) as sampler:
            sampler.update_agent(rollserve.RandomAgent())
            expected = sampler.obtain_samples(1000, seed=3)
            (journal,) = cluster.actors("JournalActor")
            os.kill(journal, signal.SIGSTOP)
            assert equal(sampler.obtain_samples(1000, seed=3), expected)
            assert sampler.update_agent(rollserve.RandomAgent()) == 2
            assert soon(lambda: journal not in cluster.actors("JournalActor"))
            before = sampler.status()
        server.process.kill()
        server.process.wait()
        server = stack.enter_context(cluster_server(cluster, tmp_path, *OPTIONS))
        with rollserve.connect(server.address) as sampler:
            assert lasting(sampler.status()) == lasting(before)
        server.process.terminate()
        assert server.process.wait(30) == 0
        assert soon(lambda: not cluster.actors())


@pytest.mark.slow
def test_journal_lost_during_a_takeover_is_replaced(cluster: RayCluster, tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(3)]
    for folder in folders:
        folder.mkdir()
    with cluster_server(cluster, folders[0], *OPTIONS) as server, rollserve.connect(server.address) as sampler:
        sampler.update_agent(rollserve.RandomAgent())
        sampler.obtain_samples(1000)
        before = sampler.status()
    workers, (journal,) = cluster.actors("WorkerActor"), cluster.actors("JournalActor")
    held_up = min(workers)
    os.kill(held_up, signal.SIGSTOP)  # so that the takeover waits

    def lose_journal() -> None:
        try:
            assert soon(lambda: any("lease acquired" in log.read_text() for log in folders[1].glob("log-*")), 60)
            os.kill(journal, signal.SIGKILL)
            assert soon(lambda: bool(cluster.actors("JournalActor") - {journal}), 60)
        finally:
            os.kill(held_up, signal.SIGCONT)

    with concurrent.futures.ThreadPoolExecutor() as executor:
        losing = executor.submit(lose_journal)
        with cluster_server(cluster, folders[1], *OPTIONS) as server, rollserve.connect(server.address) as sampler:
            losing.result()
            assert lasting(sampler.status()) == lasting(before)
            sampler.obtain_samples(1000)
            before = sampler.status()
    with cluster_server(cluster, folders[2], *OPTIONS) as server, rollserve.connect(server.address) as sampler:
        assert lasting(sampler.status()) == lasting(before)
        assert cluster.actors("WorkerActor") == workers
        server.process.terminate()
        assert server.process.wait(30) == 0
    assert soon(lambda: not cluster.actors())


@pytest.mark.slow
def test_second_gateway_stands_by_until_the_first_stops(cluster: RayCluster, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(cluster_server(cluster, tmp_path, *OPTIONS))
        sampler = stack.enter_context(rollserve.connect(first.address))
        sampler.update_agent(rollserve.RandomAgent())
        expected = sampler.obtain_samples(1000, seed=3)
        health = f"127.0.0.1:{free_port()}"
        standing_by = cluster_server(
            cluster, tmp_path, *OPTIONS, "--health-listen", health, until="standing by", port=free_port()
        )
        second = stack.enter_context(standing_by)
        assert re.search(rf"standing by .*\b{os.uname().nodename}\b.*\b{first.process.pid}\b", second.log.read_text())
        assert soon(lambda: is_serving(health))
        assert equal(sampler.obtain_samples(1000, seed=3), expected)
        # A stopped process counts as dead. When it continues, it must not disturb the next gateway.
        first.process.send_signal(signal.SIGSTOP)
        victim, kept = cluster.actors("WorkerActor")
        os.kill(victim, signal.SIGKILL)
        next_sampler = stack.enter_context(rollserve.connect(second.address))
        assert soon(lambda: " serving " in second.log.read_text() and is_serving(health))
        assert soon(lambda: is_whole_without(victim, next_sampler))
        workers = cluster.actors("WorkerActor")
        assert kept in workers
        assert len(workers) == 2
        first.process.send_signal(signal.SIGCONT)
        with pytest.raises(rollserve.RollserveError):
            sampler.obtain_samples(1000, seed=3, timeout=2)
        assert first.process.wait(30) == 1
        last_event = first.log.read_text().splitlines()[-1]
        assert re.search(rf"cannot serve .*\b{os.uname().nodename}\b.*\b{second.process.pid}\b", last_event)
        assert next_sampler.status().policy_version == 1
        assert equal(next_sampler.obtain_samples(1000, seed=3), expected)
        assert cluster.actors("WorkerActor") == workers
        assert all(worker.healthy for worker in next_sampler.status().workers)
        second.process.terminate()
        assert second.process.wait(30) == 0
        assert soon(lambda: not cluster.actors())


@pytest.mark.slow
def test_takeover_replaces_workers_that_stop_or_die(cluster: RayCluster, tmp_path: Path) -> None:
    options = (*OPTIONS, "--step-seconds", "6", "--reset-seconds", "6")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(cluster_server(cluster, tmp_path, *options))
        sampler = stack.enter_context(rollserve.connect(server.address))
        sampler.update_agent(rollserve.RandomAgent())
        assert sampler.resize(3) == 2
        expected = sampler.obtain_exact_episodes(20, seed=4)
        stream = stack.enter_context(sampler.stream_samples(10**9))
        next(stream)
        assert sampler.resize(2) == 3
        status = sampler.status()
        kept, stopped, leaving = (worker.process_id for worker in status.workers)
        assert cluster.actors("WorkerActor") == {kept, stopped, leaving}
        server.process.kill()
        server.process.wait()
        os.kill(stopped, signal.SIGSTOP)
        server = stack.enter_context(cluster_server(cluster, tmp_path, *options, "--start-seconds", "8"))
        sampler = stack.enter_context(rollserve.connect(server.address))
        assert sampler.status().num_workers == 2
        for harm in (None, signal.SIGSTOP, signal.SIGKILL):
            harmed = stopped
            if harm is not None:
                harmed, kept = kept, 0
                os.kill(harmed, harm)
            assert soon(lambda harmed=harmed: is_whole_without(harmed, sampler), 120)
            pids = {worker.process_id for worker in sampler.status().workers}
            assert soon(lambda pids=pids: cluster.actors("WorkerActor") == pids)
            assert not kept or kept in pids
            kept = sampler.status().workers[0].process_id
        assert not psutil.pid_exists(stopped)
        assert sampler.resize(3) == 2
        assert equal(sampler.obtain_exact_episodes(20, seed=4), expected)
        assert len(cluster.actors("WorkerActor")) == 3
        server.process.terminate()
        assert server.process.wait(30) == 0
        assert soon(lambda: not cluster.actors())


def is_whole_without(process_id: int, sampler: rollserve.Sampler) -> bool:
    """Whether all workers are healthy, and none of them is this process."""
    return all(worker.healthy and worker.process_id != process_id for worker in sampler.status().workers)


@pytest.mark.slow
def test_sampler_is_kept_for_the_next_server_or_forgotten(cluster: RayCluster, tmp_path: Path) -> None:
    """Servers that fail to start leave the kept sampler as it is."""
    options = (*OPTIONS, "--keep-workers")
    with cluster_server(cluster, tmp_path, *options) as server:
        workers = cluster.actors("WorkerActor")
        server.process.terminate()
        assert server.process.wait(30) == 0
    assert cluster.actors("WorkerActor") == workers
    with (
        pytest.raises(RuntimeError, match=r"cannot serve error='seed: .*\b7\b.*\b8\b"),
        cluster_server(cluster, tmp_path, *options, "--seed", "8"),
    ):
        pass
    assert cluster.actors("WorkerActor") == workers
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(RuntimeError, match="cannot serve error='listen: "),
        cluster_server(cluster, tmp_path, *OPTIONS, port=listener.getsockname()[1]),
    ):
        pass
    assert cluster.actors("WorkerActor") == workers
    with cluster_server(cluster, tmp_path, *options, "--seed", "8", "--no-adopt", "--orphan-seconds", "1") as server:
        with rollserve.connect(server.address) as sampler:
            assert sampler.status().seed == 8
        assert cluster.actors("WorkerActor").isdisjoint(workers)
        server.process.kill()
    assert cluster.actors("WorkerActor")
    assert soon(lambda: not cluster.actors())


AGENTS_OF_RAY = {"ray::DashboardAgent", "ray::RuntimeEnvAgent"}
"""Processes of Ray that take a minute to notice that their raylet is gone."""


@pytest.mark.parametrize(
    ("victim", "leaves_agents"),
    [
        ("server", True),
        pytest.param("server", False, marks=pytest.mark.slow),
        pytest.param("parent", False, marks=pytest.mark.slow),
    ],
    ids=["server", "server, with the agents of Ray", "parent of the server"],
)
def test_killed_server_leaves_no_process_behind(victim: str, leaves_agents: bool, tmp_path: Path) -> None:
    code = f"""
import time
from pathlib import Path
from rollserve_server.local import local_server
with local_server("--env", "CartPole-v1", "--workers", "2", log=Path({str(tmp_path / "log")!r})) as server:
    print(server.process.pid, flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        server = psutil.Process(int(parent.stdout.readline()))
        processes = {process: process.name() for process in [server, *server.children(recursive=True)]}
        assert any("raylet" in name for name in processes.values())
        (server if victim == "server" else psutil.Process(parent.pid)).kill()
        watched = [each for each, name in processes.items() if not (leaves_agents and is_agent(name))]
        try:
            assert soon(lambda: not any(is_alive(process) for process in watched), 120)
        finally:
            for process in filter(is_alive, processes):
                process.kill()
            parent.kill()


def is_agent(name: str) -> bool:
    return any(agent.startswith(name) for agent in AGENTS_OF_RAY)  # Linux cuts names at 15 characters


def is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
