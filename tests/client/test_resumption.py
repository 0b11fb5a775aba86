"""Broken streams that are resumed deliver the same steps as unbroken ones."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from cutting_proxy import cutting_proxy
from pools import adds_up
from scripted_server import abort, scripted_server
from support import equal, raises

import rollserve
from rollserve_server.local import LocalServer
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.episode_batch_pb2 import Progress
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub

CALLS: dict[str, Callable[[rollserve.Sampler], rollserve.EpisodeBatch]] = {
    "at least": lambda sampler: sampler.obtain_samples(6000, seed=3, first_episode_index=5),
    "exactly": lambda sampler: sampler.obtain_exact_episodes(70, seed=3),
    "of blocks": lambda sampler: sampler.obtain_samples(6000, seed=3, first_episode_index=5),
    "exactly of blocks": lambda sampler: sampler.obtain_exact_episodes(70, seed=3),
}


@pytest.fixture(scope="module")
def server(ray_server: LocalServer) -> LocalServer:
    """The server on Ray, whose workers' results pass through its object store."""
    return ray_server


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4))])
def test_broken_stream_is_resumed(sampler: rollserve.Sampler, server: LocalServer, call: str, seed: int) -> None:
    if call.endswith("of blocks"):
        sampler.update_env(rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=8, num_episodes_per_row=4))
    expected = CALLS[call](sampler)
    with (
        cutting_proxy(server.address, num_cuts=4, max_bytes=150_000, seed=seed) as proxy,
        rollserve.connect(proxy.address, max_message_bytes=20_000) as distant,
    ):
        distant.status()
        batch = CALLS[call](distant)
        # The batch may be complete before the last cuts.
        assert proxy.num_cuts > 0
    assert equal(batch, expected)
    account = batch.account
    assert 0 < account.num_resumptions <= proxy.num_cuts
    assert (account.num_episodes, account.num_steps) == (len(batch), batch.num_steps)
    assert account.first_episode_index == batch.episode_indices[0]
    assert adds_up(account)


def test_broken_stream_is_resumed_within_an_episode(sampler: rollserve.Sampler, server: LocalServer) -> None:
    sampler.update_env("sample_envs:Big", kwargs={"observation_bytes": 1 << 18, "length": 100})
    sampler.update_agent(rollserve.RandomAgent())
    with (
        cutting_proxy(server.address, num_cuts=5, max_bytes=20 << 20, seed=1) as proxy,
        rollserve.connect(proxy.address) as distant,
        distant.stream_samples(150, seed=1) as stream,
    ):
        parts = list(stream)
        account = stream.end()
    assert account.num_resumptions > 1
    steps = [int(step) for part in parts for step in part.observations[:, 0]]
    assert steps == [*range(100)] * 2
    batch = rollserve.EpisodeBatch.concatenate(*parts).joined()
    assert batch.lengths.tolist() == [100, 100]
    assert batch.first_steps.tolist() == [0, 0]


def test_resumed_stream_keeps_its_policy_version(sampler: rollserve.Sampler, server: LocalServer) -> None:
    expected = sampler.obtain_samples(6000, seed=3)
    agents = [rollserve.RandomAgent(), rollserve.RandomAgent()]
    with (
        cutting_proxy(server.address, num_cuts=1, max_bytes=80_000, seed=0) as proxy,
        rollserve.connect(proxy.address, max_message_bytes=20_000) as distant,
    ):
        version = sampler.status().policy_version
        with distant.stream_samples(6000, seed=3, expected_policy_version=version) as stream:
            parts = [next(stream)]
            for agent in agents:
                sampler.update_agent(agent)
            parts += stream
            account = stream.end()
    assert account.num_resumptions == 1
    assert account.policy_version == version
    batch = rollserve.EpisodeBatch.concatenate(*parts).joined()
    assert np.array_equal(batch.observations, expected.observations)


