"""Clients that read nothing, or send nothing: they block nobody else, and take no more than their share."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from pathlib import Path

import grpc
import psutil
import pytest
from cutting_proxy import cutting_proxy
from pools import until
from raw_calls import BIG, FOREVER, SERVICE, begin, careless, end_of, serving, soon
from support import equal, raises

import rollserve
from rollserve import Reason
from rollserve_server.admission import Admission
from rollserve_server.errors import DomainError, OverLimitError, StoppingError
from rollserve_wire.v1 import agent_versions_pb2, evaluation_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb


def begin_to_sample(channel: grpc.Channel, seed: int, *, blackhole: bool = False) -> grpc.Call:
    options = pb.SamplingOptions(seed=seed, max_message_bytes=1 << 20, blackhole=blackhole)
    return begin(channel, "ObtainSamples", pb.ObtainSamplesRequest(step_count=FOREVER, options=options))


def test_stalled_calls_give_their_turns_to_others(tmp_path: Path) -> None:
    with serving(tmp_path, *BIG, "--max-calls", "2") as (server, sampler), careless(server) as channel:
        stuck = [begin_to_sample(channel, seed) for seed in range(2)]
        assert sampler.obtain_samples(10, timeout=20).num_steps >= 10
        # A stalled call goes on as soon as its client reads.
        received = sum(len(next(stuck[0])) for _ in range(30))
        assert received > 20 << 20
        for call in stuck:
            call.cancel()
        assert sampler.status().counters.num_failed_calls == 0


def test_call_stalled_longest_is_ended_to_make_room(tmp_path: Path) -> None:
    options = ("--max-calls", "1", "--max-stalled-calls", "1")
    with serving(tmp_path, *BIG, *options) as (server, sampler), careless(server) as channel:
        first = begin_to_sample(channel, 1)
        second = begin_to_sample(channel, 2)
        assert sampler.obtain_samples(10, timeout=20).num_steps >= 10
        assert end_of(first) == (grpc.StatusCode.UNAVAILABLE, "CLIENT_STALLED")
        assert next(second)
        second.cancel()


@pytest.mark.slow
def test_stream_resumes_after_its_call_was_ended_as_stalled(tmp_path: Path) -> None:
    with serving(tmp_path, *BIG, "--client-stall-seconds", "1", "--max-calls", "1") as (
        server,
        sampler,
    ):
        options = {"seed": 5, "first_episode_index": 0}
        expected = sampler.obtain_samples(300, **options)
        with careless(server) as channel:
            raw = begin_to_sample(channel, 1)
            with rollserve.connect(server.address, max_message_bytes=1 << 20) as other:
                stream = other.stream_samples(300, **options)
                parts = [next(stream)]
                assert soon(lambda: sampler.status().counters.num_cancelled_calls >= 2)
                batch = rollserve.EpisodeBatch.concatenate(*parts, *stream).joined()
                assert stream.end().num_resumptions > 0
            assert end_of(raw) == (grpc.StatusCode.UNAVAILABLE, "CLIENT_STALLED")
        assert equal(batch, expected)


def test_client_that_never_read_learns_that_its_call_was_ended(tmp_path: Path) -> None:
    with (
        serving(tmp_path, *BIG, "--client-stall-seconds", "1") as (server, sampler),
        careless(server, takes_nothing=True) as channel,
    ):
        data = pb.ObtainSamplesRequest(step_count=FOREVER).SerializeToString()
        call = channel.unary_stream(f"{SERVICE}/ObtainSamples")(data, timeout=60)
        assert soon(lambda: sampler.status().counters.num_cancelled_calls >= 1)
        assert end_of(call) == (grpc.StatusCode.UNAVAILABLE, "CLIENT_STALLED")


def test_client_behind_a_blocked_connection_learns_that_its_calls_were_ended(tmp_path: Path) -> None:
    """Buffers are so full that not even the headers of an answer fit."""
    with (
        serving(tmp_path, *BIG, "--client-stall-seconds", "1") as (server, sampler),
        cutting_proxy(server.address, num_cuts=0, max_bytes=0, seed=0) as proxy,
        careless(proxy, takes_all=True) as channel,
    ):
        stream = begin_to_sample(channel, 1)
        proxy.flows.clear()
        time.sleep(1)  # all buffers on the way are full by then
        begun = [channel.unary_unary(f"{SERVICE}/GetSampler").future(b"", timeout=60) for _ in range(3)]
        watches = [channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=60) for _ in range(3)]
        assert soon(lambda: sampler.status(timeout=20).counters.num_cancelled_calls >= 1)
        time.sleep(2)  # longer than the others may stall
        proxy.flows.set()
        stalled = grpc.StatusCode.UNAVAILABLE, "CLIENT_STALLED"
        assert end_of(stream) == stalled
        assert {end_of(call) for call in watches} == {stalled}
        for call in begun:
            with pytest.raises(grpc.RpcError):
                call.result()
            assert (call.code(), dict(call.trailing_metadata())["rollserve-reason"]) == stalled


def test_clients_that_leave_before_their_answer_log_no_error(tmp_path: Path) -> None:
    with serving(tmp_path, *BIG) as (server, sampler), careless(server) as channel:
        for number in range(320):
            timeout = 0.0005 + 0.0002 * (number % 40)
            call = channel.unary_unary(f"{SERVICE}/GetSampler").future(b"", timeout=timeout)
            with contextlib.suppress(grpc.RpcError):
                call.result()
        assert sampler.status(timeout=20).policy_version == 1


def test_calls_are_rejected_over_the_limit_of_queued_calls(tmp_path: Path) -> None:
    options = ("--max-calls", "1", "--max-stalled-calls", "0", "--max-waiting-calls", "2")
    with serving(tmp_path, *BIG, *options) as (server, sampler), careless(server) as channel:
        running = begin_to_sample(channel, 2, blackhole=True)
        with concurrent.futures.ThreadPoolExecutor(2) as executor:
            queued = list(executor.map(lambda seed: begin_to_sample(channel, seed), range(2)))
        with raises(grpc.RpcError, reason=Reason.TOO_MANY_CALLS):
            begin_to_sample(channel, 2)
        for call in (running, *queued):
            call.cancel()
        assert sampler.obtain_samples(10).num_steps >= 10


def test_unread_streams_of_all_kinds_take_bounded_memory(tmp_path: Path) -> None:
    """The gateway buffers a bounded number of bytes for them, whatever they requested."""
    limits = ("--max-calls", "2", "--gateway-buffer-bytes", str(32 << 20))
    with serving(tmp_path, *BIG, *limits) as (server, sampler):
        status = sampler.status()
        agent = rollserve.MlpAgent.initial(status.observation_space, status.action_space, hidden_sizes=(32,))
        sampler.update_agent(agent)
        sampler.obtain_samples(100)
        process = psutil.Process(server.process.pid)
        before = process.memory_info().rss
        with contextlib.ExitStack() as stack:
            for seed in range(6):
                channel = stack.enter_context(careless(server))
                begin_to_sample(channel, seed)
                episodes = evaluation_pb2.EpisodeDelivery(max_message_bytes=1 << 20)
                options = pb.EvaluationOptions(seed=seed)
                evaluation = pb.EvaluateRequest(options=options, episode_count=1000, episodes=episodes)
                begin(channel, "Evaluate", evaluation)
                begin(channel, "GetAgentParameters", agent_versions_pb2.GetAgentParametersRequest())
            most, grown_at = 0, time.monotonic()
            while time.monotonic() - grown_at < 2:
                if (growth := process.memory_info().rss - before) > most:
                    most, grown_at = growth, time.monotonic()
                assert most < 250 << 20
                time.sleep(0.1)
            assert sampler.status(timeout=20).policy_version == 2


def test_unsent_request_is_ended_to_make_room(tmp_path: Path) -> None:
    options = ("--max-request-bytes", str(32 << 20), "--max-pending-request-bytes", "1", "--client-stall-seconds", "3")
    with serving(tmp_path, *BIG, *options) as (server, sampler), careless(server) as channel:
        given_up = threading.Event()
        update = channel.stream_unary(f"{SERVICE}/UpdateAgent")
        call = update.future(iter(given_up.wait, True))
        time.sleep(0.5)
        assert sampler.status(timeout=2).policy_version == 1  # its own request is received beside it
        assert not call.done()
        assert sampler.update_agent(rollserve.RandomAgent(), timeout=20) == 2
        assert call.code() is grpc.StatusCode.UNAVAILABLE
        given_up.set()


def test_concurrent_large_requests_take_bounded_memory(tmp_path: Path) -> None:
    options = ("--max-request-bytes", str(20 << 20), "--max-pending-request-bytes", "1")
    with serving(tmp_path, *BIG, *options) as (server, sampler), contextlib.ExitStack() as stack:
        process = psutil.Process(server.process.pid)
        before = most = process.memory_info().rss
        request = b"\xff" * (16 << 20)
        calls = []
        for _ in range(16):
            update = stack.enter_context(careless(server)).unary_unary(f"{SERVICE}/UpdateAgent")
            calls.append(update.future(request, timeout=60))
        while not all(call.done() for call in calls):
            most = max(most, process.memory_info().rss)
            time.sleep(0.01)
        assert {call.code() for call in calls} == {grpc.StatusCode.INVALID_ARGUMENT}
        assert most - before < 120 << 20
        assert sampler.status().policy_version == 1


async def test_admission_passes_the_turns_of_stalled_calls_on() -> None:
    admission = Admission(1, 0.01, max_stalled=1, max_waiting=1, patience_seconds=0.05)
    receivers = [Receiver() for _ in range(4)]
    async with contextlib.AsyncExitStack() as stack:
        calls = [await stack.enter_async_context(contextlib.AsyncExitStack()) for _ in receivers]
        await admission.admit(calls[0], receivers[0])
        second = asyncio.create_task(admission.admit(calls[1], receivers[1]))
        await asyncio.sleep(0.1)
        assert not second.done()
        with raises(OverLimitError, reason=Reason.TOO_MANY_CALLS):
            async with contextlib.AsyncExitStack() as too_many:
                await admission.admit(too_many, receivers[2])
        receivers[0].stalled_since = time.monotonic()
        await asyncio.wait_for(second, 60)
        third = asyncio.create_task(admission.admit(calls[2], receivers[2]))
        await asyncio.sleep(0.1)
        receivers[1].stalled_since = time.monotonic()
        await until(lambda: receivers[0].error is not None)
        assert not third.done()
        assert receivers[1].error is None
        receivers[0].stalled_since = None  # the call runs again, so that none is ended
        await calls[0].aclose()
        await asyncio.wait_for(third, 60)
        fourth = asyncio.create_task(admission.admit(calls[3], receivers[3]))
        await asyncio.sleep(0.1)
        admission.refuse(StoppingError("now"))
        for refused in (fourth, admission.admit(calls[0], receivers[0])):
            with pytest.raises(StoppingError, match="now"):
                await refused


class Receiver:
    """The part of a call that admission sees."""

    def __init__(self) -> None:
        self.peer, self.charged_to = "", ("",)
        self.stalled_since: float | None = None
        self.error: DomainError | None = None

    def end(self, error: DomainError) -> None:
        self.error = error
