"""Results of any size are streamed in messages that gRPC clients accept by default."""

from __future__ import annotations

import gc
import itertools
import threading
import time

import grpc
import numpy as np
import pytest
from cutting_proxy import cutting_proxy
from support import batch_from_proto, raises, silent_address

import rollserve
from rollserve_server.local import LocalServer
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub

DEFAULT_LIMIT = 4 << 20


@pytest.fixture(scope="module")
def server(ray_server: LocalServer) -> LocalServer:
    """The server on Ray, whose workers' results pass through its object store."""
    return ray_server


def test_episode_of_200_mb_is_streamed_in_small_messages(sampler: rollserve.Sampler, stub: SamplerServiceStub) -> None:
    sampler.update_env("sample_envs:Big", kwargs={"observation_bytes": 1 << 20, "length": 200})
    sampler.update_agent(rollserve.RandomAgent())

    responses = list(stub.ObtainSamples(pb.ObtainSamplesRequest(step_count=1)))

    assert [response.WhichOneof("content") for response in responses[-2:]] == ["batch", "account"]
    assert all(response.ByteSize() <= DEFAULT_LIMIT for response in responses)
    batches = [batch_from_proto(r.batch) for r in responses if r.WhichOneof("content") == "batch"]
    assert len(batches) > 50
    # Each message is complete in itself: the last observation of one is the first of the next.
    for one, following in itertools.pairwise(batches):
        assert np.array_equal(one.last_observations[-1], following.observations[0])
        assert not (one.terminated | one.truncated)[-1]
    # All 200 steps are delivered in order, each observation filled with its number.
    first = np.concatenate([batch.observations[:, 0] for batch in batches])
    assert first.tolist() == [step % 251 for step in range(200)]
    assert batches[-1].truncated.tolist() == [True]
    assert batches[-1].last_observations[0, 0] == 200
    account = responses[-1].account
    assert (account.step_count, account.episode_count) == (200, 1)


def test_episode_of_many_messages_is_joined(sampler: rollserve.Sampler) -> None:
    sampler.update_env("sample_envs:Big", kwargs={"observation_bytes": 1 << 20, "length": 40})
    sampler.update_agent(rollserve.RandomAgent())
    batch = sampler.obtain_samples(41)
    assert batch.lengths.tolist() == [40, 40]
    assert batch.first_steps.tolist() == [0, 0]
    assert batch.truncated.all()
    assert np.array_equal(batch.observations[:, -1], np.tile(np.arange(40), 2))
    assert np.array_equal(batch.last_observations[:, -1], [40, 40])
    assert batch.observations.flags.writeable


@pytest.mark.parametrize(("limit", "num_steps"), [(4096, 2000), (20_000, 4000), (300_000, 12_000), (16 << 20, 12_000)])
def test_messages_stay_below_the_limit(
    sampler: rollserve.Sampler, server: LocalServer, limit: int, num_steps: int
) -> None:
    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(server.address, options=options) as channel:
        request = pb.ObtainSamplesRequest(
            step_count=num_steps, options=pb.SamplingOptions(max_message_bytes=limit, seed=1)
        )
        responses = list(SamplerServiceStub(channel).ObtainSamples(request))
    sizes = [response.ByteSize() for response in responses]
    assert max(sizes) <= limit
    assert limit > 300_000 or sum(sizes) > limit  # so that one message would be too large
    with rollserve.connect(server.address, max_message_bytes=limit) as limited:
        batch = limited.obtain_samples(num_steps, seed=1)
    expected = sampler.obtain_samples(num_steps, seed=1)
    assert np.array_equal(batch.observations, expected.observations)
    assert np.array_equal(batch.agent_infos["logits"], expected.agent_infos["logits"])


def test_stream_yields_the_batch_message_by_message(sampler: rollserve.Sampler, server: LocalServer) -> None:
    with (
        rollserve.connect(server.address, max_message_bytes=20_000) as connected,
        connected.stream_samples(3000, seed=2) as stream,
    ):
        parts = list(stream)
        account = stream.end()
    assert len(parts) > 1
    batch = rollserve.EpisodeBatch.concatenate(*parts).joined()
    assert (len(batch), batch.num_steps) == (account.num_episodes, account.num_steps)
    assert np.array_equal(batch.rewards, sampler.obtain_samples(3000, seed=2).rewards)