async def test_broken_stream_of_the_async_client_is_resumed(sampler: rollserve.Sampler, server: LocalServer) -> None:
    expected = sampler.obtain_samples(6000, seed=3)
    with cutting_proxy(server.address, num_cuts=3, max_bytes=150_000, seed=2) as proxy:
        async with rollserve.aconnect(proxy.address, max_message_bytes=20_000) as distant:
            await distant.status()
            batch = await distant.obtain_samples(6000, seed=3)
    assert equal(batch, expected)
    assert batch.account.num_resumptions > 0


def test_stream_that_keeps_breaking_is_unavailable(sampler: rollserve.Sampler, server: LocalServer) -> None:
    with (
        cutting_proxy(server.address, num_cuts=10**6, max_bytes=2000, seed=2) as proxy,
        rollserve.connect(proxy.address) as distant,
        pytest.raises(rollserve.UnavailableError),
    ):
        distant.obtain_samples(60_000, seed=3, timeout=2)


def test_call_of_another_run_is_rejected(sampler: rollserve.Sampler, server: LocalServer) -> None:
    """Versions of another run may have the same numbers and be other agents."""
    with grpc.insecure_channel(server.address) as channel:
        stub = SamplerServiceStub(channel)
        first = next(stub.ObtainSamples(pb.ObtainSamplesRequest(step_count=1)))
        same = pb.SamplingOptions(sampler_run=first.beginning.sampler_run)
        assert list(stub.ObtainSamples(pb.ObtainSamplesRequest(step_count=1, options=same)))
        other = pb.SamplingOptions(sampler_run="another")
        with raises(grpc.RpcError, field="options.sampler_run", reason=rollserve.Reason.SAMPLER_RUN) as caught:
            list(stub.ObtainSamples(pb.ObtainSamplesRequest(step_count=1, options=other)))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


@pytest.fixture(scope="module")
def messages(server: LocalServer) -> list[bytes]:
    """A stream of exact episodes, whose first message behind the beginning ends within an episode."""
    with rollserve.connect(server.address) as sampler:
        sampler.update_env("sample_envs:Big", kwargs={"observation_bytes": 1024, "length": 20})
        sampler.update_agent(rollserve.RandomAgent())
    with grpc.insecure_channel(server.address) as channel:
        options = pb.SamplingOptions(seed=3, max_message_bytes=4096)
        request = pb.ObtainExactEpisodesRequest(episode_count_per_worker=1, options=options)
        responses = list(SamplerServiceStub(channel).ObtainExactEpisodes(request))
    assert not any((*responses[1].batch.terminated, *responses[1].batch.truncated))
    return [response.SerializeToString() for response in responses]


@pytest.fixture(scope="module")
def first_part(messages: list[bytes]) -> list[bytes]:
    """The beginning of the stream, and its first message."""
    return messages[:2]


LOST = "worker 1 was lost and could not be replaced"


def lost() -> Any:
    return raises(rollserve.UnavailableError, reason=rollserve.Reason.WORKER_LOST, quotes=LOST)


def test_time_that_a_client_takes_for_itself_leaves_a_broken_stream_its_patience(messages: list[bytes]) -> None:
    has_rested, calls = threading.Event(), itertools.count()

    def break_once(context: grpc.ServicerContext) -> Iterator[bytes]:
        if next(calls):
            yield from messages
            return
        yield from messages[:2]
        has_rested.wait(20)
        abort(context, rollserve.Reason.WORKER_LOST, LOST)

    with (
        scripted_server(ObtainExactEpisodes=break_once) as address,
        rollserve.connect(address) as sampler,
        sampler.stream_exact_episodes(1, seed=3, timeout=1) as stream,
    ):
        parts = [next(stream)]
        time.sleep(1.2)
        has_rested.set()
        parts += stream
    assert rollserve.EpisodeBatch.concatenate(*parts).joined().lengths.tolist() == [20, 20]
    assert next(calls) == 2


