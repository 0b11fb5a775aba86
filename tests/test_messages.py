"""Results of any size stream in messages that every client takes without any setting."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import grpc
import numpy as np
import pytest

import rollserve
from rollserve.messages import batch_from_proto
from rollserve.v1 import sampler_service_pb2 as pb
from rollserve.v1.sampler_service_pb2_grpc import SamplerServiceStub
from rollserve_server.local import LocalServer

DEFAULT_LIMIT = 4 << 20


@pytest.fixture
def stub(server: LocalServer) -> Iterator[SamplerServiceStub]:
    with grpc.insecure_channel(server.address) as channel:
        yield SamplerServiceStub(channel)


def test_one_episode_of_200_mb(sampler: rollserve.Sampler, stub: SamplerServiceStub) -> None:
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
    # Exactly so many steps of it, in order, each observation full of its number.
    first = np.concatenate([batch.observations[:, 0] for batch in batches])
    assert first.tolist() == [step % 251 for step in range(200)]
    assert batches[-1].truncated.tolist() == [True]
    assert batches[-1].last_observations[0, 0] == 200
    account = responses[-1].account
    assert (account.step_count, account.episode_count) == (200, 1)


def test_joined_it_is_one_episode(sampler: rollserve.Sampler) -> None:
    sampler.update_env("sample_envs:Big", kwargs={"observation_bytes": 1 << 20, "length": 40})
    sampler.update_agent(rollserve.RandomAgent())
    batch = sampler.obtain_samples(41)
    assert batch.lengths.tolist() == [40, 40]
    assert batch.first_steps.tolist() == [0, 0]
    assert batch.truncated.all()
    assert np.array_equal(batch.observations[:, -1], np.tile(np.arange(40), 2))
    assert np.array_equal(batch.last_observations[:, -1], [40, 40])
    assert batch.observations.flags.writeable


@pytest.mark.parametrize("limit", [4096, 20_000, 300_000, 16 << 20])
def test_no_message_exceeds_the_limit(sampler: rollserve.Sampler, server: LocalServer, limit: int) -> None:
    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(server.address, options=options) as channel:
        request = pb.ObtainSamplesRequest(
            step_count=30_000, options=pb.SamplingOptions(max_message_bytes=limit, seed=1)
        )
        responses = list(SamplerServiceStub(channel).ObtainSamples(request))
    sizes = [response.ByteSize() for response in responses]
    assert max(sizes) <= limit
    with rollserve.connect(server.address, max_message_bytes=limit) as limited:
        batch = limited.obtain_samples(30_000, seed=1)
    expected = sampler.obtain_samples(30_000, seed=1)
    assert np.array_equal(batch.observations, expected.observations)
    assert np.array_equal(batch.agent_infos["logits"], expected.agent_infos["logits"])


def test_the_stream_brings_the_same_message_by_message(sampler: rollserve.Sampler) -> None:
    with sampler.stream_samples(20_000, seed=2) as stream:
        parts = list(stream)
        account = stream.end()
    assert len(parts) > 1
    batch = rollserve.EpisodeBatch.concatenate(*parts).joined()
    assert (len(batch), batch.num_steps) == (account.num_episodes, account.num_steps)
    assert np.array_equal(batch.rewards, sampler.obtain_samples(20_000, seed=2).rewards)


def test_leaving_a_stream_early_frees_the_sampler(sampler: rollserve.Sampler) -> None:
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
    assert batch.account is not None
    assert batch.account.num_dropped_steps > 0


def test_a_long_call_tells_of_its_progress(sampler: rollserve.Sampler) -> None:
    sampler.update_env("sample_envs:Slow", kwargs={"step_seconds": 0.05, "length": 100})
    sampler.update_agent(rollserve.RandomAgent())
    # Nothing is delivered for five seconds, but steps are made: it does not count as silence.
    batch = sampler.obtain_samples(1, timeout=4)
    assert batch.lengths.tolist() == [100]


def test_silence_and_deadlines_end_a_call(sampler: rollserve.Sampler) -> None:
    sampler.update_env("sample_envs:Slow", kwargs={"step_seconds": 3.0, "length": 1})
    sampler.update_agent(rollserve.RandomAgent())
    with pytest.raises(rollserve.DeadlineError, match=r"no progress for 0\.5 s") as caught:
        sampler.obtain_samples(1, timeout=0.5)
    assert caught.value.reason == "NO_PROGRESS"
    with pytest.raises(rollserve.DeadlineError):
        sampler.obtain_samples(1, deadline=0.5)
