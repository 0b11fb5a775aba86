"""Broken streams that are resumed deliver the same steps as unbroken ones."""

from __future__ import annotations

import time
from collections.abc import Callable

import grpc
import numpy as np
import pytest
from cutting_proxy import cutting_proxy
from pools import adds_up
from support import equal, raises

import rollserve
from rollserve._calls.resumption import Backoff
from rollserve.v1 import sampler_service_pb2 as pb
from rollserve.v1.sampler_service_pb2_grpc import SamplerServiceStub
from rollserve_server.local import LocalServer

CALLS: dict[str, Callable[[rollserve.Sampler], rollserve.EpisodeBatch]] = {
    "at least": lambda sampler: sampler.obtain_samples(24_000, seed=3, first_episode_index=5),
    "exactly": lambda sampler: sampler.obtain_exact_episodes(280, seed=3),
    "of blocks": lambda sampler: sampler.obtain_samples(24_000, seed=3, first_episode_index=5),
    "exactly of blocks": lambda sampler: sampler.obtain_exact_episodes(280, seed=3),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4))])
def test_broken_stream_is_resumed(sampler: rollserve.Sampler, server: LocalServer, call: str, seed: int) -> None:
    if call.endswith("of blocks"):
        sampler.update_env(rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=8, num_episodes_per_row=4))
    expected = CALLS[call](sampler)
    with (
        cutting_proxy(server.address, num_cuts=4, max_bytes=600_000, seed=seed) as proxy,
        rollserve.connect(proxy.address) as distant,
    ):
        distant.status()
        batch = CALLS[call](distant)
        # The batch may be complete before the last cuts.
        assert proxy.num_cuts > 0
    assert equal(batch, expected)
    account = batch.account
    assert account is not None
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
    expected = sampler.obtain_samples(60_000, seed=3)
    agents = [rollserve.RandomAgent(), rollserve.RandomAgent()]
    with (
        cutting_proxy(server.address, num_cuts=1, max_bytes=800_000, seed=0) as proxy,
        rollserve.connect(proxy.address) as distant,
    ):
        version = sampler.status().policy_version
        with distant.stream_samples(60_000, seed=3, expected_policy_version=version) as stream:
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
    expected = sampler.obtain_samples(60_000, seed=3)
    with cutting_proxy(server.address, num_cuts=3, max_bytes=1_500_000, seed=2) as proxy:
        async with rollserve.aconnect(proxy.address) as distant:
            await distant.status()
            batch = await distant.obtain_samples(60_000, seed=3)
    assert equal(batch, expected)
    assert batch.account is not None
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


def test_backoff_ignores_time_before_the_first_failure() -> None:
    backoff = Backoff(patience_seconds=0.3)
    for _ in range(2):
        time.sleep(0.4)
        assert backoff.next_seconds() is not None
        time.sleep(0.4)
        assert backoff.next_seconds() is None
        backoff.succeed()
