"""Bounds of health checks and reflection, and that neither blocks other RPCs."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from raw_calls import BIG, SERVICE, UnfinishedRequest, careless, end_of, serving, soon

import rollserve
from rollserve_server.local import LocalServer

CHECK, WATCH, LIST = (f"/grpc.health.v1.Health/{name}" for name in ("Check", "Watch", "List"))
REFLECT = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
STATUS = health_pb2.HealthCheckResponse
ASKED = reflection_pb2.ServerReflectionRequest(file_containing_symbol="rollserve.v1.SamplerService")

LIMITS = ("--max-request-bytes", str(20 << 20))

Serving = tuple[LocalServer, rollserve.Sampler]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("server"), *BIG, *LIMITS, module="pausing_server") as both:
        yield both


def is_healthy(channel: grpc.Channel, timeout: float) -> bool:
    """Whether a health check reports SERVING."""
    response = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=timeout)
    return bool(response.status == STATUS.SERVING)


def answer_of(channel: grpc.Channel, path: str, data: bytes) -> tuple[grpc.StatusCode, str]:
    return end_of(channel.unary_stream(path)(data, timeout=30))


@pytest.mark.parametrize("path", [CHECK, WATCH, LIST, REFLECT])
def test_requests_longer_than_a_name_are_rejected(running: Serving, path: str) -> None:
    server, _ = running
    with careless(server) as channel:
        too_large = grpc.StatusCode.RESOURCE_EXHAUSTED, "REQUEST_TOO_LARGE"
        for size in (5000, 1 << 20):
            assert answer_of(channel, path, health_pb2.HealthCheckRequest(service="x" * size).SerializeToString()) == (
                too_large
            )
        for malformed in (b"\xff" * 9, b"\x0a\x02\xff\xff" if path != LIST else b"\x0a\x02"):
            assert answer_of(channel, path, malformed) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_VALUE")
        assert is_healthy(channel, timeout=5)


def test_health_knows_the_server_and_its_service(running: Serving) -> None:
    server, _ = running
    with careless(server) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        names = "", "rollserve.v1.SamplerService"
        for name in names:
            assert stub.Check(health_pb2.HealthCheckRequest(service=name)).status == STATUS.SERVING
        statuses = stub.List(health_pb2.HealthListRequest()).statuses
        assert {name: response.status for name, response in statuses.items()} == dict.fromkeys(names, STATUS.SERVING)
        unknown = health_pb2.HealthCheckRequest(service="x")
        assert answer_of(channel, CHECK, unknown.SerializeToString()) == (
            grpc.StatusCode.NOT_FOUND,
            "SERVICE_NOT_FOUND",
        )
        watch = stub.Watch(unknown)
        assert next(watch).status == STATUS.SERVICE_UNKNOWN
        watch.cancel()


@pytest.mark.parametrize("path", [CHECK, pytest.param(REFLECT, marks=pytest.mark.slow)])
def test_concurrent_large_requests_take_bounded_memory(tmp_path: Path, path: str) -> None:
    """The requests have 512 MiB together.

    Four arrive at a time, with 64 MiB, and gRPC holds one three times while it hands it over, with 32 MiB more. On a
    busy machine others are there, too: slow ones, for which the server counts 20 MiB after the fact, and ended ones
    that gRPC has not freed. The heap has gaps between them.
    """
    limits = (*LIMITS, "--max-pending-request-bytes", "1")
    with serving(tmp_path, *BIG, *limits) as (server, _), contextlib.ExitStack() as stack:
        process = psutil.Process(server.process.pid)
        before = most = process.memory_info().rss
        request = health_pb2.HealthCheckRequest(service="x" * (16 << 20)).SerializeToString()
        calls = []
        for _ in range(32):
            call = stack.enter_context(careless(server)).unary_unary(path)
            calls.append(call.future(request, timeout=60))
        while not all(call.done() for call in calls):
            most = max(most, process.memory_info().rss)
            time.sleep(0.01)
        # On a busy machine a request may arrive so slowly that it is ended for those in the queue.
        assert {call.code() for call in calls} - {grpc.StatusCode.UNAVAILABLE} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert most - before < 320 << 20


def test_unread_watches_block_no_other_rpc(running: Serving) -> None:
    server, _ = running
    with careless(server, takes_nothing=True) as channel, careless(server) as another:
        stuck = [channel.unary_stream(WATCH)(b"") for _ in range(50)]
        time.sleep(0.5)
        watch = health_pb2_grpc.HealthStub(another).Watch(health_pb2.HealthCheckRequest(), timeout=5)
        assert next(watch).status == STATUS.SERVING
        assert is_healthy(another, timeout=5)
        assert STATUS.FromString(next(stuck[0])).status == STATUS.SERVING
        for call in (*stuck, watch):
            call.cancel()


def test_watches_are_rejected_over_64_per_connection(running: Serving) -> None:
    server, _ = running
    with careless(server) as channel, careless(server) as another:
        watches = [channel.unary_stream(WATCH)(b"") for _ in range(64)]
        for call in watches:
            assert STATUS.FromString(next(call)).status == STATUS.SERVING
        assert answer_of(channel, WATCH, b"") == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_CALLS")
        assert is_healthy(channel, timeout=5)
        assert STATUS.FromString(next(another.unary_stream(WATCH)(b""))).status == STATUS.SERVING
        for call in watches:
            call.cancel()

        def makes_room() -> bool:
            call = channel.unary_stream(WATCH)(b"")
            with contextlib.suppress(grpc.RpcError):
                return bool(STATUS.FromString(next(call)).status == STATUS.SERVING)
            return False

        assert soon(makes_room)


def test_unsent_requests_delay_health_checks_by_seconds_at_most(running: Serving) -> None:
    """Unsent requests delay a health check only if they are health checks themselves."""
    server, sampler = running
    never = threading.Event()

    def nothing() -> Iterator[bytes]:
        never.wait()
        yield from ()

    with contextlib.ExitStack() as stack:
        calls = []
        paths = [f"{SERVICE}/GetSampler"] * 3 + [f"{SERVICE}/UpdateAgent"] * 3 + [REFLECT] * 3
        channels = [stack.enter_context(careless(server)) for _ in range(8)]
        try:
            calls += [channel.stream_stream(path)(nothing()) for channel in channels for path in paths]
            time.sleep(0.5)  # time for them to arrive
            assert is_healthy(channels[0], timeout=4)
            calls += [channel.stream_stream(path)(nothing()) for channel in channels for path in (CHECK, WATCH)]
            time.sleep(0.5)
            with careless(server) as another:
                assert is_healthy(another, timeout=20)
        finally:
            never.set()
            for call in calls:
                call.cancel()
    assert sampler.status(timeout=20).policy_version == 1


def test_idle_reflection_streams_make_room_for_others(running: Serving) -> None:
    server, _ = running
    given_up = threading.Event()

    def asking() -> Iterator[bytes]:
        yield ASKED.SerializeToString()
        given_up.wait()
        yield ASKED.SerializeToString()

    with careless(server) as channel, careless(server) as another:
        idle = [channel.stream_stream(REFLECT)(asking()) for _ in range(4)]
        for call in idle:
            assert files_in(next(call)) > 3
        for _ in range(3):
            assert answer_of(another, REFLECT, ASKED.SerializeToString()) == (grpc.StatusCode.OK, "")
        given_up.set()
        ends = [end_of(call) for call in idle]
    assert set(ends) <= {(grpc.StatusCode.OK, ""), (grpc.StatusCode.UNAVAILABLE, "CLIENT_STALLED")}
    assert (grpc.StatusCode.OK, "") in ends


def files_in(data: bytes) -> int:
    response = reflection_pb2.ServerReflectionResponse.FromString(data)
    return len(response.file_descriptor_response.file_descriptor_proto)


def test_unread_reflection_answers_make_room_for_others(running: Serving) -> None:
    """An answer that is unread for 5 s makes room for the next."""
    server, _ = running
    with contextlib.ExitStack() as stack:
        calls = []
        for _ in range(4):
            channel = stack.enter_context(careless(server, takes_nothing=True))
            calls += [channel.unary_stream(REFLECT)(ASKED.SerializeToString()) for _ in range(4)]
        with careless(server) as another:
            assert soon(lambda: waits_for_room(another))
        with concurrent.futures.ThreadPoolExecutor(len(calls)) as executor:
            ends = set(executor.map(end_of, calls))
    assert ends == {(grpc.StatusCode.OK, ""), (grpc.StatusCode.UNAVAILABLE, "CLIENT_STALLED")}


def waits_for_room(channel: grpc.Channel) -> bool:
    """Whether an answer of reflection comes only after another answer has made room."""
    began = time.monotonic()
    assert answer_of(channel, REFLECT, ASKED.SerializeToString()) == (grpc.StatusCode.OK, "")
    return time.monotonic() - began > 2


def test_requests_that_arrive_as_their_rpcs_end_are_freed(running: Serving, tmp_path: Path) -> None:
    """The server stands still meanwhile, and finds both at once: requests of 16 MiB, and that their time is over.

    The heap reaches its size with the first requests.
    """
    server, _ = running
    sizes = []
    for number in range(5):
        sent = tmp_path / f"sent-{number}"
        with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor() as executor:
            requests = [UnfinishedRequest(server.address, f"{SERVICE}/GetSampler", 16 << 20) for _ in range(4)]
            for request in requests:
                stack.callback(request.close)
                request.wait_until_read()
            standing_still = executor.submit(server.request, f"stand_still 31 {sent}")
            for request in requests:
                request.send(bytes(16 << 20))
                assert not request.is_over
            sent.touch()
            standing_still.result()
            assert all(request.is_over_soon() for request in requests)
        sizes.append(psutil.Process(server.process.pid).memory_info().rss)
    assert sizes[-1] - sizes[0] < 64 << 20  # the last 16 requests have 256 MiB
