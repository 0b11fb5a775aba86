"""Bounds on what clients use of a server: over a bound they are rejected, and everybody else is served."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import gzip
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, cast

import grpc
import grpc.aio
import psutil
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from pools import CARTPOLE, pool_of
from raw_calls import BIG, FOREVER, SERVICE, as_new, begin, careless, end_of, serving, soon
from support import raises

import rollserve
from rollserve import Reason
from rollserve_server.datasets import max_read_bytes
from rollserve_server.errors import OverLimitError, StoppingError
from rollserve_server.gateway.messages.environments import PrivateArguments
from rollserve_server.gateway.messages.status import status_to_proto
from rollserve_server.gateway.rpcs import open_rpcs
from rollserve_server.gateway.rpcs.places import Places
from rollserve_server.local import LocalServer
from rollserve_server.machine import memory_bytes
from rollserve_server.metrics import Metrics
from rollserve_server.pool import InProcessBackend, Pool, PoolStatus, RowUpdates
from rollserve_server.samplers import Sampler
from rollserve_server.settings import Quota
from rollserve_wire.v1 import datasets_pb2, episode_records_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

ENDLESS = pb.ObtainSamplesRequest(step_count=FOREVER)
Serving = tuple[LocalServer, rollserve.Sampler]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    options = ("--max-workers", "4", "--data-dir", str(tmp_path_factory.mktemp("data")))
    with serving(tmp_path_factory.mktemp("server"), *BIG, *options) as (server, _):
        yield server


@pytest.fixture
def running(shared: LocalServer) -> Iterator[Serving]:
    """A server for the tests that need no limits of their own, as it was at its start."""
    with as_new(shared) as both:
        yield both


def padded(request: pb.ObtainSamplesRequest | pb.EvaluateRequest, num_bytes: int) -> bytes:
    """A request with an unknown field, number 1000, of this size."""
    length = bytes([*(num_bytes >> shift & 127 | 128 for shift in (0, 7, 14)), num_bytes >> 21])
    return request.SerializeToString() + b"\xc2\x3e" + length + bytes(num_bytes)


def refusal(channel: grpc.Channel, name: str, request: pb.ObtainSamplesRequest | bytes) -> tuple[grpc.StatusCode, str]:
    """The status and reason of a rejected stream."""
    with pytest.raises(grpc.RpcError) as caught:
        begin(channel, name, request).cancel()
    error = caught.value
    return error.code(), dict(error.trailing_metadata() or ()).get("rollserve-reason", "")


def answers(sampler: rollserve.Sampler) -> bool:
    with contextlib.suppress(rollserve.LimitError, rollserve.UnavailableError):
        return sampler.status().policy_version >= 1
    return False


def test_rpcs_are_rejected_over_their_limit(tmp_path: Path) -> None:
    with serving(tmp_path, *BIG, "--max-rpcs", "3") as (server, sampler), careless(server) as channel:
        calls = [begin(channel, "ObtainSamples", ENDLESS) for _ in range(3)]
        with raises(rollserve.LimitError, reason=Reason.TOO_MANY_CALLS):
            sampler.status()
        for call in calls:
            call.cancel()
        assert soon(lambda: answers(sampler))


STREAM = pb.StreamSpec(episodes=pb.StreamedEpisodes(step_count=1))
LIVE = datasets_pb2.DatasetSource(live=datasets_pb2.LiveEpisodes(step_count=1))
PLACES = re.compile(r"^\| `(\w+)`[^|]*\| (\d+)[^|]*\| (\d+) \|$", re.MULTILINE)
DOCUMENTED = {
    name: (int(in_all), int(of_client))
    for name, in_all, of_client in PLACES.findall((Path(__file__).parents[2] / "docs" / "limits.md").read_text())
}
"""Number of places in all and of a client, by RPC, of the table in docs/limits.md."""
REQUESTS: dict[str, Callable[[int], Message]] = {
    "StreamSamples": lambda _: pb.StreamSamplesRequest(spec=STREAM),
    "GetMetrics": lambda _: episode_records_pb2.GetMetricsRequest(follow=True),
    "Watch": lambda _: health_pb2.HealthCheckRequest(),
    "RecordDataset": lambda number: pb.RecordDatasetRequest(dataset=f"of/{number}-v0", step_count=FOREVER),
    "ReadDataset": lambda _: pb.ReadDatasetRequest(sources=[LIVE]),
}
SLOW = ("RecordDataset", "ReadDataset")
"""RPCs with a process each."""


def num_by_memory(name: str) -> int:
    """Return how many places this machine has memory for."""
    each = {"RecordDataset": 512 << 20, "ReadDataset": max_read_bytes()}
    return max(memory_bytes() // 2 // each.get(name, 1), 1)


class Client:
    """A connection whose calls go on until they are closed."""

    def __init__(self, stack: contextlib.ExitStack, server: LocalServer) -> None:
        self._channel, self._closed = stack.enter_context(careless(server)), threading.Event()
        stack.callback(self._closed.set)
        self.calls: list[grpc.Call] = []

    def open(self, name: str, number: int) -> None:
        """Begin a call, and raise the error of a refused one."""

        def requests() -> Iterator[bytes]:
            yield REQUESTS[name](number).SerializeToString()
            if name == "StreamSamples":
                self._closed.wait()

        service = "/grpc.health.v1.Health" if name == "Watch" else SERVICE
        call = self._channel.stream_stream(f"{service}/{name}")(requests(), timeout=120)
        next(call)
        self.calls.append(call)


def test_table_of_places_is_complete() -> None:
    assert DOCUMENTED.keys() == REQUESTS.keys()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in REQUESTS]
)
def test_places_are_shared_as_documented(running: Serving, name: str) -> None:
    """A client gets its share and no more; when all places are taken, one with more makes room for one with none."""
    in_all, of_client = DOCUMENTED[name]
    in_all = min(in_all, num_by_memory(name))
    server, _ = running
    with contextlib.ExitStack() as stack:
        children = psutil.Process(server.process.pid).children
        num_before = len(children())
        clients = [Client(stack, server) for _ in range(-(-in_all // of_client))]
        for number in range(in_all):
            clients[number // of_client].open(name, number)
        with raises(grpc.RpcError, reason=Reason.TOO_MANY_CALLS):
            clients[0].open(name, in_all)
        newcomer = Client(stack, server)
        newcomer.open(name, in_all + 1)
        first = clients[0].calls[0]
        assert end_of(first) == (grpc.StatusCode.UNAVAILABLE, "CALL_TOO_LONG")
        assert all(call.is_active() for client in clients for call in client.calls if call is not first)
        assert newcomer.calls[0].is_active()
        assert len(children()) - num_before <= (in_all + 1 if name in SLOW else 0)


def test_connections_are_rejected_over_their_limit(tmp_path: Path) -> None:
    with serving(tmp_path, *BIG, "--max-connections", "2") as (server, sampler):
        with careless(server) as channel, careless(server) as another:
            begin(channel, "ObtainSamples", ENDLESS)
            assert refusal(another, "ObtainSamples", ENDLESS)[0] is grpc.StatusCode.UNAVAILABLE
            assert answers(sampler)
        with rollserve.connect(server.address) as other:
            assert soon(lambda: answers(other))


def test_sampling_request_is_rejected_over_4_mib(running: Serving) -> None:
    server, sampler = running
    with careless(server) as channel:
        begin(channel, "ObtainSamples", padded(ENDLESS, 3 << 20)).cancel()
        expected = grpc.StatusCode.RESOURCE_EXHAUSTED, "REQUEST_TOO_LARGE"
        assert refusal(channel, "ObtainSamples", padded(ENDLESS, 5 << 20)) == expected
        assert answers(sampler)


def test_compressed_requests_take_bounded_memory(running: Serving) -> None:
    """128 KiB on the wire, and 128 MiB before their compression."""
    server, sampler = running
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    with careless(server) as channel:
        for path in (f"{SERVICE}/ObtainSamples", f"{SERVICE}/UpdateAgent", "/grpc.health.v1.Health/Check"):
            with raises(grpc.RpcError, reason=Reason.REQUEST_TOO_LARGE) as caught:
                channel.unary_unary(path)(bytes(128 << 20), compression=grpc.Compression.Gzip)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert process.memory_info().rss - before < 64 << 20  # a server keeps the memory that it once used
    assert answers(sampler)


def test_requests_compressed_by_gzip_are_answered_up_to_4_mib(running: Serving) -> None:
    server, _ = running
    with careless(server) as channel:
        sample, update = channel.unary_stream(f"{SERVICE}/ObtainSamples"), channel.unary_unary(f"{SERVICE}/UpdateAgent")
        agent = pb.UpdateAgentRequest()
        agent.all_workers.agent.random.SetInParent()
        version = pb.UpdateAgentResponse.FromString(
            update(agent.SerializeToString(), compression=grpc.Compression.Gzip)
        ).policy_version
        request = padded(pb.ObtainSamplesRequest(step_count=1), 3 << 20)
        first, *_ = sample(request, compression=grpc.Compression.Gzip)
        assert pb.ObtainSamplesResponse.FromString(first).beginning.policy_version == version
        with pytest.raises(grpc.RpcError) as caught:
            update(agent.SerializeToString(), compression=grpc.Compression.Deflate)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"x", lambda data: data[:9] + b"x"])
def test_malformed_gzip_is_rejected(running: Serving, change: Callable[[bytes], bytes]) -> None:
    server, _ = running
    with careless(server) as channel:
        data = change(gzip.compress(ENDLESS.SerializeToString()))
        assert refusal(channel, "ObtainSamples", data) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_VALUE")


def test_unsent_requests_block_no_other_connection(running: Serving) -> None:
    server, sampler = running
    never = threading.Event()

    def nothing() -> Iterator[bytes]:
        never.wait()
        yield from ()

    before = sampler.status().policy_version
    with careless(server) as channel:
        names = ["ObtainSamples"] * 12 + ["UpdateAgent"] * 12
        calls = [channel.stream_stream(f"{SERVICE}/{name}")(nothing()) for name in names]
        try:
            time.sleep(0.5)  # time for them to arrive
            assert sampler.status(timeout=4).policy_version == before
            assert sampler.update_agent(rollserve.RandomAgent(), timeout=20) == before + 1
        finally:
            never.set()
            for call in calls:
                call.cancel()


def test_updates_are_rejected_with_too_many_fields_or_too_long_a_text(running: Serving) -> None:
    server, sampler = running
    with careless(server) as channel:
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


async def test_env_updates_are_rejected_over_2_mib_of_all_rows() -> None:
    """The size of an environment counts once for each row of each worker."""
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


async def test_env_update_by_row_on_one_worker_counts_the_rows_of_all_workers() -> None:
    env = rollserve.EnvSpec("CartPole-v1", vectorization="rows", num_rows=64)
    large = dataclasses.replace(env, reset_options={"large": "x" * (100 << 10)})
    async with pool_of(InProcessBackend(), env, workers=2) as pool:
        await pool.update_env([env, large], per_worker=True)
        with raises(OverLimitError, reason=Reason.ENVIRONMENTS_TOO_LARGE):
            await pool.update_env([RowUpdates((None,) * 64), large], per_worker=True)
        await pool.update_env([RowUpdates((None,) * 64), env], per_worker=True)


def test_resize_is_rejected_over_2_mib_of_environments(running: Serving) -> None:
    _, sampler = running
    env = rollserve.EnvSpec("CartPole-v1", reset_options={"large": "x" * (600 << 10)})
    sampler.update_env([env, env])
    with raises(rollserve.LimitError, field="worker_count", reason=Reason.ENVIRONMENTS_TOO_LARGE):
        sampler.resize(2)
    status = sampler.status()
    assert (status.num_workers, len(status.envs)) == (1, 2)
    sampler.update_env(env)  # an environment of all rows is listed once
    assert sampler.resize(4) == 1


def test_env_update_is_rejected_over_1_mib_of_spaces(running: Serving) -> None:
    """Bounds of 4 bytes for each element; one bound that all elements share takes no room."""
    server, sampler = running
    env = rollserve.EnvSpec("sample_envs:OwnBounds", {"size": 260_000})
    before = sampler.update_env(env)
    with raises(rollserve.LimitError, field="all_workers.environment.id", reason=Reason.ENVIRONMENTS_TOO_LARGE):
        sampler.update_env(dataclasses.replace(env, kwargs={"size": 263_000}))
    with raises(rollserve.LimitError, field="options.environment.id", reason=Reason.ENVIRONMENTS_TOO_LARGE):
        sampler.evaluate(1, env=dataclasses.replace(env, kwargs={"size": 263_000}))
    with rollserve.connect(server.address, max_message_bytes=4 << 20) as other:  # gRPC's default
        status = other.status()
    assert status.env_version == before.env_version
    assert isinstance(status.observation_space, rollserve.spaces.Box)
    assert status.observation_space.high[-1] == 260_000


def message_of(status: PoolStatus) -> pb.GetSamplerResponse:
    sampler = Sampler("default", cast(Pool, None), Quota(), created_seconds=0.0)
    return status_to_proto(sampler, status, PrivateArguments(CARTPOLE), with_processes=True)


async def test_status_truncates_the_last_failure_of_a_worker() -> None:
    async with pool_of(InProcessBackend()) as pool:
        status = pool.status()
        worker = dataclasses.replace(status.workers[0], last_failure="é" * 100_000)
        message = message_of(dataclasses.replace(status, workers=[worker]))
        assert message.workers[0].last_failure == "é" * 999 + "…"
        # Beside 3 MiB of environments and spaces, all workers have room in a message that clients take by default.
        message = message_of(dataclasses.replace(status, workers=[worker] * 10_000))
        assert len(message.workers) == 10_000
        assert message.ByteSize() < 1 << 20


def test_unread_sampler_statuses_take_bounded_memory(running: Serving) -> None:
    """A connection has 2 answers in flight and 64 waiting calls; an answer unread for 5 s makes room for the next."""
    server, sampler = running
    env = rollserve.EnvSpec("CartPole-v1", reset_options={"large": "x" * (1000 << 10)})
    sampler.update_env([env, env])
    sampler.status()
    process = psutil.Process(server.process.pid)
    with contextlib.ExitStack() as stack:
        before = most = process.memory_info().rss
        channels = [stack.enter_context(careless(server, takes_nothing=True)) for _ in range(4)]
        calls = [channel.unary_stream(f"{SERVICE}/GetSampler")(b"") for channel in channels for _ in range(80)]
        with concurrent.futures.ThreadPoolExecutor(len(calls)) as executor:
            waiting = executor.submit(soon, lambda: waits_for_room(sampler))
            while not waiting.done():
                most = max(most, process.memory_info().rss)
                time.sleep(0.1)
            assert waiting.result()
            assert most - before < 150 << 20  # all answers together have 640 MB
            ends = set(executor.map(end_of, calls))
    assert ends == {
        (grpc.StatusCode.OK, ""),
        (grpc.StatusCode.UNAVAILABLE, "CLIENT_STALLED"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_CALLS"),
    }


def waits_for_room(sampler: rollserve.Sampler) -> bool:
    """Whether the sampler's status comes only after another answer has made room."""
    began = time.monotonic()
    assert len(sampler.status(timeout=60).envs) == 2
    return time.monotonic() - began > 2


