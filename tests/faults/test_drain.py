"""Graceful shutdown: calls end within the grace period, and no other RPC delays the end."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pools import CARTPOLE, pool_of, sample
from raw_calls import FOREVER, SERVICE, careless, end_of, serving, soon
from support import raises

from rollserve import Reason
from rollserve_server.agents import RandomSpec
from rollserve_server.errors import StoppingError
from rollserve_server.pool import AtLeast, InProcessBackend
from rollserve_wire.v1 import sampler_service_pb2 as pb

SLOW = ("--env", "sample_envs:Slow", "--backend", "in-process", "--workers", "1", "--rows", "1", "--max-calls", "1")
OBTAIN = f"{SERVICE}/ObtainSamples"


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 1).close()
    except OSError:
        return False
    return True


def begin(channel: grpc.Channel, num_steps: int = FOREVER) -> Any:
    """A call that runs or is queued."""
    request = pb.ObtainSamplesRequest(step_count=num_steps)
    call = channel.unary_stream(OBTAIN, request.SerializeToString, pb.ObtainSamplesResponse.FromString)(request)
    assert next(call).WhichOneof("content") in ("beginning", "progress")
    return call


def test_drain_rejects_queued_calls_at_once_and_running_calls_after_the_grace(tmp_path: Path) -> None:
    with serving(tmp_path, *SLOW, "--grace-seconds", "2") as (server, _), careless(server) as channel:
        running = begin(channel)
        waiting = begin(channel)
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert end_of(waiting) == (grpc.StatusCode.UNAVAILABLE, "SERVER_STOPPING")
        assert running.is_active()
        with pytest.raises(grpc.RpcError) as caught:
            begin(channel)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert end_of(running) == (grpc.StatusCode.UNAVAILABLE, "SERVER_STOPPING")
        assert time.monotonic() - began >= 2
        assert server.process.wait(20) == 0


async def test_drain_rejects_updates() -> None:
    async with pool_of(InProcessBackend(), CARTPOLE) as pool:
        pool.drain(StoppingError("the server is stopping"))
        for update in (pool.update_agent([RandomSpec()]), pool.update_env([CARTPOLE]), pool.resize(1)):
            with raises(StoppingError, reason=Reason.SERVER_STOPPING):
                await update
        assert (pool.status().policy_version, pool.status().env_version) == (0, 1)


async def test_drain_during_a_reset_rejects_calls_of_the_new_run() -> None:
    async with pool_of(InProcessBackend(), CARTPOLE) as pool:
        resetting = asyncio.create_task(pool.reset())
        await asyncio.sleep(0)  # it starts the workers of the new run
        assert not resetting.done()
        pool.drain(StoppingError("the server is stopping"))
        await resetting
        with raises(StoppingError, reason=Reason.SERVER_STOPPING):
            await sample(pool, AtLeast(1))
        with raises(StoppingError, reason=Reason.SERVER_STOPPING):
            await pool.episode_log.wait_beyond(0)


def test_drain_completes_calls_that_end_within_the_grace(tmp_path: Path) -> None:
    with serving(tmp_path, *SLOW) as (server, _), careless(server) as channel:
        running = begin(channel, num_steps=20)
        server.process.send_signal(signal.SIGTERM)
        assert [response.WhichOneof("content") for response in running][-1] == "account"
        assert server.process.wait(20) == 0


def test_streams_of_health_and_reflection_do_not_delay_the_end(tmp_path: Path) -> None:
    """Neither do the watches of a client that reads nothing."""
    given_up = threading.Event()
    with (
        serving(tmp_path, *SLOW, "--grace-seconds", "60") as (server, _),
        careless(server, takes_nothing=True) as channel,
        careless(server) as another,
    ):
        stuck = [channel.unary_stream("/grpc.health.v1.Health/Watch")(b"") for _ in range(20)]
        reflect = another.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        idle = reflect(iter(given_up.wait, True))
        time.sleep(0.5)  # time for them to arrive
        watch = health_pb2_grpc.HealthStub(another).Watch(health_pb2.HealthCheckRequest(), timeout=30)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        server.process.send_signal(signal.SIGTERM)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert server.process.wait(20) == 0
        assert {call.code() for call in (idle, *stuck)} == {grpc.StatusCode.UNAVAILABLE}
        given_up.set()


def test_stalled_call_does_not_delay_the_end_beyond_the_grace(tmp_path: Path) -> None:
    big = ("--env", "sample_envs:Big", "--env-kwargs", '{"observation_bytes": 262144}', "--grace-seconds", "1")
    with serving(tmp_path, *SLOW, *big) as (server, _), careless(server) as channel:
        stuck = begin(channel)
        time.sleep(0.5)  # all buffers are full by then
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
        assert end_of(stuck)[0] is grpc.StatusCode.UNAVAILABLE


def test_second_signal_ends_the_server_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, *SLOW, "--grace-seconds", "60") as (server, _), careless(server) as channel:
        running = begin(channel)
        server.process.send_signal(signal.SIGTERM)
        assert soon(lambda: not listens(server.address))  # gRPC closes its port when it begins to stop
        assert server.process.poll() is None
        assert server.stop() == 0
        assert end_of(running)[0] is grpc.StatusCode.UNAVAILABLE


def test_calls_that_arrive_with_the_signal_are_answered(tmp_path: Path) -> None:
    """The server is stopped while the calls arrive, and gets SIGTERM before it reads them."""
    with serving(tmp_path, *SLOW, "--grace-seconds", "2") as (server, _), careless(server) as channel:
        obtain = channel.unary_stream(OBTAIN, pb.ObtainSamplesRequest.SerializeToString, None)
        server.process.send_signal(signal.SIGSTOP)
        calls = [obtain(pb.ObtainSamplesRequest(step_count=1)) for _ in range(8)]
        time.sleep(0.5)
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGCONT)
        assert {end_of(call) for call in calls} <= {
            (grpc.StatusCode.UNAVAILABLE, "SERVER_STOPPING"),
            (grpc.StatusCode.OK, ""),
        }
        assert server.process.wait(20) == 0
