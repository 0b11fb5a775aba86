"""Samplers on two machines: where workers run, and calls while the network between the machines fails."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from machines import Machine, second_machine
from ray_clusters import ClusterServer, RayCluster, cluster_server, free_port
from support import equal

import rollserve
from rollserve_server.local import local_server

pytestmark = pytest.mark.slow

OPTIONS = ("--env", "CartPole-v1", "--vectorization", "rows", "--rows", "4", "--seed", "7", "--straggler-factor", "0")
NUM_WORKERS = 4
CALLS: dict[str, Callable[[rollserve.Sampler, int], rollserve.SampleStream]] = {
    "at least": lambda sampler, size: sampler.stream_samples(1600 * size, seed=3),
    "exactly": lambda sampler, size: sampler.stream_exact_episodes(20 * size, seed=4),
    "fragments": lambda sampler, size: sampler.stream_fragments(1600 * size, seed=5, row_step_count=0),
}
LONG = 100
"""Size of calls that take seconds."""


@pytest.fixture(scope="module")
def cluster_and_machine() -> Iterator[tuple[RayCluster, Machine]]:
    with second_machine() as both:
        yield both


@pytest.fixture
def cluster(cluster_and_machine: tuple[RayCluster, Machine]) -> RayCluster:
    return cluster_and_machine[0]


@pytest.fixture
def machine(cluster_and_machine: tuple[RayCluster, Machine]) -> Machine:
    return cluster_and_machine[1]


@pytest.fixture(scope="module")
def alone() -> Iterator[rollserve.Sampler]:
    """A sampler with as many workers on one machine, whose results are the expected ones."""
    with (
        local_server(*OPTIONS, "--backend", "in-process", "--workers", str(NUM_WORKERS)) as server,
        prepared(server.address) as sampler,
    ):
        yield sampler


@contextlib.contextmanager
def served(cluster: RayCluster, folder: Path, *settings: str, port: int = 0) -> Iterator[ClusterServer]:
    """Yield a server on the cluster; end it after the block, and its sampler with it."""
    with cluster_server(cluster, folder, *settings, port=port) as server:
        try:
            yield server
        finally:
            server.process.terminate()
            server.process.wait(60)


def prepared(address: str, name: str = "") -> rollserve.Sampler:
    """Connect, and give the sampler an agent."""
    sampler = rollserve.connect(address, sampler=name, timeout=150)
    status = sampler.status()
    agent = rollserve.MlpAgent.initial(status.observation_space, status.action_space, seed=0)
    sampler.update_agent(agent)
    return sampler


def hosts(sampler: rollserve.Sampler) -> list[str]:
    return [worker.host for worker in sampler.status().workers]


def wait_until_healthy(sampler: rollserve.Sampler) -> None:
    deadline = time.monotonic() + 60
    while not all(worker.healthy for worker in sampler.status().workers):
        assert time.monotonic() < deadline, sampler.status().workers
        time.sleep(0.1)


def options(placement: str, *others: str, workers: int = NUM_WORKERS) -> tuple[str, ...]:
    return (*OPTIONS, "--workers", str(workers), "--worker-placement", placement, *others)


def test_spread_workers_sample_as_on_one_machine_and_return_to_their_machines(
    cluster: RayCluster, machine: Machine, alone: rollserve.Sampler, tmp_path: Path
) -> None:
    with served(cluster, tmp_path, *options("spread")) as server, prepared(server.address) as sampler:
        at_first = hosts(sampler)
        assert Counter(at_first)[machine.name] == NUM_WORKERS // 2
        assert machine.num_workers() == NUM_WORKERS // 2
        for name, call in CALLS.items():
            assert equal(call(sampler, 1).join(), call(alone, 1).join()), name
        result, expected = sampler.evaluate(20, seed=6), alone.evaluate(20, seed=6)
        assert result.returns.tolist() == expected.returns.tolist()
        lost = at_first.index(machine.name)
        os.kill(sampler.status().workers[lost].process_id, signal.SIGKILL)
        sampler.obtain_samples(1000)
        wait_until_healthy(sampler)
        assert sampler.status().workers[lost].num_restarts == 1
        assert hosts(sampler) == at_first
        sampler.resize(NUM_WORKERS + 2)
        assert hosts(sampler)[:NUM_WORKERS] == at_first
        assert Counter(hosts(sampler))[machine.name] == NUM_WORKERS // 2 + 1


def test_packed_workers_fill_the_servers_machine_first(cluster: RayCluster, machine: Machine, tmp_path: Path) -> None:
    needs = options("pack", workers=2)
    with served(cluster, tmp_path, *needs) as server, rollserve.connect(server.address) as sampler:
        assert machine.name not in hosts(sampler)
        sampler.resize(6)  # each machine has four cores
        assert [host == machine.name for host in hosts(sampler)] == [False] * 4 + [True] * 2


def test_resources_decide_where_workers_can_run(cluster: RayCluster, machine: Machine, tmp_path: Path) -> None:
    for placement in ("any", "pack", "spread"):
        needs = options(placement, "--worker-resources", '{"far": 1}', workers=2)
        with served(cluster, tmp_path, *needs) as server, rollserve.connect(server.address) as sampler:
            assert hosts(sampler) == [machine.name] * 2


@pytest.mark.parametrize("name", CALLS)
def test_call_delivers_the_same_data_when_the_link_is_cut_for_seconds(
    cluster: RayCluster, machine: Machine, alone: rollserve.Sampler, tmp_path: Path, name: str
) -> None:
    with served(cluster, tmp_path, *options("spread")) as server, prepared(server.address) as sampler:
        with CALLS[name](sampler, LONG) as stream:
            first = next(stream)
            machine.link.cut()
            time.sleep(3)
            machine.link.mend()
            batch = rollserve.EpisodeBatch.concatenate(first, *stream).joined()
        assert equal(batch, CALLS[name](alone, LONG).join())
        assert [worker.num_restarts for worker in sampler.status().workers] == [0] * NUM_WORKERS


def test_stream_continues_at_the_gateway_that_takes_the_sampler_over(
    cluster: RayCluster, machine: Machine, alone: rollserve.Sampler, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(secrets.token_hex(16))
    needs = options("spread", "--sampler-name", "moving", "--sampler-secret-file", str(secret))
    ports = free_port(), free_port()
    target = ",".join(f"127.0.0.1:{port}" for port in ports)
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(cluster_server(cluster, tmp_path, *needs, port=ports[0]))
        with prepared(target, "moving") as sampler, CALLS["exactly"](sampler, LONG) as stream:
            batches = [next(stream)]
            first.process.kill()
            first.process.wait()
            second = stack.enter_context(served(cluster, tmp_path, *needs, port=ports[1]))
            batch = rollserve.EpisodeBatch.concatenate(*batches, *stream).joined()
            assert stream.end().num_resumptions >= 1
            assert sampler.status().sampler == "moving"
        assert equal(batch, CALLS["exactly"](alone, LONG).join())
        assert second.process.poll() is None


def test_workers_leave_a_machine_that_is_shut_down(
    cluster: RayCluster, machine: Machine, alone: rollserve.Sampler, tmp_path: Path
) -> None:
    needs = options("spread", workers=2)
    with served(cluster, tmp_path, *needs) as server, prepared(server.address) as sampler:
        assert machine.name in hosts(sampler)
        stopping = threading.Thread(target=machine.stop)
        stopping.start()
        try:
            while stopping.is_alive():
                batch = sampler.obtain_samples(1000, seed=4)
                assert equal(batch, alone.obtain_samples(1000, seed=4))
                sampler.obtain_fragments(800, seed=4, row_step_count=0)
            assert machine.name not in hosts(sampler)
            assert [worker.num_restarts for worker in sampler.status().workers] == [0, 0]
            assert "worker lost" not in server.log.read_text()
        finally:
            stopping.join()
            machine.start()


@pytest.mark.parametrize("failure", ["loses power", "is cut off for long"])
def test_call_delivers_the_same_data_when_a_machine_is_lost(
    cluster: RayCluster, machine: Machine, alone: rollserve.Sampler, tmp_path: Path, failure: str
) -> None:
    needs = options("spread", "--worker-num-cpus", "0.5")
    with served(cluster, tmp_path, *needs) as server, prepared(server.address) as sampler:
        streams = {name: call(sampler, LONG) for name, call in CALLS.items()}
        firsts = {name: next(stream) for name, stream in streams.items()}
        if failure == "loses power":
            machine.kill()
        else:
            machine.link.cut()
        for name, stream in streams.items():
            batch = rollserve.EpisodeBatch.concatenate(firsts[name], *stream).joined()
            assert equal(batch, CALLS[name](alone, LONG).join()), name
        wait_until_healthy(sampler)
        assert machine.name not in hosts(sampler)
        machine.link.mend()
        machine.kill()
        machine.start()
        sampler.resize(NUM_WORKERS + 2)
        assert machine.name in hosts(sampler)
