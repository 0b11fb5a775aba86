"""Small responses of a stream come joined to clients that accept it, and say the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import grpc
import pytest
from pools import Reading
from scripted_server import scripted_server
from support import equal, raises

import rollserve
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub


def responses_in(messages: Iterable[Any]) -> Iterator[pb.ObtainSamplesResponse]:
    """Yield the responses of a stream's messages, each alone."""
    for message in messages:
        if message.WhichOneof("content") == "joined":
            yield from map(pb.ObtainSamplesResponse.FromString, message.joined.responses)
        else:
            yield message


def batch_of(responses: Iterable[pb.ObtainSamplesResponse]) -> rollserve.EpisodeBatch:
    """Return the batch that a client makes of responses."""
    reading = Reading()
    for response in responses:
        reading.add_response(response.SerializeToString())
    return reading.batch()


@pytest.fixture
def cartpole(sampler: rollserve.Sampler) -> None:
    """CartPole, and an agent that acts at random."""
    sampler.update_env("CartPole-v1")
    sampler.update_agent(rollserve.RandomAgent())


@pytest.mark.usefixtures("cartpole")
@pytest.mark.parametrize("num_steps", [20, 4000])
@pytest.mark.parametrize("max_message_bytes", [4096, 20_000, 1 << 20])
def test_joined_responses_are_those_of_single_messages(
    num_steps: int, max_message_bytes: int, stub: SamplerServiceStub
) -> None:
    request = pb.ObtainSamplesRequest(step_count=num_steps)
    request.options.seed, request.options.max_message_bytes = 3, max_message_bytes
    single = list(stub.ObtainSamples(request))
    request.options.accept_joined = True
    messages = list(stub.ObtainSamples(request))
    assert all(response.WhichOneof("content") != "joined" for response in single)
    joined = [message for message in messages if message.WhichOneof("content") == "joined"]
    assert joined
    assert len(messages) < len(single)
    assert all(message.ByteSize() <= min(max_message_bytes, 256 << 10) for message in joined)
    assert all(len(response) <= 64 << 10 for message in joined for response in message.joined.responses)
    assert equal(batch_of(responses_in(messages)), batch_of(single))


@pytest.mark.usefixtures("cartpole")
def test_response_does_not_wait_long_for_others(sampler: rollserve.Sampler, stub: SamplerServiceStub) -> None:
    sampler.update_env("sample_envs:Slow")
    options = pb.SamplingOptions(accept_joined=True)
    call = stub.ObtainSamples(pb.ObtainSamplesRequest(step_count=10**9, options=options))
    (first,) = responses_in([next(call)])
    assert first.WhichOneof("content") == "beginning"
    call.cancel()


def test_failing_call_sends_ready_messages_before_its_status(
    sampler: rollserve.Sampler, stub: SamplerServiceStub
) -> None:
    sampler.update_env("sample_envs:Failing")
    sampler.update_agent(rollserve.RandomAgent())
    options = pb.SamplingOptions(accept_joined=True)
    call = stub.ObtainSamples(pb.ObtainSamplesRequest(step_count=10**6, options=options))
    received: list[pb.ObtainSamplesResponse] = []
    with pytest.raises(grpc.RpcError) as failure:
        received += responses_in(call)
    assert failure.value.code() is grpc.StatusCode.INTERNAL
    assert received[0].WhichOneof("content") == "beginning"


def test_client_names_malformed_joined_responses() -> None:
    def malformed(_: grpc.ServicerContext) -> Iterator[bytes]:
        yield b"\x32\x05\x0a\x09\x00\x00\x00"

    with (
        scripted_server(ObtainSamples=malformed) as address,
        rollserve.connect(address) as sampler,
        raises(rollserve.ServerError, quotes="joined"),
    ):
        sampler.obtain_samples(1)