def test_call_is_cancelled_when_its_stream_is_left(sampler: rollserve.Sampler) -> None:
    sampler.update_env("sample_envs:Slow", kwargs={"step_seconds": 0.02, "length": 5})
    sampler.update_agent(rollserve.RandomAgent())
    before = sampler.status().counters
    with sampler.stream_samples(100_000) as stream:
        next(stream)
    batch = sampler.obtain_samples(10, timeout=10)
    assert batch.lengths.tolist() == [5, 5]
    after = sampler.status().counters
    assert after.num_cancelled_calls == before.num_cancelled_calls + 1
    assert after.num_completed_calls == before.num_completed_calls + 1
    assert batch.account.num_dropped_steps > 0


def test_progress_keeps_a_long_call_alive(sampler: rollserve.Sampler) -> None:
    sampler.update_env("sample_envs:Slow", kwargs={"step_seconds": 0.05, "length": 100})
    sampler.update_agent(rollserve.RandomAgent())
    # Nothing is delivered for 5 s, but progress messages report steps.
    batch = sampler.obtain_samples(1, timeout=4)
    assert batch.lengths.tolist() == [100]


def test_timeout_and_deadline_end_a_call(sampler: rollserve.Sampler) -> None:
    sampler.update_env("sample_envs:Slow", kwargs={"step_seconds": 1.0, "length": 1})
    sampler.update_agent(rollserve.RandomAgent())
    with raises(rollserve.DeadlineError, reason=rollserve.Reason.NO_PROGRESS, quotes="0.5 s"):
        sampler.obtain_samples(1, timeout=0.5)
    with raises(rollserve.DeadlineError, reason="", match=r"^deadline: .*0\.5 s"):
        sampler.obtain_samples(1, deadline=0.5)
    with (
        silent_address() as address,
        rollserve.connect(address, timeout=0.5) as silent,
        raises(rollserve.DeadlineError, reason="", match=r"^timeout: .*0\.5 s"),
    ):
        silent.status()


@pytest.mark.parametrize("timeout", [float("inf"), 1e300])
def test_time_limits_may_be_infinite(server: LocalServer, sampler: rollserve.Sampler, timeout: float) -> None:
    with rollserve.connect(server.address, timeout=timeout) as unlimited:
        assert unlimited.update_agent(rollserve.RandomAgent()) == unlimited.status(timeout=timeout).policy_version
        assert unlimited.obtain_samples(100, deadline=timeout).num_steps >= 100


def test_close_ends_calls_and_rejects_later_ones(server: LocalServer, sampler: rollserve.Sampler) -> None:
    sampler.update_env("sample_envs:Slow", kwargs={"step_seconds": 0.1, "length": 1000})
    sampler.update_agent(rollserve.RandomAgent())
    other = rollserve.connect(server.address)
    with other.stream_samples(1) as stream:
        threading.Timer(0.3, stream.close).start()
        with raises(rollserve.CancelledError, quotes="stream"):
            next(stream)
        with raises(rollserve.CancelledError, quotes="stream"):
            next(stream)
    threading.Timer(0.3, other.close).start()
    with pytest.raises(rollserve.CancelledError):
        other.obtain_samples(1)
    for call in (other.status, lambda: other.obtain_samples(1), lambda: other.stream_exact_episodes(1)):
        with raises(rollserve.CancelledError, quotes="sampler"):
            call()


def test_closed_stream_is_not_resumed(sampler: rollserve.Sampler, server: LocalServer) -> None:
    with (
        cutting_proxy(server.address, num_cuts=10**6, max_bytes=800_000, seed=0) as proxy,
        rollserve.connect(proxy.address) as distant,
        distant.stream_samples(100_000_000, seed=3) as stream,
    ):
        threading.Timer(1, stream.close).start()
        with raises(rollserve.CancelledError, quotes="stream"):
            for _ in stream:
                pass


def test_abandoned_stream_is_cancelled(sampler: rollserve.Sampler) -> None:
    sampler.update_env("sample_envs:Slow", kwargs={"step_seconds": 0.02, "length": 5})
    sampler.update_agent(rollserve.RandomAgent())
    before = sampler.status().counters.num_cancelled_calls
    for _ in sampler.stream_samples(100_000):
        break
    gc.collect()
    for _ in range(100):
        if sampler.status().counters.num_cancelled_calls > before:
            break
        time.sleep(0.05)
    assert sampler.status().counters.num_cancelled_calls == before + 1
