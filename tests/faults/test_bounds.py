"""What clients may take of a server is bounded: over a bound they are refused, and everything else goes on."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import grpc.aio
import psutil
import pytest
from pools import pool_of
from raw_calls import BIG, FOREVER, SERVICE, begin, careless, end_of, serving, soon
from support import raises

import rollserve
from rollserve import Reason
from rollserve.v1 import sampler_service_pb2 as pb
from rollserve_server.errors import OverLimitError, StoppingError
from rollserve_server.gateway.messages.status import status_to_proto
from rollserve_server.gateway.rpcs import open_rpcs
from rollserve_server.pool import InProcessBackend, RowUpdates

ENDLESS = pb.ObtainSamplesRequest(step_count=FOREVER)


def padded(request: pb.ObtainSamplesRequest | pb.EvaluateRequest, num_bytes: int) -> bytes:
    """A request with so many bytes in a field, number 1000, that nobody knows."""
    length = bytes([*(num_bytes >> shift & 127 | 128 for shift in (0, 7, 14)), num_bytes >> 21])
    return request.SerializeToString() + b"\xc2\x3e" + length + bytes(num_bytes)


def refusal(channel: grpc.Channel, name: str, request: pb.ObtainSamplesRequest | bytes) -> tuple[grpc.StatusCode, str]:
    """The status and reason of a stream that does not begin."""
    with pytest.raises(grpc.RpcError) as caught:
        begin(channel, name, request).cancel()
    error = caught.value
    return error.code(), dict(error.trailing_metadata() or ()).get("rollserve-reason", "")


def answers(sampler: rollserve.Sampler) -> bool:
    with contextlib.suppress(rollserve.LimitError, rollserve.UnavailableError):
        return sampler.status().policy_version == 1
    return False


def test_rpcs_of_all_kinds(tmp_path: Path) -> None:
    with serving(tmp_path, *BIG, "--max-rpcs", "3") as (server, sampler), careless(server) as channel:
        calls = [begin(channel, "ObtainSamples", ENDLESS) for _ in range(3)]
        with pytest.raises(rollserve.LimitError):
            sampler.status()
        for call in calls:
            call.cancel()
        assert soon(lambda: answers(sampler))


def test_connections(tmp_path: Path) -> None:
    with serving(tmp_path, *BIG, "--max-connections", "2") as (server, sampler):
        with careless(server) as channel, careless(server) as another:
            begin(channel, "ObtainSamples", ENDLESS)
            assert refusal(another, "ObtainSamples", ENDLESS)[0] is grpc.StatusCode.UNAVAILABLE
            assert answers(sampler)
        with rollserve.connect(server.address) as other:
            assert soon(lambda: answers(other))


def test_requests_that_need_not_be_large(tmp_path: Path) -> None:
    with serving(tmp_path, *BIG) as (server, sampler), careless(server) as channel:
        begin(channel, "ObtainSamples", padded(ENDLESS, 3 << 20)).cancel()
        expected = grpc.StatusCode.RESOURCE_EXHAUSTED, "REQUEST_TOO_LARGE"
        assert refusal(channel, "ObtainSamples", padded(ENDLESS, 5 << 20)) == expected
        assert answers(sampler)


def test_requests_that_do_not_come(tmp_path: Path) -> None:
    """They hold up what comes through the same connection, and nobody else."""
    never = threading.Event()

    def nothing() -> Iterator[bytes]:
        never.wait()
        yield from ()

    with serving(tmp_path, *BIG) as (server, sampler), careless(server) as channel:
        names = ["ObtainSamples"] * 12 + ["UpdateAgent"] * 12
        calls = [channel.stream_stream(f"{SERVICE}/{name}")(nothing()) for name in names]
        try:
            time.sleep(0.5)  # for them to come
            assert sampler.status(timeout=4).policy_version == 1
            assert sampler.update_agent(rollserve.RandomAgent(), timeout=20) == 2
        finally:
            never.set()
            for call in calls:
                call.cancel()


def test_requests_with_too_much_in_them(tmp_path: Path) -> None:
    with serving(tmp_path, *BIG) as (server, sampler), careless(server) as channel:
        agents = pb.UpdateAgentRequest()
        agents.per_worker.updates.add().agent.random.SetInParent()
        agents.per_worker.updates.extend([agents.per_worker.updates[0]] * 100_000)
        text = pb.UpdateEnvRequest()
        text.all_workers.change.reset_options_json = json.dumps({"what": "x" * (1 << 20)})
        for name, request in {"UpdateAgent": agents, "UpdateEnv": text}.items():
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(f"{SERVICE}/{name}")(request.SerializeToString())
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert dict(caught.value.trailing_metadata() or ())["rollserve-reason"] == "REQUEST_TOO_LARGE"
        assert answers(sampler)


async def test_environments_of_many_rows() -> None:
    """What all of them are is kept and told of: what one row takes counts for each row of each worker."""
    env = rollserve.EnvSpec("CartPole-v1", vectorization="rows", num_rows=64)
    half = {"half": "x" * (9 << 10)}
    async with pool_of(InProcessBackend(), env, workers=2) as pool:
        nothing = RowUpdates((None,) * 64)
        await pool.update_env([dataclasses.replace(env, reset_options=half)])
        await pool.update_env([nothing])
        before = pool.status()
        for too_much in (
            rollserve.EnvChange(reset_options={**half, "other": "x" * (9 << 10)}),
            rollserve.EnvChange(reset_options={"other": "é" * (3 << 10)}),  # six bytes each
            RowUpdates((dataclasses.replace(env, reset_options={"other": "x" * (18 << 10)}),) * 64),
        ):
            with raises(OverLimitError, reason=Reason.ENVIRONMENTS_TOO_LARGE):
                await pool.update_env([too_much])
        after = pool.status()
        assert (after.env_version, after.env_specs) == (before.env_version, before.env_specs)
        await pool.update_env([rollserve.EnvChange(reset_options={"another": "x" * (15 << 10)})])
        await pool.update_env([rollserve.EnvChange(reset_options={})])
        assert pool.status().env_version == before.env_version + 2


async def test_environments_of_rows_of_one_worker_make_all_be_told_of_by_row() -> None:
    env = rollserve.EnvSpec("CartPole-v1", vectorization="rows", num_rows=64)
    large = dataclasses.replace(env, reset_options={"large": "x" * (100 << 10)})
    async with pool_of(InProcessBackend(), env, workers=2) as pool:
        await pool.update_env([env, large], per_worker=True)
        with raises(OverLimitError, reason=Reason.ENVIRONMENTS_TOO_LARGE):
            await pool.update_env([RowUpdates((None,) * 64), large], per_worker=True)
        await pool.update_env([RowUpdates((None,) * 64), env], per_worker=True)


def test_environments_of_workers_that_come(tmp_path: Path) -> None:
    env = rollserve.EnvSpec("CartPole-v1", reset_options={"large": "x" * (600 << 10)})
    with serving(tmp_path, *BIG, "--max-workers", "4") as (_, sampler):
        sampler.update_env([env, env])
        with raises(rollserve.LimitError, field="worker_count", reason=Reason.ENVIRONMENTS_TOO_LARGE):
            sampler.resize(2)
        status = sampler.status()
        assert (status.num_workers, len(status.envs)) == (1, 2)
        sampler.update_env(env)  # the same for all rows is told of once
        assert sampler.resize(4) == 1


async def test_what_is_told_of_lost_workers() -> None:
    async with pool_of(InProcessBackend()) as pool:
        status = pool.status()
        worker = dataclasses.replace(status.workers[0], last_failure="x" * 100_000)
        message = status_to_proto("default", dataclasses.replace(status, workers=[worker]))
        assert message.workers[0].last_failure == "x" * 999 + "…"


def test_states_of_samplers_that_nobody_takes(tmp_path: Path) -> None:
    """Of those that are there until their clients take them, there are a few; calls of others have theirs."""
    env = rollserve.EnvSpec("CartPole-v1", reset_options={"large": "x" * (1000 << 10)})
    with serving(tmp_path, *BIG) as (server, sampler), contextlib.ExitStack() as stack:
        sampler.update_env([env, env])
        sampler.status()
        process = psutil.Process(server.process.pid)
        before = process.memory_info().rss
        calls = []
        for _ in range(4):
            channel = stack.enter_context(careless(server, takes_nothing=True))
            calls += [channel.unary_stream(f"{SERVICE}/GetSampler")(b"") for _ in range(100)]
        most, deadline = 0, time.monotonic() + 10
        while time.monotonic() < deadline:
            most = max(most, process.memory_info().rss - before)
            time.sleep(0.1)
        assert len(sampler.status(timeout=60).envs) == 2
        assert most < 150 << 20
        ends = {end_of(call) for call in calls}
    assert ends <= {
        (grpc.StatusCode.OK, ""),
        (grpc.StatusCode.UNAVAILABLE, "CLIENT_STALLED"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_CALLS"),
    }
    assert len(ends) == 3


def test_requests_of_evaluations_that_run(tmp_path: Path) -> None:
    limits = ("--max-request-bytes", str(8 << 20), "--max-pending-request-bytes", "1")
    request = padded(pb.EvaluateRequest(episode_count=10**5), 5 << 20)
    with serving(tmp_path, *BIG, *limits) as (server, sampler), careless(server) as channel:
        running = begin(channel, "Evaluate", request)
        expected = grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_REQUEST_BYTES"
        assert refusal(channel, "Evaluate", request) == expected
        assert sampler.evaluate(1).returns.shape == (1,)
        running.cancel()
        begin(channel, "Evaluate", request).cancel()


class _Context:
    """A call whose client takes nothing before it is told to."""

    def __init__(self) -> None:
        self.takes = asyncio.Event()
        self.codes: list[object] = []

    def peer(self) -> str:
        return "somebody"

    async def send_initial_metadata(self, _: object) -> None: ...

    async def write(self, _: bytes) -> None:
        await self.takes.wait()

    async def abort(self, code: object, *_: object, **__: object) -> None:
        self.codes.append(code)
        await self.takes.wait()
        raise grpc.aio.AbortError


async def test_messages_that_wait_for_clients_whose_calls_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC lets go of them when the client takes them, or goes."""
    monkeypatch.setattr(open_rpcs, "_MAX_UNREAD_BYTES", 100)
    rpcs, context = open_rpcs.OpenRpcs(stall_seconds=0.01), _Context()

    async def call() -> None:
        with contextlib.suppress(grpc.aio.AbortError):
            async with rpcs.open(context) as rpc:
                rpcs.check_unread()
                await rpc.write(bytes(60))

    calls = [asyncio.create_task(call()) for _ in range(2)]
    await asyncio.sleep(0.2)
    with raises(OverLimitError, reason=Reason.TOO_MANY_STALLED_CALLS, match=r"\b120\b"):
        rpcs.check_unread()
    context.takes.set()
    await asyncio.gather(*calls)
    rpcs.check_unread()


async def test_a_call_that_is_just_being_ended_is_ended_again() -> None:
    rpcs, context = open_rpcs.OpenRpcs(stall_seconds=0.01), _Context()
    context.takes.set()
    with contextlib.suppress(grpc.aio.AbortError):
        async with rpcs.open(context) as rpc:
            try:
                with rpc.waiting_for_client():
                    await asyncio.sleep(5)
            finally:
                rpcs.end(StoppingError("now"))
    assert context.codes == [grpc.StatusCode.UNAVAILABLE]
