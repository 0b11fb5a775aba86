"""Fragments through the server: the client's calls, broken streams, the command line."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest
from commands import run_here
from cutting_proxy import cutting_proxy
from pools import adds_up
from support import equal, raises

import rollserve
from rollserve.episode_batch import StepType
from rollserve_server.local import LocalServer
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub


@pytest.fixture(scope="module")
def server(ray_server: LocalServer) -> LocalServer:
    """The server on Ray, whose workers' results pass through its object store."""
    return ray_server


def test_fragments_join_to_episodes(sampler: rollserve.Sampler) -> None:
    parts = [sampler.obtain_fragments(80) for _ in range(8)]
    for number, part in enumerate(parts):
        assert part.num_steps == 80
        assert part.account.row_step_count == 10 * number
        assert part.account.num_episodes == int((part.terminated | part.truncated).sum())
        starts = np.cumsum(part.lengths) - part.lengths
        first = part.step_types[starts] == StepType.FIRST
        assert np.array_equal(first, (part.first_steps == 0) & ~((part.lengths == 1) & part.terminated))
        cut = ~(part.terminated | part.truncated)
        ends = part.step_types[starts + part.lengths - 1]
        assert (ends[cut & (part.lengths > 1)] == StepType.MID).all()
    whole = rollserve.EpisodeBatch.concatenate(*parts)
    order = np.lexsort((whole.first_steps, whole.episode_indices))
    segments = whole.split()
    episodes = rollserve.EpisodeBatch.concatenate(*(segments[position] for position in order)).joined()
    assert len(set(episodes.episode_indices.tolist())) == len(episodes)
    assert not episodes.first_steps.any()


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_broken_stream_is_resumed(sampler: rollserve.Sampler, server: LocalServer, seed: int) -> None:
    """Some streams break after the last step and before the account."""
    expected = [sampler.obtain_fragments(4000, seed=3), sampler.obtain_fragments(2000, seed=3, row_step_count=500)]
    with (
        cutting_proxy(server.address, num_cuts=4, max_bytes=175_000, seed=seed) as proxy,
        rollserve.connect(proxy.address, max_message_bytes=20_000) as distant,
    ):
        distant.status()
        first = distant.obtain_fragments(4000, seed=3)
        second = distant.obtain_fragments(2000, seed=3, row_step_count=500)
        assert proxy.num_cuts > 0
    for batch, expected_batch in zip((first, second), expected, strict=True):
        assert equal(batch, expected_batch)
        account = batch.account
        assert (account.num_steps, account.num_episodes) == (
            batch.num_steps,
            int((batch.terminated | batch.truncated).sum()),
        )
        assert adds_up(account)
    assert first.account.num_resumptions > 0


def test_broken_stream_without_a_seed_is_resumed(sampler: rollserve.Sampler, server: LocalServer) -> None:
    with (
        cutting_proxy(server.address, num_cuts=3, max_bytes=375_000, seed=5) as proxy,
        rollserve.connect(proxy.address, max_message_bytes=20_000) as distant,
    ):
        distant.status()
        batches = [distant.obtain_fragments(4000) for _ in range(4)]
        assert proxy.num_cuts > 0
    seeds = {batch.account.seed for batch in batches if batch.account_or_none is not None}
    assert len(seeds) == 1
    (seed,) = seeds
    for number, batch in enumerate(batches):
        assert batch.account.row_step_count == 500 * number
        again = sampler.obtain_fragments(4000, seed=seed, row_step_count=500 * number or None)
        assert equal(batch, again)


async def test_broken_stream_of_the_async_client_is_resumed(sampler: rollserve.Sampler, server: LocalServer) -> None:
    options: dict[str, Any] = {"seed": 3, "soft_horizon": True, "max_episode_length": 15}
    expected = sampler.obtain_fragments(12_000, **options)
    with cutting_proxy(server.address, num_cuts=3, max_bytes=500_000, seed=2) as proxy:
        async with rollserve.aconnect(proxy.address, max_message_bytes=20_000) as distant:
            await distant.status()
            batch = await distant.obtain_fragments(12_000, **options)
    assert equal(batch, expected)
    assert batch.account.num_resumptions > 0


def test_beginning_names_rows_and_row_step_count(sampler: rollserve.Sampler, server: LocalServer) -> None:
    with grpc.insecure_channel(server.address) as channel:
        stub = SamplerServiceStub(channel)
        for number in range(2):
            request = pb.ObtainSamplesRequest(step_count=16, fragments=pb.Fragments())
            first, *_, last = stub.ObtainSamples(request)
            assert (first.beginning.row_count, first.beginning.row_step_count) == (8, 2 * number)
            assert last.account.row_step_count == 2 * number
        first, *_ = stub.ObtainSamples(pb.ObtainSamplesRequest(step_count=16))
        assert (first.beginning.row_count, first.beginning.row_step_count) == (0, 0)
        # All steps are skipped, so that only the account is left.
        options = pb.SamplingOptions(seed=5)
        request = pb.ObtainSamplesRequest(step_count=16, options=options, fragments=pb.Fragments(skip_step_count=16))
        contents = [response.WhichOneof("content") for response in stub.ObtainSamples(request)]
        assert contents == ["beginning", "account"]


def test_invalid_argument_is_rejected(sampler: rollserve.Sampler) -> None:
    with raises(TypeError, field="soft_horizon"):
        sampler.obtain_fragments(8, soft_horizon=1)  # type: ignore[arg-type]
    with raises(rollserve.InvalidArgumentError, field="row_step_count"):
        sampler.obtain_fragments(8, seed=1, row_step_count=-1)
    with raises(rollserve.PreconditionError, field="fragments.row_step_count", reason=rollserve.Reason.ROW_STEP_COUNT):
        sampler.obtain_fragments(8, seed=1, row_step_count=3)


def test_command_line_samples_fragments(sampler: rollserve.Sampler, server: LocalServer) -> None:
    shown = run_here("sample", server.address, "--steps", "80", "--fragments", "--seed", "4")
    assert shown.returncode == 0, shown.stderr
    assert "fragments of episodes" in shown.stdout
    assert ", 80 steps in " in shown.stdout
    refused = run_here("sample", server.address, "--steps", "81", "--fragments")
    assert refused.returncode == 1
    assert ": step_count: " in refused.stderr
