"""Peers that vanish without closing their connections, and connections that reach their age limit."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from raw_calls import FOREVER, serving, soon
from silencing_proxy import silencing_proxy
from support import equal, raises

import rollserve
from rollserve_server.local import LocalServer

SLOW = (
    "--env",
    "sample_envs:Slow",
    "--env-kwargs",
    '{"step_seconds": 0.05}',
    "--backend",
    "in-process",
    "--workers",
    "1",
    "--rows",
    "1",
    "--seed",
    "3",
    "--grace-seconds",
    "0",
)
"""A server whose calls take 50 ms for each step."""
KEEPALIVE = ("--keepalive-seconds", "1", "--keepalive-timeout-seconds", "1")


def has_cancelled(sampler: rollserve.Sampler) -> bool:
    return sampler.status().counters.num_cancelled_calls >= 1


@pytest.fixture
def short_keepalive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that send their first keepalive ping after 2 s."""
    monkeypatch.setattr("rollserve._calls.connection._KEEPALIVE_MILLISECONDS", 2000)
    monkeypatch.setattr("rollserve._calls.connection._KEEPALIVE_TIMEOUT_MILLISECONDS", 1000)


def test_vanished_client_frees_its_place(tmp_path: Path) -> None:
    with (
        serving(tmp_path, *SLOW, *KEEPALIVE, "--max-calls", "1", "--max-stalled-calls", "0") as (server, sampler),
        silencing_proxy(server.address) as proxy,
        rollserve.connect(proxy.address) as client,
        client.stream_samples(FOREVER, blackhole=True),
    ):
        waiting = client.stream_samples(FOREVER, blackhole=True)
        sampler.evaluate(1)  # both calls have arrived meanwhile
        proxy.silence()
        assert soon(lambda: has_cancelled(sampler))
        assert sampler.obtain_samples(1, timeout=30).num_steps >= 1
        waiting.close()


@pytest.mark.slow
def test_quiet_client_stays_connected(tmp_path: Path) -> None:
    """The client's gRPC library answers keepalive pings."""
    with serving(tmp_path, *SLOW, *KEEPALIVE) as (_, sampler):
        stream = sampler.stream_samples(80)
        time.sleep(3)  # longer than both keepalive times together
        assert stream.join().account.num_resumptions == 0


def test_quiet_stream_of_a_client_with_a_short_keepalive_stays_open(server: LocalServer) -> None:
    """A client that pings too often loses its connection with the fourth ping of a quiet stream."""
    options = [("grpc.keepalive_time_ms", 800), ("grpc.http2.max_pings_without_data", 0)]
    with grpc.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1), *options]) as channel:
        ended = threading.Event()
        watching = HealthStub(channel).Watch(HealthCheckRequest())
        assert next(watching).status == HealthCheckResponse.SERVING
        watching.add_done_callback(lambda _: ended.set())
        assert not ended.wait(4)
        watching.cancel()


def test_vanished_server_ends_calls_by_timeout(tmp_path: Path) -> None:
    with (
        serving(tmp_path, *SLOW) as (server, _),
        silencing_proxy(server.address) as proxy,
        rollserve.connect(proxy.address) as client,
    ):
        stream = client.stream_samples(FOREVER, blackhole=True, timeout=2)
        time.sleep(0.5)
        proxy.silence()
        began = time.monotonic()
        with raises(rollserve.DeadlineError, reason=rollserve.Reason.NO_PROGRESS, match=r"\b2 s\b"):
            list(stream)
        with raises(rollserve.DeadlineError, match=r"\b1 s\b"):
            client.status(timeout=1)
        assert time.monotonic() - began < 60


@pytest.mark.usefixtures("short_keepalive")
def test_stream_resumes_over_another_connection(tmp_path: Path) -> None:
    with (
        serving(tmp_path, *SLOW) as (server, sampler),
        silencing_proxy(server.address) as proxy,
        rollserve.connect(proxy.address) as client,
    ):
        expected = sampler.obtain_samples(20, seed=1)
        with client.stream_samples(20, seed=1, timeout=30) as stream:
            time.sleep(0.3)
            proxy.silence()
            batch = stream.join()
        assert equal(batch, expected)
        assert batch.account.num_resumptions == 1
        assert client.status(timeout=30).policy_version == 1


@pytest.mark.parametrize("grace", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_connection_age_interrupts_streams_only_with_a_limited_grace(tmp_path: Path, grace: int) -> None:
    """Streams end on their connection if the grace is 0, which means unlimited; otherwise they resume over the next."""
    options = ("--max-connection-age-seconds", "1", "--max-connection-age-grace-seconds", str(grace))
    with serving(tmp_path, *SLOW, *options) as (_, sampler):
        began = time.monotonic()
        batch = sampler.obtain_samples(60, seed=1)
        assert time.monotonic() - began > 2.5  # longer than age and grace together
        assert (batch.account.num_resumptions > 0) == (grace > 0)
        first = rollserve.EpisodeBatch.concatenate(*batch.split()[:2])
        assert equal(first, sampler.obtain_samples(20, seed=1))


@pytest.mark.slow
def test_idle_connection_is_closed_and_replaced(tmp_path: Path) -> None:
    with serving(tmp_path, *SLOW, "--max-connection-idle-seconds", "1") as (_, sampler):
        for _ in range(2):
            assert sampler.status().policy_version == 1
            time.sleep(1.5)


@contextlib.contextmanager
def namespace() -> Iterator[str]:
    """A network namespace that a veth pair connects to this one; skips the test where namespaces cannot be made."""
    name, ours, theirs = (f"rs{kind}{os.getpid()}" for kind in "noi")

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    with contextlib.ExitStack() as stack:
        try:
            ip("netns", "add", name)
            stack.callback(subprocess.run, ["ip", "netns", "delete", name], check=False, capture_output=True)
            ip("link", "add", ours, "type", "veth", "peer", "name", theirs)
            stack.callback(subprocess.run, ["ip", "link", "delete", ours], check=False, capture_output=True)
            ip("link", "set", theirs, "netns", name)
            ip("address", "add", "10.251.7.1/30", "dev", ours)
            ip("link", "set", ours, "up")
            for arguments in (
                ("address", "add", "10.251.7.2/30", "dev", theirs),
                ("link", "set", theirs, "up"),
                ("link", "set", "lo", "up"),
            ):
                ip("-n", name, *arguments)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"network namespaces need root: {getattr(error, 'stderr', None) or error}")
        yield name


def test_client_behind_a_dead_link_is_cancelled(tmp_path: Path) -> None:
    """Packets are lost, and neither side gets an error."""
    with (
        serving(tmp_path, *SLOW, *KEEPALIVE, "--listen", "0.0.0.0:0", "--insecure") as (server, sampler),
        namespace() as name,
    ):
        port = server.address.rpartition(":")[2]
        code = f"import rollserve; stream = rollserve.connect('10.251.7.1:{port}').stream_samples({FOREVER})"
        command = ["ip", "netns", "exec", name, sys.executable, "-c", f"{code}; print(next(stream)); list(stream)"]
        client = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert client.stdout is not None
        try:
            assert client.stdout.readline()
            subprocess.run(["ip", "-n", name, "link", "set", f"rsi{os.getpid()}", "down"], check=True)
            assert soon(lambda: has_cancelled(sampler))
            assert client.poll() is None
        finally:
            client.kill()
            client.communicate()
