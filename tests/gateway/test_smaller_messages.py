"""Compressed columns, and frame stacks sent with each frame once, decode to the same batches."""

from __future__ import annotations

import itertools
from typing import Any
from unittest import mock

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import batch_from_proto, equal

import rollserve
from rollserve_server.local import LocalServer
from rollserve_server.sampling import ColumnFormat
from rollserve_server.sampling.encode.encoder import Encoder, Encoding
from rollserve_server.sampling.encode.segments import SegmentContent, cut_into_messages
from rollserve_server.sampling.record import episodes as recorded_episodes
from rollserve_server.sampling.record.episodes import Episode, Recorder
from rollserve_server.sampling.record.infos import InfoKey, InfoReader
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1 import tensor_pb2
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub

LZ4, ZSTD = tensor_pb2.COMPRESSION_LZ4, tensor_pb2.COMPRESSION_ZSTD
FORMATS = [ColumnFormat(compression, once) for compression in (None, LZ4, ZSTD) for once in (False, True)]
STACKED = rollserve.Wrapper("FrameStackObservation", {"stack_size": 4})
SMALLER: list[dict[str, Any]] = [{}, {"compression": "lz4"}, {"compression": "zstd", "frames_once": False}]
PLAIN: dict[str, Any] = {"frames_once": False}


class Stacks:
    """Episodes of frame stacks, recorded in one row; some stacks have a frame that differs from its neighbours'."""

    KEY = InfoKey("", np.dtype(np.float32), (4, 64))

    def __init__(self, lengths: list[int], num_odd: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        reader = InfoReader()
        recorder = Recorder(1, [("observations", self.KEY), ("rewards", InfoKey("", np.dtype(float), ()))], reader)
        self.expected: list[np.ndarray] = []
        self.episodes: list[Episode] = []
        odd = random.choice(sum(lengths) + len(lengths), num_odd, replace=False)
        position = itertools.count()
        for index, length in enumerate(lengths):
            # Some frames are equal as numbers and differ in their bits.
            numbers = random.choice(np.array([0.0, -0.0, np.nan, 1.0], np.float32), (length + 4, 1))
            frames = np.broadcast_to(numbers, (length + 4, 64))
            stacks = np.stack([frames[step : step + 4] for step in range(length + 1)])
            for stack in stacks:
                if next(position) in odd:
                    stack[random.integers(4), random.integers(64)] = -7
            self.expected.append(stacks)
            recorder.begin(0, Episode.begin(index, 0, reader.read_reset({})))
            for step in range(length):
                recorder.write("observations", [stacks[np.newaxis, step]])
                recorder.write("rewards", [np.full(1, step, float)])
                if step == length - 1:
                    self.episodes.append(recorder.finish(0, True, False, [stacks[-1]]))
                recorder.advance()


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 25), min_size=1, max_size=8),
    num_odd=st.sampled_from([0, 0, 1, 2]),
    seed=st.integers(0, 1000),
    limit=st.sampled_from([5000, 9000, 30_000, 1 << 20]),
    format_=st.sampled_from(FORMATS),
    block_steps=st.integers(4, 40),
)
def test_decoded_stacks_equal_the_recorded_ones(
    lengths: list[int], num_odd: int, seed: int, limit: int, format_: ColumnFormat, block_steps: int
) -> None:
    with mock.patch.object(recorded_episodes, "_MAX_BUFFER_STEPS", block_steps):
        stacks = Stacks(lengths, min(num_odd, sum(lengths)), seed)
    encoder, batches = Encoder(), []
    for segments in cut_into_messages(stacks.episodes, limit, 0, encoder.fill_bytes):
        message = encoder.encode(SegmentContent(segments), Encoding(1, None, format_))
        assert message.num_bytes <= message.num_raw_bytes <= limit
        buffer = np.empty(message.num_bytes, np.uint8)
        message.write(buffer)
        response = pb.ObtainSamplesResponse.FromString(buffer.tobytes())
        if num_odd == 0 and format_.frames_once:
            assert [stack.frame_count for stack in response.batch.frame_stacks] == [4]
        batches.append(batch_from_proto(response.batch))
    for batch in batches:
        assert not any(column.flags.writeable for column in (batch.observations, batch.last_observations))
    whole = rollserve.EpisodeBatch.concatenate(*batches).joined()
    assert whole.lengths.tolist() == lengths
    for episode, expected in zip(whole.split(), stacks.expected, strict=True):
        assert episode.observations.tobytes() == expected[:-1].tobytes()
        assert episode.last_observations.tobytes() == expected[-1:].tobytes()


@pytest.fixture(params=[False, True], ids=["plain space", "Dict space"])
def screens(sampler: rollserve.Sampler, request: pytest.FixtureRequest) -> rollserve.Sampler:
    sampler.update_env("sample_envs:Screens", kwargs={"nested": request.param}, wrappers=[STACKED])
    sampler.update_agent(rollserve.RandomAgent())
    return sampler