class Repeating:
    """The script of calls that deliver the same part, report progress, and lose the same worker."""

    def __init__(self, first_part: list[bytes]) -> None:
        self._responses = first_part
        self.num_calls = 0

    def __call__(self, context: grpc.ServicerContext) -> Iterator[bytes]:
        self.num_calls += 1
        yield from self._responses
        yield pb.ObtainSamplesResponse(progress=Progress(simulated_step_count=self.num_calls)).SerializeToString()
        abort(context, rollserve.Reason.WORKER_LOST, LOST)


def test_stream_that_delivers_nothing_new_ends_with_the_error_of_the_server(first_part: list[bytes]) -> None:
    script = Repeating(first_part)
    with (
        scripted_server(ObtainExactEpisodes=script) as address,
        rollserve.connect(address) as sampler,
        lost(),
    ):
        sampler.obtain_exact_episodes(1, seed=3, timeout=0.5, deadline=20)
    assert script.num_calls > 1


async def test_async_stream_that_delivers_nothing_new_ends_with_the_error_of_the_server(
    first_part: list[bytes],
) -> None:
    script = Repeating(first_part)
    with scripted_server(ObtainExactEpisodes=script) as address:
        async with rollserve.aconnect(address) as sampler:
            with lost():
                await sampler.obtain_exact_episodes(1, seed=3, timeout=0.5, deadline=20)
    assert script.num_calls > 1


def test_evaluation_that_reports_progress_only_ends_with_the_error_of_the_server(first_part: list[bytes]) -> None:
    script = Repeating(first_part[:1])
    with (
        scripted_server(Evaluate=script) as address,
        rollserve.connect(address) as sampler,
        lost(),
    ):
        sampler.evaluate(1, timeout=0.5, deadline=20)
    assert script.num_calls > 1


def test_deadline_of_an_interrupted_stream_names_the_error_of_the_server(first_part: list[bytes]) -> None:
    script = Repeating(first_part)
    with (
        scripted_server(ObtainExactEpisodes=script) as address,
        rollserve.connect(address) as sampler,
        raises(rollserve.DeadlineError, field="deadline", quotes=LOST) as caught,
    ):
        sampler.obtain_exact_episodes(1, seed=3, timeout=20, deadline=0.5)
    cause = caught.value.__cause__
    assert isinstance(cause, rollserve.UnavailableError)
    assert cause.reason == rollserve.Reason.WORKER_LOST


def test_silence_of_an_interrupted_stream_names_the_error_of_the_server(first_part: list[bytes]) -> None:
    script, silent = Repeating(first_part), threading.Event()

    def fail_once(context: grpc.ServicerContext) -> Iterator[bytes]:
        if script.num_calls:
            silent.wait(20)
            return
        yield from script(context)

    with (
        scripted_server(ObtainExactEpisodes=fail_once) as address,
        rollserve.connect(address) as sampler,
        raises(rollserve.DeadlineError, reason=rollserve.Reason.NO_PROGRESS, quotes=LOST) as caught,
    ):
        try:
            sampler.obtain_exact_episodes(1, seed=3, timeout=0.5)
        finally:
            silent.set()
    assert isinstance(caught.value.__cause__, rollserve.UnavailableError)


@pytest.mark.parametrize(("limit", "field"), [({"timeout": 0.5}, "timeout"), ({"deadline": 0.5}, "deadline")])
def test_late_call_names_the_worker_that_the_server_waits_for(limit: dict[str, float], field: str) -> None:
    over = threading.Event()
    text = "worker 2: no license on this machine"

    def wait(_: grpc.ServicerContext) -> Iterator[bytes]:
        yield pb.ObtainSamplesResponse(progress=Progress(waiting_for=text)).SerializeToString()
        over.wait(20)

    with scripted_server(ObtainSamples=wait) as address, rollserve.connect(address) as sampler:
        try:
            with raises(rollserve.DeadlineError, field=field, quotes=text):
                sampler.obtain_samples(1, **limit)
        finally:
            over.set()
