"""Hosts that open streams to the gateway, as processes of their own, and workers that step their rows."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest
from certificates import Certificates
from commands import run_here
from connected_hosts import hosting
from principals import Tokens
from support import check_error, equal, raises, server_environment

import rollserve
from rollserve import Reason
from rollserve_server.local import LocalServer, local_server
from rollserve_wire.rows.v1 import row_service_pb2, rows_pb2

OPTIONS = (
    "--env",
    "CartPole-v1",
    "--vectorization",
    "rows",
    "--rows",
    "4",
    "--seed",
    "7",
    "--allow-module",
    "sample_envs",
)
OPTIONS += ("--allow-host", "host:pole", "--allow-host", "host:other")
OPTIONS += ("--straggler-factor", "0")  # else other workers run what a lost host has begun


def refusal(address: str, *options: str, env: str = "CartPole-v1", name: str = "pole") -> str:
    """Return why the gateway refuses a host, which ends then."""
    command = [sys.executable, "-m", "rollserve_env_host", env, "--connect", address, "--name", name, *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 1
    return ended.stderr


@contextlib.contextmanager
def serving(folder: Path, *options: str, workers: int = 2) -> Iterator[LocalServer]:
    log = folder / "log"
    with local_server(
        *OPTIONS, "--workers", str(workers), *options, log=log, environment=server_environment()
    ) as server:
        yield server
    assert "Traceback" not in log.read_text()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with serving(tmp_path_factory.mktemp("hosts"), "--backend", "in-process") as running:
        yield running


@pytest.fixture
def sampler(server: LocalServer) -> Iterator[rollserve.Sampler]:
    server.reset()
    with rollserve.connect(server.address) as connected:
        connected.update_agent(rollserve.RandomAgent())
        yield connected


def sampled(sampler: rollserve.Sampler) -> list[rollserve.EpisodeBatch]:
    """Return what calls of all kinds sample, one after the other."""
    batches = [sampler.obtain_samples(400, seed=seed) for seed in (3, 4)]
    return [*batches, sampler.obtain_fragments(400, seed=5), sampler.obtain_samples(400, seed=3)]


def refused(quote: str) -> contextlib.AbstractContextManager[object]:
    field = "all_workers.environment.id"
    return raises(rollserve.InvalidArgumentError, reason=Reason.ENV_REFUSED, field=field, quotes=quote)


def all_equal(first: list[rollserve.EpisodeBatch], second: list[rollserve.EpisodeBatch]) -> bool:
    return all(equal(*each) for each in zip(first, second, strict=True))


def test_rows_of_hosts_equal_those_of_workers_with_a_seat_for_each_worker(
    server: LocalServer, sampler: rollserve.Sampler
) -> None:
    expected = sampled(sampler)
    with hosting(server.address, seats=2):
        for _ in range(2):  # what the seats had before does not matter
            sampler.update_env("host:pole")
            assert all_equal(sampled(sampler), expected)
            sampler.update_env("CartPole-v1")


def test_evaluations_take_seats_of_their_own(server: LocalServer, sampler: rollserve.Sampler) -> None:
    expected = sampler.evaluate(5, seed=3)
    with hosting(server.address, seats=4):
        sampler.update_env("host:pole")
        sampler.obtain_samples(100, seed=3)
        assert (sampler.evaluate(5, seed=3).returns == expected.returns).all()


def test_killed_host_comes_back_and_its_episodes_run_again(
    server: LocalServer, sampler: rollserve.Sampler, tmp_path: Path
) -> None:
    expected, death = sampler.obtain_samples(2000, seed=3), tmp_path / "death"
    with hosting(server.address, env="sample_envs.hosted:Mortal", seats=2, variables={"DEATH": str(death)}):
        sampler.update_env("host:pole")
        death.touch()
        batch = sampler.obtain_samples(2000, seed=3)
    assert not death.exists()
    assert equal(batch, expected)
    assert batch.account is not None
    assert batch.account.num_retried_episodes > 0


def test_update_is_refused_without_a_free_seat(server: LocalServer, sampler: rollserve.Sampler) -> None:
    before = sampler.status().env_version
    with refused("got no host connected"):
        sampler.update_env("host:pole")
    with hosting(server.address):
        with refused("got 1 connected, 1 of them in use"):
            sampler.update_env("host:pole")  # two workers need two
        assert sampler.status().env_version == before
        with hosting(server.address):
            sampler.update_env("host:pole")


def test_names_have_to_be_allowed(server: LocalServer, sampler: rollserve.Sampler) -> None:
    with raises(rollserve.InvalidArgumentError, reason=Reason.HOST_NOT_ALLOWED, quotes="host:pole"):
        sampler.update_env("host:none")
    assert "allow-host: 'host:other', 'host:pole'" in refusal(server.address, name="none")


def test_hosts_of_a_name_say_the_same(server: LocalServer, sampler: rollserve.Sampler) -> None:
    with hosting(server.address), hosting(server.address, env="Pendulum-v1", name="other"):
        text = refusal(server.address, env="Pendulum-v1")
        assert "expected what the other hosts of the name 'pole' say: 'CartPole-v1'" in text
    with hosting(server.address, env="Pendulum-v1"):  # once the others are gone
        pass


def test_hosts_of_a_name_have_the_same_spaces(server: LocalServer, sampler: rollserve.Sampler) -> None:
    env = "sample_envs.hosted:Sized"
    with hosting(server.address, env=env, variables={"SIZE": "2"}) as first:
        with (
            hosting(server.address, env=env, variables={"SIZE": "3"}),
            raises(rollserve.InvalidArgumentError, reason=Reason.INVALID_VALUE, quotes="(3,)"),
        ):
            sampler.update_env("host:pole")
        with hosting(server.address, env=env, variables={"SIZE": "2"}):
            assert sampler.update_env("host:pole").observation_space.shape == (2,)
            with hosting(server.address, env=env, variables={"SIZE": "3"}):
                first.process.kill()
                first.process.wait()
                with pytest.raises(rollserve.RollserveError, match="the environment that the host had before"):
                    sampler.obtain_samples(400)


def test_stream_without_a_valid_hello_is_refused(server: LocalServer) -> None:
    cases = [
        ("message.protocol_version", rows_pb2.Hello(protocol_version=2).SerializeToString()),
        ("message", b"\xff"),
    ]
    with grpc.insecure_channel(server.address) as channel:
        call = channel.stream_stream("/rollserve.rows.v1.RowService/ServeRows")
        for field, hello in cases:
            request = row_service_pb2.ServeRowsRequest(name="pole", message=hello)
            with pytest.raises(grpc.RpcError) as caught:
                list(call(iter([request.SerializeToString()])))
            check_error(caught.value, reason=Reason.INVALID_VALUE, field=field)


def test_response_without_a_request_ends_the_stream(server: LocalServer) -> None:
    hello = rows_pb2.Hello(protocol_version=1).SerializeToString()
    requests = [
        row_service_pb2.ServeRowsRequest(name="pole", message=each).SerializeToString() for each in (hello, b"")
    ]
    with grpc.insecure_channel(server.address) as channel:
        call = channel.stream_stream("/rollserve.rows.v1.RowService/ServeRows")
        with pytest.raises(grpc.RpcError) as caught:
            list(call(iter(requests)))
    check_error(caught.value, reason=Reason.INVALID_VALUE, field="message")


def test_relay_answers_nobody_without_the_secret(server: LocalServer) -> None:
    gateway = int(server.address.rpartition(":")[2])
    connections = psutil.Process(server.process.pid).net_connections("tcp")
    (address,) = {each.laddr for each in connections if each.status == psutil.CONN_LISTEN and each.laddr[1] != gateway}
    assert address.ip == "127.0.0.1"
    for knock in (json.dumps({"secret": "0" * 64, "name": "pole", "waits": False}).encode(), b"", b"[]", b"{"):
        with socket.create_connection(address) as stream:
            stream.sendall(struct.pack("<I", len(knock)) + knock)
            assert stream.recv(1) == b""


def test_host_needs_the_scope_and_comes_over_tls(tmp_path: Path) -> None:
    certificates, tokens = Certificates(tmp_path / "certificates"), Tokens(tmp_path / "tokens.json")
    files = {name: tmp_path / name for name in ("host", "trainer", "former")}
    files["host"].write_text(tokens.create("host", "env:serve"))
    files["trainer"].write_text(trainer := tokens.create("trainer", "status", "sample", "*@default"))
    files["former"].write_text("rst_" + "x" * 43)
    ca = ("--tls-ca", str(certificates.path("ca")))
    with serving(tmp_path, "--backend", "in-process", *certificates.server, *tokens.options, workers=1) as server:
        address = server.address
        assert "the scope env:serve" in refusal(address, *ca, "--token-file", str(files["trainer"]))
        assert "UNAUTHENTICATED" in refusal(address, *ca, "--token-file", str(files["former"]))
        with (
            hosting(address, *ca, "--token-file", str(files["host"])),
            rollserve.connect(address, ca=certificates.path("ca"), token=trainer) as sampler,
        ):
            sampler.update_env("host:pole")
            sampler.update_agent(rollserve.RandomAgent())
            assert sampler.obtain_samples(100).num_steps >= 100


def test_token_is_not_sent_in_plaintext_beyond_the_machine(tmp_path: Path) -> None:
    assert "expected TLS (--tls-ca)" in refusal("rollserve.example:50051", "--token-file", str(tmp_path / "token"))


def test_hosts_come_back_to_a_gateway_that_has_started_again(tmp_path: Path) -> None:
    batches, address = [], "127.0.0.1:0"
    with contextlib.ExitStack() as stack:
        host = None
        for _ in range(2):
            with serving(tmp_path, "--backend", "in-process", "--listen", address, workers=1) as server:
                address = server.address
                if host is None:
                    host = stack.enter_context(hosting(address))
                else:
                    host.wait()
                with rollserve.connect(address) as sampler:
                    sampler.update_env("host:pole")
                    sampler.update_agent(rollserve.RandomAgent())
                    batches.append(sampler.obtain_samples(400, seed=3))
    assert equal(*batches)


def test_names_can_be_allowed_later(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(json.dumps({"allow_host": []}))
    options = ("--env", "CartPole-v1", "--workers", "1", "--backend", "in-process", "--config", str(config))
    with local_server(*options, log=tmp_path / "log", environment=server_environment()) as server:
        assert "allow-host: none" in refusal(server.address)
        config.write_text(json.dumps({"allow_host": ["host:pole"]}))
        assert run_here("admin", "reload", server.address).returncode == 0
        with hosting(server.address), rollserve.connect(server.address) as sampler:
            sampler.update_env("host:pole")


def test_server_does_not_start_with_an_environment_of_hosts_to_come(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rollserve_server", "--env", "host:pole", "--listen", "127.0.0.1:0"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 2
    assert "env: expected an environment that workers have at the start" in ended.stderr


def test_seat_of_a_killed_worker_goes_to_the_one_that_replaces_it(tmp_path: Path) -> None:
    with serving(tmp_path) as server, rollserve.connect(server.address) as sampler:
        sampler.update_agent(rollserve.RandomAgent())
        expected = sampler.obtain_samples(2000, seed=3)
        with hosting(server.address, seats=2):
            sampler.update_env("host:pole")
            assert equal(sampler.obtain_samples(2000, seed=3), expected)
            os.kill(sampler.status().workers[0].process_id, signal.SIGKILL)
            assert equal(sampler.obtain_samples(2000, seed=3), expected)