@pytest.mark.parametrize("options", SMALLER)
def test_calls_deliver_the_same_in_fewer_bytes(screens: rollserve.Sampler, options: dict[str, Any]) -> None:
    def call(method: str, amount: int, seed: int, **call_options: Any) -> tuple[rollserve.EpisodeBatch, int]:
        before = screens.status().counters.message_bytes
        batch = getattr(screens, method)(amount, seed=seed, **call_options)
        return batch, screens.status().counters.message_bytes - before

    for method, amount in (("obtain_samples", 600), ("obtain_exact_episodes", 8), ("obtain_fragments", 160)):
        plain, plain_bytes = call(method, amount, 3, **PLAIN)
        smaller, smaller_bytes = call(method, amount, 3, **options)
        assert equal(smaller, plain)
        assert smaller_bytes < 0.5 * plain_bytes


def test_fragments_with_stacks_may_begin_within_episodes(screens: rollserve.Sampler) -> None:
    calls = [screens.obtain_fragments(56, seed=8, row_step_count=7 * call) for call in range(4)]
    expected = [screens.obtain_fragments(56, seed=8, row_step_count=7 * call, **PLAIN) for call in range(4)]
    assert all(map(equal, calls, expected))
    assert any(batch.first_steps.any() for batch in calls)


@pytest.mark.parametrize("odd", [False, True])
def test_native_rows_deliver_stacks_once(sampler: rollserve.Sampler, server: LocalServer, odd: bool) -> None:
    sampler.update_env(rollserve.EnvSpec("sample_envs:ScreenRows-v0", {"odd": odd}, vectorization="native", num_rows=4))
    sampler.update_agent(rollserve.RandomAgent())
    plain = sampler.obtain_fragments(1600, seed=9, **PLAIN)
    assert (plain.observations[:, 0, 0, 0] == 255).any() == odd
    for options in SMALLER:
        before = sampler.status().counters.message_bytes
        assert equal(sampler.obtain_fragments(1600, seed=9, **options), plain)
        assert odd or sampler.status().counters.message_bytes - before < 0.5 * plain.observations.nbytes
    with rollserve.connect(server.address, max_message_bytes=30_000) as limited:
        assert equal(limited.obtain_fragments(1600, seed=9), plain)


@pytest.mark.parametrize("options", SMALLER)
def test_small_messages_and_streams_deliver_the_same(
    screens: rollserve.Sampler, server: LocalServer, options: dict[str, Any]
) -> None:
    plain = screens.obtain_samples(600, seed=4, **PLAIN)
    with rollserve.connect(server.address, max_message_bytes=30_000) as limited:
        assert equal(limited.obtain_samples(600, seed=4, **options), plain)
        with limited.stream_samples(600, seed=4, **options) as stream:
            parts = list(stream)
    assert len(parts) > 20
    assert equal(rollserve.EpisodeBatch.concatenate(*parts).joined(), plain)


def test_compression_of_the_connection_is_the_default_of_its_calls(
    screens: rollserve.Sampler, server: LocalServer
) -> None:
    sizes = {}
    with rollserve.connect(server.address, compression=["zstd", "lz4"]) as connected:
        for name, options in (("connection", {}), ("none", {"compression": []}), ("zstd", {"compression": "zstd"})):
            before = connected.status().counters.message_bytes
            connected.obtain_samples(600, seed=5, frames_once=False, **options)
            sizes[name] = connected.status().counters.message_bytes - before
    assert max(sizes["connection"], sizes["zstd"]) < 0.2 * sizes["none"]


def test_columns_that_do_not_shrink_are_delivered(sampler: rollserve.Sampler, server: LocalServer) -> None:
    sampler.update_env("Pendulum-v1", wrappers=[rollserve.Wrapper("FrameStackObservation", {"stack_size": 2})])
    sampler.update_agent(rollserve.RandomAgent())
    plain = sampler.obtain_samples(2000, seed=6, **PLAIN)
    assert equal(sampler.obtain_samples(2000, seed=6, compression="lz4"), plain)


def test_server_uses_the_first_known_compression(screens: rollserve.Sampler, server: LocalServer) -> None:
    options = pb.SamplingOptions(seed=7, accept_compression=[77, LZ4, ZSTD])  # type: ignore[list-item]
    with grpc.insecure_channel(server.address) as channel:
        request = pb.ObtainSamplesRequest(step_count=600, options=options)
        responses = list(SamplerServiceStub(channel).ObtainSamples(request))
    batches = [response.batch for response in responses if response.WhichOneof("content") == "batch"]
    assert {column.tensor.compression for batch in batches for column in batch.observations} <= {0, LZ4}
    assert any(column.tensor.compression == LZ4 for batch in batches for column in batch.observations)
    assert not any(batch.frame_stacks for batch in batches)
