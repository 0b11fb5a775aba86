"""A server that is told to end tells its clients."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from raw_calls import FOREVER, SERVICE, careless, end_of, serving

from rollserve.v1 import sampler_service_pb2 as pb

SLOW = ("--env", "sample_envs:Slow", "--backend", "in-process", "--workers", "1", "--rows", "1", "--max-calls", "1")
OBTAIN = f"{SERVICE}/ObtainSamples"


def begin(channel: grpc.Channel, num_steps: int = FOREVER) -> grpc.Call:
    """A call that has begun, or waits for its turn."""
    request = pb.ObtainSamplesRequest(step_count=num_steps)
    call = channel.unary_stream(OBTAIN, request.SerializeToString, pb.ObtainSamplesResponse.FromString)(request)
    assert next(call).WhichOneof("content") in ("beginning", "progress")
    return call


def test_each_call_is_told_in_time(tmp_path: Path) -> None:
    with serving(tmp_path, *SLOW, "--grace-seconds", "3") as (server, _), careless(server) as channel:
        running = begin(channel)
        waiting = begin(channel)
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert end_of(waiting) == (grpc.StatusCode.UNAVAILABLE, "SERVER_STOPPING")
        assert time.monotonic() - began < 2.5
        with pytest.raises(grpc.RpcError) as caught:
            begin(channel)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert end_of(running) == (grpc.StatusCode.UNAVAILABLE, "SERVER_STOPPING")
        assert time.monotonic() - began >= 3
        assert server.process.wait(10) == 0


def test_what_ends_in_time_is_whole(tmp_path: Path) -> None:
    with serving(tmp_path, *SLOW) as (server, _), careless(server) as channel:
        running = begin(channel, num_steps=20)
        server.process.send_signal(signal.SIGTERM)
        assert [response.WhichOneof("content") for response in running][-1] == "account"
        assert server.process.wait(10) == 0


def test_who_only_watches_its_health_does_not_hold_it_up(tmp_path: Path) -> None:
    with serving(tmp_path, *SLOW, "--grace-seconds", "60") as (server, _), careless(server) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        server.process.send_signal(signal.SIGTERM)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert server.process.wait(20) == 0


def test_nor_does_who_takes_nothing_of_it(tmp_path: Path) -> None:
    with (
        serving(tmp_path, *SLOW, "--grace-seconds", "60") as (server, _),
        careless(server, takes_nothing=True) as channel,
        careless(server) as another,
    ):
        stuck = [channel.unary_stream("/grpc.health.v1.Health/Watch")(b"") for _ in range(20)]
        time.sleep(1)
        watch = health_pb2_grpc.HealthStub(another).Watch(health_pb2.HealthCheckRequest(), timeout=30)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        server.process.send_signal(signal.SIGTERM)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert server.process.wait(20) == 0
        assert {call.code() for call in stuck} == {grpc.StatusCode.UNAVAILABLE}


def test_nor_do_streams_of_reflection(tmp_path: Path) -> None:
    given_up = threading.Event()
    with serving(tmp_path, *SLOW, "--grace-seconds", "60") as (server, _), careless(server) as channel:
        reflect = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        idle = reflect(iter(given_up.wait, True))
        time.sleep(1)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
        assert idle.code() is grpc.StatusCode.UNAVAILABLE
        given_up.set()


def test_nor_does_a_client_that_takes_nothing(tmp_path: Path) -> None:
    big = ("--env", "sample_envs:Big", "--env-kwargs", '{"observation_bytes": 262144}', "--grace-seconds", "1")
    with serving(tmp_path, *SLOW, *big) as (server, _), careless(server) as channel:
        stuck = begin(channel)
        time.sleep(2)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
        assert end_of(stuck)[0] is grpc.StatusCode.UNAVAILABLE


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, *SLOW, "--grace-seconds", "60") as (server, _), careless(server) as channel:
        running = begin(channel)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(1)
        assert server.process.poll() is None
        assert server.stop() == 0
        assert end_of(running)[0] is grpc.StatusCode.UNAVAILABLE


def test_calls_that_came_just_before_are_told_too(tmp_path: Path) -> None:
    """They wait in a server that stands still, and find it stopping when it goes on."""
    with serving(tmp_path, *SLOW, "--grace-seconds", "3") as (server, _), careless(server) as channel:
        obtain = channel.unary_stream(OBTAIN, pb.ObtainSamplesRequest.SerializeToString, None)
        server.process.send_signal(signal.SIGSTOP)
        calls = [obtain(pb.ObtainSamplesRequest(step_count=1)) for _ in range(8)]
        time.sleep(1)
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGCONT)
        assert {end_of(call) for call in calls} <= {
            (grpc.StatusCode.UNAVAILABLE, "SERVER_STOPPING"),
            (grpc.StatusCode.OK, ""),
        }
        assert server.process.wait(10) == 0
