"""Peers that vanish without a word, and connections that come of age."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from raw_calls import FOREVER, serving
from silencing_proxy import silencing_proxy
from support import equal, raises

import rollserve

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
)
"""Where a call takes as long as it is to."""
KEEPALIVE = ("--keepalive-seconds", "1", "--keepalive-timeout-seconds", "1")


def wait_for_cancelled(sampler: rollserve.Sampler, num_calls: int, seconds: float) -> None:
    """Waits until the server has given up so many calls."""
    deadline = time.monotonic() + seconds
    while sampler.status().counters.num_cancelled_calls < num_calls:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that soon ask for a sign of life."""
    monkeypatch.setattr("rollserve._calls.channel._KEEPALIVE_MILLISECONDS", 5000)
    monkeypatch.setattr("rollserve._calls.channel._KEEPALIVE_TIMEOUT_MILLISECONDS", 1000)


def test_a_client_that_vanishes_frees_what_it_had(tmp_path: Path) -> None:
    with (
        serving(tmp_path, *SLOW, *KEEPALIVE, "--max-calls", "1", "--max-stalled-calls", "0") as (server, sampler),
        silencing_proxy(server.address) as proxy,
        rollserve.connect(proxy.address) as client,
        client.stream_samples(FOREVER, blackhole=True),
    ):
        waiting = client.stream_samples(FOREVER, blackhole=True)
        sampler.evaluate(1)  # they have come meanwhile
        proxy.silence()
        wait_for_cancelled(sampler, 1, seconds=15)
        assert sampler.obtain_samples(1, timeout=15).num_steps >= 1
        waiting.close()


def test_a_client_that_is_only_quiet_stays(tmp_path: Path) -> None:
    """It answers when it is asked."""
    with serving(tmp_path, *SLOW, *KEEPALIVE) as (_, sampler):
        stream = sampler.stream_samples(60)
        time.sleep(5)
        assert stream.join().account.num_resumptions == 0


def test_a_server_that_vanishes_is_noticed(tmp_path: Path) -> None:
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
        assert time.monotonic() - began < 15


@pytest.mark.usefixtures("impatient")
def test_a_stream_goes_on_over_another_connection(tmp_path: Path) -> None:
    with (
        serving(tmp_path, *SLOW) as (server, sampler),
        silencing_proxy(server.address) as proxy,
        rollserve.connect(proxy.address) as client,
    ):
        expected = sampler.obtain_samples(40, seed=1)
        with client.stream_samples(40, seed=1, timeout=30) as stream:
            time.sleep(0.5)
            proxy.silence()
            batch = stream.join()
        assert equal(batch, expected)
        assert batch.account is not None
        assert batch.account.num_resumptions == 1
        assert client.status(timeout=5).policy_version == 1


@pytest.mark.parametrize("grace", [0, 1])
def test_connections_that_come_of_age(tmp_path: Path, grace: int) -> None:
    """Without a limit to their grace what runs over them is not disturbed; with one it goes on over the next."""
    options = ("--max-connection-age-seconds", "1", "--max-connection-age-grace-seconds", str(grace))
    with serving(tmp_path, *SLOW, *options) as (_, sampler):
        began = time.monotonic()
        batch = sampler.obtain_samples(80, seed=1)
        assert time.monotonic() - began > 2.5  # else it was no test
        assert batch.account is not None
        assert (batch.account.num_resumptions > 0) == (grace > 0)
        assert equal(batch, sampler.obtain_samples(80, seed=1))


def test_an_idle_connection_is_closed_and_made_anew(tmp_path: Path) -> None:
    with serving(tmp_path, *SLOW, "--max-connection-idle-seconds", "1") as (_, sampler):
        for _ in range(3):
            assert sampler.status().policy_version == 1
            time.sleep(1.5)


@contextlib.contextmanager
def namespace() -> Iterator[str]:
    """A network namespace whose other end is here; skips the test where none can be made."""
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
            pytest.skip(f"network namespaces cannot be made here: {getattr(error, 'stderr', None) or error}")
        yield name


def test_a_cable_that_is_pulled(tmp_path: Path) -> None:
    """Packets are lost, and nobody is told."""
    with serving(tmp_path, *SLOW, *KEEPALIVE, "--listen", "0.0.0.0:0") as (server, sampler), namespace() as name:
        port = server.address.rpartition(":")[2]
        code = f"import rollserve; stream = rollserve.connect('10.251.7.1:{port}').stream_samples({FOREVER})"
        command = ["ip", "netns", "exec", name, sys.executable, "-c", f"{code}; print(next(stream)); list(stream)"]
        client = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert client.stdout is not None
        try:
            assert client.stdout.readline()
            subprocess.run(["ip", "-n", name, "link", "set", f"rsi{os.getpid()}", "down"], check=True)
            wait_for_cancelled(sampler, 1, seconds=20)
            assert client.poll() is None
        finally:
            client.kill()
            client.communicate()