def test_evaluations_are_rejected_over_the_bytes_of_running_requests(tmp_path: Path) -> None:
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
    """gRPC's side of a call whose client reads nothing until `reads` is set."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.codes: list[object] = []

    def peer(self) -> str:
        return "somebody"

    async def send_initial_metadata(self, _: object) -> None: ...

    async def write(self, _: bytes) -> None:
        await self.reads.wait()

    async def abort(self, code: object, *_: object, **__: object) -> None:
        self.codes.append(code)
        await self.reads.wait()
        raise grpc.aio.AbortError


async def test_streams_are_rejected_over_the_unread_bytes_of_ended_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC frees these bytes when the client reads them, or disconnects."""
    monkeypatch.setattr(open_rpcs, "_MAX_UNREAD_BYTES", 100)
    rpcs, context = open_rpcs.OpenRpcs(0.01, Places("RPCs", 9), Metrics({})), _Context()
    handler = rpcs.stream_handler("ObtainSamples", lambda rpc: rpc.write(bytes(60)))

    async def call() -> None:
        with contextlib.suppress(grpc.aio.AbortError):
            await handler.stream_stream(None, context)

    calls = [asyncio.create_task(call()) for _ in range(2)]
    await asyncio.sleep(0.2)
    with raises(OverLimitError, reason=Reason.TOO_MANY_STALLED_CALLS, match=r"\b120\b"):
        rpcs.check_unread()
    context.reads.set()
    await asyncio.gather(*calls)
    rpcs.check_unread()


async def test_rpc_can_be_ended_while_it_ends() -> None:
    rpcs, context = open_rpcs.OpenRpcs(0.01, Places("RPCs", 9), Metrics({})), _Context()
    context.reads.set()

    async def respond(rpc: Any) -> NoReturn:
        try:
            with rpc.waiting_for_client():
                await asyncio.sleep(5)
        finally:
            rpcs.end(StoppingError("now"))
        raise AssertionError("the client stalls")

    with contextlib.suppress(grpc.aio.AbortError):
        await rpcs.unary_handler("UpdateAgent", respond).stream_unary(None, context)
    assert context.codes == [grpc.StatusCode.UNAVAILABLE]
