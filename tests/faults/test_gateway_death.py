"""A gateway that dies: on a Ray cluster the next one goes on where it was, and without one nothing is left behind."""

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

import psutil
import pytest
from raw_calls import soon
from ray_clusters import RayCluster, cluster_server, free_port, ray_cluster
from support import equal

import rollserve

OPTIONS = ("--env", "CartPole-v1", "--workers", "2", "--vectorization", "rows", "--rows", "4", "--seed", "7")
OPTIONS += ("--worker-num-cpus", "0.25", "--allow-module", "sample_envs")
CALLS: dict[str, Callable[[rollserve.Sampler], rollserve.SampleStream]] = {
    "at least": lambda sampler: sampler.stream_samples(1600, seed=3),
    "exactly": lambda sampler: sampler.stream_exact_episodes(40, seed=4),
    "fragments": lambda sampler: sampler.stream_fragments(1600, seed=5, row_step_count=10),
}
"""Each so large that it does not go into what gRPC holds for a client that does not read."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as running:
        yield running


def connect(address: str) -> rollserve.Sampler:
    """With messages so small that a client who waits leaves most of them where they are."""
    return rollserve.connect(address, max_message_bytes=1 << 16)


def what_lasts(status: rollserve.SamplerStatus) -> str:
    """The status without what differs from server to server."""
    counters = dataclasses.replace(status.counters, uptime_seconds=0)
    return repr(dataclasses.replace(status, seed=0, next_episode_index=0, counters=counters))


def test_the_next_gateway_finds_all_as_it_was(cluster: RayCluster, tmp_path: Path) -> None:
    port = free_port()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(cluster_server(cluster, tmp_path, *OPTIONS, port=port))
        sampler = stack.enter_context(connect(server.address))
        updated = sampler.update_env("sample_envs:Big", kwargs={"observation_bytes": 10_000, "length": 30})
        spaces = updated.observation_space, updated.action_space
        for seed in range(2):  # so large that they go through Ray's object store
            sampler.update_agent(rollserve.MlpAgent.initial(*spaces, hidden_sizes=(64,), seed=seed))
        sampler.obtain_fragments(80, seed=5)
        earlier = sampler.obtain_samples(100, seed=3, policy_version=1)
        expected = {name: call(sampler).join() for name, call in CALLS.items()}
        workers, (journal,) = cluster.actors("WorkerActor"), cluster.actors("JournalActor")
        assert len(workers) == 2
        os.kill(journal, signal.SIGKILL)  # another takes its place, and knows as much
        sampler.obtain_samples(100)
        sampler.evaluate(10)
        before = sampler.status()
        streams = {name: stack.enter_context(call(sampler)) for name, call in CALLS.items()}
        parts = {name: [next(stream)] for name, stream in streams.items()}
        server.process.kill()
        server.process.wait()
        server = stack.enter_context(cluster_server(cluster, tmp_path, *OPTIONS, port=port))
        after = sampler.status()
        assert what_lasts(after) == what_lasts(before)
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


def test_a_journal_that_hangs_is_replaced(cluster: RayCluster, tmp_path: Path) -> None:
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
            assert what_lasts(sampler.status()) == what_lasts(before)
        server.process.terminate()
        assert server.process.wait(30) == 0
        assert soon(lambda: not cluster.actors())


def test_a_journal_that_is_lost_while_the_next_gateway_takes_the_sampler(cluster: RayCluster, tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(3)]
    for folder in folders:
        folder.mkdir()
    with cluster_server(cluster, folders[0], *OPTIONS) as server, rollserve.connect(server.address) as sampler:
        sampler.update_agent(rollserve.RandomAgent())
        sampler.obtain_samples(1000)
        before = sampler.status()
    workers, (journal,) = cluster.actors("WorkerActor"), cluster.actors("JournalActor")
    held_up = min(workers)
    os.kill(held_up, signal.SIGSTOP)  # so it takes its time

    def lose_journal() -> None:
        try:
            assert soon(lambda: any("lease acquired" in log.read_text() for log in folders[1].glob("log-*")), 60)
            os.kill(journal, signal.SIGKILL)
            assert soon(lambda: cluster.actors("JournalActor") - {journal}, 60)
        finally:
            os.kill(held_up, signal.SIGCONT)

    with concurrent.futures.ThreadPoolExecutor() as executor:
        losing = executor.submit(lose_journal)
        with cluster_server(cluster, folders[1], *OPTIONS) as server, rollserve.connect(server.address) as sampler:
            losing.result()
            assert what_lasts(sampler.status()) == what_lasts(before)
            sampler.obtain_samples(1000)
            before = sampler.status()
    with cluster_server(cluster, folders[2], *OPTIONS) as server, rollserve.connect(server.address) as sampler:
        assert what_lasts(sampler.status()) == what_lasts(before)
        assert cluster.actors("WorkerActor") == workers
        server.process.terminate()
        assert server.process.wait(30) == 0
    assert soon(lambda: not cluster.actors())


def test_one_gateway_at_a_time(cluster: RayCluster, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(cluster_server(cluster, tmp_path, *OPTIONS))
        sampler = stack.enter_context(rollserve.connect(first.address))
        sampler.update_agent(rollserve.RandomAgent())
        expected = sampler.obtain_samples(1000, seed=3)
        with (
            pytest.raises(RuntimeError, match=rf"cannot serve .*\b{os.uname().nodename}\b.*\b{first.process.pid}\b"),
            cluster_server(cluster, tmp_path, *OPTIONS),
        ):
            pass
        assert equal(sampler.obtain_samples(1000, seed=3), expected)
        # One that is stopped is taken to be dead; and when it goes on, it does nothing that the next would notice.
        first.process.send_signal(signal.SIGSTOP)
        victim, kept = cluster.actors("WorkerActor")
        os.kill(victim, signal.SIGKILL)
        second = stack.enter_context(cluster_server(cluster, tmp_path, *OPTIONS))
        next_sampler = stack.enter_context(rollserve.connect(second.address))
        assert soon(lambda: is_whole_without(victim, next_sampler))
        workers = cluster.actors("WorkerActor")
        assert kept in workers
        assert len(workers) == 2
        first.process.send_signal(signal.SIGCONT)
        with pytest.raises(rollserve.RollserveError):
            sampler.obtain_samples(1000, seed=3, timeout=10)
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


def test_the_next_gateway_looks_after_the_workers_that_it_finds(cluster: RayCluster, tmp_path: Path) -> None:
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
        server = stack.enter_context(cluster_server(cluster, tmp_path, *options, "--start-seconds", "20"))
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
    """Whether all workers are there, and a process is none of them."""
    return all(worker.healthy and worker.process_id != process_id for worker in sampler.status().workers)


def test_a_sampler_that_is_kept_and_one_that_is_forgotten(cluster: RayCluster, tmp_path: Path) -> None:
    options = (*OPTIONS, "--keep-workers", "--orphan-seconds", "3")
    with cluster_server(cluster, tmp_path, *options, "--orphan-seconds", "600") as server:
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
    with cluster_server(cluster, tmp_path, *options, "--seed", "8", "--no-adopt") as server:
        with rollserve.connect(server.address) as sampler:
            assert sampler.status().seed == 8
        assert cluster.actors("WorkerActor").isdisjoint(workers)
        server.process.kill()
    assert cluster.actors("WorkerActor")
    assert soon(lambda: not cluster.actors())


@pytest.mark.parametrize("victim", ["the server", "its parent"])
def test_without_a_cluster_nothing_is_left_behind(victim: str, tmp_path: Path) -> None:
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
        family = [server, *server.children(recursive=True)]
        assert any("raylet" in each.name() for each in family)
        (server if victim == "the server" else psutil.Process(parent.pid)).kill()
        _, alive = psutil.wait_procs(family, timeout=120)  # two of Ray's take a minute, trying to tell of it
        left = [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]
        for each in left:
            each.kill()
        parent.kill()
    assert not left
