"""Clients that hold connections and RPCs and send nothing: everybody else, and health checks, are answered."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import grpc.aio
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from raw_calls import BIG, PREFACE, SERVICE, UnfinishedRequest, as_new, begin, careless, serving, soon
from ray_clusters import free_port
from support import raises

import rollserve
from rollserve_server.local import LocalServer
from rollserve_wire.environments import env_spec_to_proto
from rollserve_wire.v1 import episode_records_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

STRANGER = "127.0.0.2"
"""Another address of this machine, as far as the server can tell."""
SETTINGS = PREFACE + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The first bytes of an HTTP/2 client, with an empty frame of settings."""
LIMITS = ("--max-request-bytes", str(16 << 20), "--max-pending-request-bytes", str(48 << 20))
"""Options of a server with memory for one large request at a time that has not arrived whole."""
Serving = tuple[LocalServer, rollserve.Sampler]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with serving(tmp_path_factory.mktemp("server"), *BIG, *LIMITS, module="pausing_server") as (server, _):
        yield server


@pytest.fixture
def running(shared: LocalServer) -> Iterator[Serving]:
    """A server for the tests that need no limits of their own, as it was at its start."""
    with as_new(shared) as both:
        yield both


def is_healthy(address: str) -> bool:
    """Whether a health check over a connection of its own reports SERVING within 10 s."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(address, options=options) as channel, contextlib.suppress(grpc.RpcError):
        response = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)
    return False


@contextlib.contextmanager
def sockets(address: str, number: int, first_bytes: bytes = b"") -> Iterator[list[socket.socket]]:
    """Yield connections of a stranger, which send some bytes and then nothing."""
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        connected = []
        for _ in range(number):
            connection = socket.create_connection((host, int(port)), source_address=(STRANGER, 0))
            connected.append(stack.enter_context(connection))
            connection.sendall(first_bytes)
        yield connected


def num_open(connected: list[socket.socket]) -> int:
    """Return how many connections the server has not closed."""
    num_closed = 0
    for connection in connected:
        connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            try:
                while connection.recv(1 << 16):
                    pass
                num_closed += 1
            except ConnectionError:
                num_closed += 1
    return len(connected) - num_closed


@contextlib.asynccontextmanager
async def unsent_requests(address: str, method: str, num_channels: int, num_calls: int):  # type: ignore[no-untyped-def]
    """Open so many RPCs over each of so many connections, and send no request."""
    async with contextlib.AsyncExitStack() as stack:
        calls = []
        for _ in range(num_channels):
            options = [("grpc.use_local_subchannel_pool", 1)]
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(address, options=options))
            calls += [channel.stream_stream(f"{SERVICE}/{method}")() for _ in range(num_calls)]
        yield calls
        for call in calls:
            call.cancel()


async def test_unsent_requests_of_five_connections_refuse_nobody(running: Serving) -> None:
    server, sampler = running
    async with unsent_requests(server.address, "UpdateAgent", 5, 250):
        await asyncio.sleep(2)  # time for them to arrive
        checks = [await asyncio.to_thread(is_healthy, server.address) for _ in range(20)]
        assert (await asyncio.to_thread(sampler.status, timeout=10)).policy_version == 1
        # One large request is read at a time. Each of the unsent ones holds that place for 20 ms or more, 25 s in all.
        version = await asyncio.to_thread(sampler.update_agent, rollserve.RandomAgent(), timeout=5)
    assert checks == [True] * 20
    assert version == 2


def test_unfinished_requests_hold_up_nobody(running: Serving) -> None:
    """Requests have 55 bytes of a thousand, over connections of their own from the address of the others."""
    server, sampler = running
    with contextlib.ExitStack() as stack:
        for method in (*["GetSampler"] * 100, *["UpdateAgent"] * 20, *["Evaluate"] * 20):
            request = UnfinishedRequest(server.address, f"{SERVICE}/{method}", 1000)
            stack.callback(request.close)
            request.send(bytes(50))
        version = sampler.update_agent(rollserve.RandomAgent(), timeout=10)
        assert sampler.status(timeout=10).policy_version == version
        assert sampler.evaluate(1, timeout=10).returns.shape == (1,)
        assert is_healthy(server.address)


def test_eight_hostile_connections_of_each_kind_hold_up_no_polite_client(running: Serving) -> None:
    """Hostile clients leave requests unfinished, answers unread, and places taken, all from one address."""
    unfinished = [f"{SERVICE}/{name}" for name in ("GetSampler", "UpdateAgent", "Evaluate", "StreamSamples")]
    unfinished += ["/grpc.health.v1.Health/Check", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"]
    endless = pb.ObtainSamplesRequest(step_count=1 << 50, options=pb.SamplingOptions(blackhole=True))
    held = {
        f"{SERVICE}/ObtainSamples": (8, endless),
        f"{SERVICE}/GetMetrics": (16, episode_records_pb2.GetMetricsRequest(follow=True)),
        f"{SERVICE}/GetSampler": (16, pb.GetSamplerRequest()),
        "/grpc.health.v1.Health/Watch": (64, health_pb2.HealthCheckRequest()),
    }
    server, sampler = running
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            for path in unfinished:
                request = UnfinishedRequest(server.address, path, 1000)
                stack.callback(request.close)
                request.send(bytes(50))
            channel = stack.enter_context(careless(server, takes_nothing=True))
            for path, (number, message) in held.items():
                for _ in range(number):
                    stack.callback(channel.unary_stream(path)(message.SerializeToString()).cancel)
        stack.enter_context(sockets(server.address, 8))
        time.sleep(1)  # time for them to arrive
        for _ in range(5):
            assert sampler.status(timeout=10).policy_version
        assert sampler.update_agent(rollserve.RandomAgent(), timeout=10) == 2
        sampler.metrics(timeout=10)
        assert is_healthy(server.address)


def test_many_updates_of_a_client_leave_turns_to_others(running: Serving) -> None:
    env = rollserve.EnvSpec("sample_envs:Slow", {"step_seconds": 0.3})
    update = pb.UpdateEnvRequest()
    update.all_workers.environment.CopyFrom(env_spec_to_proto(env))
    server, sampler = running
    with careless(server) as channel:
        method = channel.unary_unary(f"{SERVICE}/UpdateEnv")
        updates = [method.future(update.SerializeToString()) for _ in range(12)]
        assert soon(lambda: sampler.status().env_version > 1)
        num_before = sum(call.done() for call in updates)
        sampler.update_env("CartPole-v1", timeout=60)
        assert sum(call.done() for call in updates) - num_before <= 3
        for call in updates:
            call.cancel()


def test_update_is_read_before_the_waiting_ones_of_another_address(running: Serving) -> None:
    """Waiting updates hold the server's place for large requests for 20 ms or more each, 8 s in all."""
    server, sampler = running
    with contextlib.ExitStack() as stack:
        for _ in range(400):
            request = UnfinishedRequest(server.address, f"{SERVICE}/UpdateAgent", 1000, source=STRANGER)
            stack.callback(request.close)
        assert sampler.update_agent(rollserve.RandomAgent(), timeout=5) == 2


