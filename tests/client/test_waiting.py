"""Calls that begin while the server is away."""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from scripted_server import abort, scripted_server
from support import raises

import rollserve
from rollserve.spaces import Discrete
from rollserve_wire.spaces import space_to_proto
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.episode_batch_pb2 import Account, Beginning

MAY_BE_BUSY_SECONDS = 30
SPACES = {name: space_to_proto(Discrete(2)) for name in ("observation_space", "action_space")}


def empty_stream(_: grpc.ServicerContext) -> Iterator[bytes]:
    yield pb.ObtainSamplesResponse(beginning=Beginning()).SerializeToString()
    yield pb.ObtainSamplesResponse(account=Account()).SerializeToString()


def empty_session(_: grpc.ServicerContext) -> Iterator[bytes]:
    yield pb.DriveEnvironmentsResponse(beginning=Beginning(**SPACES)).SerializeToString()
    yield pb.DriveEnvironmentsResponse(account=Account()).SerializeToString()


def session(sampler: rollserve.Sampler) -> None:
    with sampler.drive(timeout=MAY_BE_BUSY_SECONDS):
        pass


def stream(sampler: rollserve.Sampler) -> None:
    assert list(sampler.stream_samples(1, timeout=MAY_BE_BUSY_SECONDS)) == []


@pytest.mark.parametrize(
    "call", [rollserve.Sampler.agent_versions, stream, session], ids=["single answer", "stream", "session"]
)
def test_call_waits_for_a_server_that_has_answered_before(call: Callable[[rollserve.Sampler], object]) -> None:
    with ThreadPoolExecutor() as executor:
        with scripted_server(ObtainSamples=empty_stream) as address:
            sampler = rollserve.connect(address)
            sampler.agent_versions()
        waiting = executor.submit(call, sampler)
        with pytest.raises(concurrent.futures.TimeoutError):
            waiting.result(timeout=0.2)
        port, scripts = int(address.rpartition(":")[2]), {"DriveEnvironments": empty_session}
        with scripted_server(port, ObtainSamples=empty_stream, **scripts):
            waiting.result(MAY_BE_BUSY_SECONDS)
        sampler.close()


async def test_async_call_waits_for_a_server_that_has_answered_before() -> None:
    with scripted_server(ObtainSamples=empty_stream) as address:
        sampler = rollserve.aconnect(address)
        assert [batch async for batch in sampler.stream_samples(1)] == []
    waiting = asyncio.create_task(sampler.agent_versions())
    await asyncio.wait({waiting}, timeout=0.2)
    assert not waiting.done()
    with scripted_server(int(address.rpartition(":")[2])):
        await waiting
    await sampler.close()


def test_call_that_waits_for_a_server_ends_at_its_timeout() -> None:
    with scripted_server() as address:
        sampler = rollserve.connect(address)
        sampler.agent_versions()
    with raises(rollserve.UnavailableError, reason="", quotes=address):
        sampler.agent_versions(timeout=0.2)
    for call in (sampler.obtain_samples, sampler.evaluate):
        with raises(rollserve.UnavailableError, reason="", quotes=address):
            call(1, timeout=0.2)
    sampler.close()


async def test_async_call_that_waits_for_a_server_ends_at_its_timeout() -> None:
    with scripted_server() as address:
        sampler = rollserve.aconnect(address)
        await sampler.agent_versions()
    with raises(rollserve.UnavailableError, reason="", quotes=address):
        await sampler.agent_versions(timeout=0.2)
    for call in (sampler.obtain_samples, sampler.evaluate):
        with raises(rollserve.UnavailableError, reason="", quotes=address):
            await call(1, timeout=0.2)
    await sampler.close()


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
async def test_call_is_unavailable_even_if_its_last_attempt_has_no_time_left(is_async: bool) -> None:
    num_calls = 0

    def answer(context: grpc.ServicerContext) -> bytes:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 2:
            context.abort(grpc.StatusCode.UNAVAILABLE, "Connection refused")
        elif num_calls > 2:
            time.sleep(1)
        return b""

    with scripted_server(answer=answer) as address, raises(rollserve.UnavailableError, reason="", quotes="refused"):
        if is_async:
            async with rollserve.aconnect(address) as sampler:
                await sampler.agent_versions()
                await sampler.agent_versions(timeout=0.5)
        else:
            with rollserve.connect(address) as blocking:
                blocking.agent_versions()
                blocking.agent_versions(timeout=0.5)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (grpc.StatusCode.UNAVAILABLE, "Stream removed"),
        (grpc.StatusCode.CANCELLED, ""),
        (grpc.StatusCode.CANCELLED, "CANCELLED"),
    ],
    ids=["lost", "reset by a server that stops", "reset, with a text"],
)
def test_call_that_loses_its_server_before_it_begins_is_made_again(status: grpc.StatusCode, text: str) -> None:
    num_calls = 0

    def fail_once(context: grpc.ServicerContext) -> Iterator[bytes]:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 1:
            context.abort(status, text)
        yield from empty_stream(context)

    with scripted_server(ObtainSamples=fail_once) as address, rollserve.connect(address) as sampler:
        sampler.agent_versions()
        stream(sampler)
    assert num_calls == 2


@pytest.mark.parametrize("reason", ["SERVER_STOPPING", "SAMPLER_TAKEN", "JOURNAL_LOST"])
def test_call_goes_on_with_the_next_server_at_its_address(reason: str) -> None:
    reasons = {"unary": ["", reason, ""], "stream": [reason, "", "TOO_FEW_WORKERS"]}

    def answer(context: grpc.ServicerContext) -> bytes:
        if given := reasons["unary"].pop(0):
            abort(context, given, "")
        return b""

    def respond(context: grpc.ServicerContext) -> Iterator[bytes]:
        if given := reasons["stream"].pop(0):
            abort(context, given, "")
        yield from empty_stream(context)

    with scripted_server(answer=answer, ObtainSamples=respond) as address, rollserve.connect(address) as sampler:
        for call in (rollserve.Sampler.agent_versions, rollserve.Sampler.agent_versions, stream):
            call(sampler)
        with raises(rollserve.UnavailableError, reason="TOO_FEW_WORKERS"):
            stream(sampler)
    assert reasons == {"unary": [], "stream": []}


@pytest.mark.parametrize("text", ["", "CANCELLED"])
def test_call_that_a_server_resets_is_unavailable(text: str) -> None:
    def reset(context: grpc.ServicerContext) -> Iterator[bytes]:
        context.abort(grpc.StatusCode.CANCELLED, text)

    with (
        scripted_server(ObtainSamples=reset) as address,
        rollserve.connect(address) as sampler,
        raises(rollserve.UnavailableError, reason="", quotes="the server reset the call"),
    ):
        sampler.obtain_samples(1)


def test_call_to_a_server_that_was_never_there_fails_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with rollserve.connect(address, timeout=3600) as sampler:
        calls = sampler.agent_versions, lambda: sampler.obtain_samples(1), sampler.drive().observe
        for call in (*calls, lambda: sampler.evaluate(1)):
            with raises(rollserve.UnavailableError, reason="", quotes=address):
                call()