def test_unfinished_requests_take_bounded_memory(running: Serving) -> None:
    """Requests have 12 MiB, and 16 MiB are for all requests that have not arrived whole."""
    server, sampler = running
    with contextlib.ExitStack() as stack:
        process = psutil.Process(server.process.pid)
        before, requests = process.memory_info().rss, []
        for number in range(8):
            method = "UpdateAgent" if number % 2 else "GetSampler"
            request = UnfinishedRequest(server.address, f"{SERVICE}/{method}", 16 << 20, source=STRANGER)
            stack.callback(request.close)
            request.send(bytes(12 << 20))
            requests.append(request)
        assert process.memory_info().rss - before < 50 << 20
        assert sampler.update_agent(rollserve.RandomAgent(), timeout=10) == 2
        assert sum(request.is_over_soon() for request in requests) >= 6


async def test_small_request_is_ended_after_30_s(running: Serving) -> None:
    server, _ = running
    async with unsent_requests(server.address, "GetSampler", 1, 1) as (call,):
        await asyncio.sleep(0.2)  # time for it to arrive
        server.request("stand_still 30 /")
        with raises(grpc.RpcError, reason=rollserve.Reason.CLIENT_STALLED, quotes="30 s"):
            await call.read()


def test_connections_that_send_nothing_are_closed(tmp_path: Path) -> None:
    options = ("--max-connections", "20", "--handshake-seconds", "1")
    with (
        serving(tmp_path, *BIG, *options) as (server, _),
        sockets(server.address, 15) as silent,
        sockets(server.address, 15, SETTINGS[:-9]) as half,
    ):
        assert not is_healthy(server.address)
        assert soon(lambda: num_open(silent) == num_open(half) == 0, seconds=10)
        assert is_healthy(server.address)


def test_connections_of_an_address_are_closed_over_their_limit(tmp_path: Path) -> None:
    options = ("--max-connections", "20", "--max-peer-connections", "5")
    with (
        serving(tmp_path, *BIG, *options) as (server, sampler),
        sockets(server.address, 30, SETTINGS) as idle,
    ):
        assert not is_healthy(server.address)
        assert soon(lambda: num_open(idle) == 5, seconds=10)
        assert is_healthy(server.address)
        assert sampler.status(timeout=10).policy_version == 1


def test_health_has_a_listener_of_its_own(tmp_path: Path) -> None:
    health = f"127.0.0.1:{free_port()}"
    options = ("--max-connections", "4", "--max-peer-connections", "4", "--health-listen", health)
    with serving(tmp_path, *BIG, *options) as (server, _), sockets(server.address, 10, SETTINGS):
        assert not is_healthy(server.address)
        assert all(is_healthy(health) for _ in range(10))


@pytest.mark.slow
def test_endless_calls_of_a_connection_leave_turns_to_others(running: Serving) -> None:
    """The endless calls' results are discarded, so that their client has nothing to read and never stalls."""
    server, sampler = running
    with careless(server) as channel:
        expected = sampler.obtain_samples(50, seed=7).returns
        options = pb.SamplingOptions(blackhole=True)
        request = pb.ObtainSamplesRequest(step_count=1 << 50, options=options).SerializeToString()
        endless = [begin(channel, "ObtainSamples", request) for _ in range(4)]
        endless += [channel.unary_stream(f"{SERVICE}/ObtainSamples")(request) for _ in range(60)]
        for _ in range(3):
            before = sampler.status().counters.num_simulated_steps
            assert (sampler.obtain_samples(50, seed=7, first_episode_index=0, timeout=20).returns == expected).all()
            assert sampler.status().counters.num_simulated_steps - before < 100_000
        for call in endless:
            call.cancel()
