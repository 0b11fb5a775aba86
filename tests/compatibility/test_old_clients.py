"""Clients of released protos sample as the present client does, and fields of later clients do no harm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from mlp_agents import cartpole_agent

import rollserve
from rollserve.agents import agent_to_proto
from rollserve_server.local import LocalServer, local_server
from rollserve_wire.v1 import sampler_service_pb2 as pb

IMAGES = sorted(Path(__file__).parent.glob("*.binpb"))
OPTIONS = (
    *("--env", "CartPole-v1", "--backend", "in-process", "--workers", "2"),
    *("--vectorization", "rows", "--rows", "4"),
)
UNKNOWN_FIELD = b"\xfa\x3f\x03new"
"""Field 1023 with three bytes, which no message has."""


class OldClient:
    """A client that knows only the messages of one image: classes are made from its descriptors."""

    def __init__(self, image: Path, channel: grpc.Channel) -> None:
        pool = descriptor_pool.DescriptorPool()
        files = descriptor_pb2.FileDescriptorSet.FromString(image.read_bytes())
        for file in files.file:
            pool.Add(file)
        self._service = pool.FindServiceByName("rollserve.v1.SamplerService")
        self._pool, self._channel = pool, channel

    def message(self, name: str, serialized: bytes = b"") -> Any:
        """Return a message of a class by its name in the package."""
        kind = message_factory.GetMessageClass(self._pool.FindMessageTypeByName(f"rollserve.v1.{name}"))
        return kind.FromString(serialized)

    def call(self, name: str, request: Any) -> list[Any]:
        """Call an RPC; return all of its responses."""
        method = self._service.methods_by_name[name]
        kind = message_factory.GetMessageClass(method.output_type)
        path = f"/{self._service.full_name}/{name}"
        if method.server_streaming:
            return list(self._channel.unary_stream(path, type(request).SerializeToString, kind.FromString)(request))
        return [self._channel.unary_unary(path, type(request).SerializeToString, kind.FromString)(request)]


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with local_server(*OPTIONS) as server:
        yield server


@pytest.fixture
def channel(server: LocalServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.address) as channel:
        yield channel


def columns_of(responses: list[Any]) -> dict[str, bytes]:
    """Return the bytes of the plain columns in all batches of a stream."""
    batches = [response.batch for response in responses if response.WhichOneof("content") == "batch"]
    assert responses[-1].WhichOneof("content") == "account"
    assert responses[-1].account.step_count == sum(sum(batch.lengths) for batch in batches)
    return {
        "observations": b"".join(batch.observations[0].tensor.data for batch in batches),
        "last observations": b"".join(batch.last_observations[0].tensor.data for batch in batches),
        "actions": b"".join(batch.actions[0].tensor.data for batch in batches),
        "rewards": b"".join(batch.rewards.data for batch in batches),
    }


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.stem)
@pytest.mark.parametrize("name", ["ObtainSamples", "ObtainExactEpisodes", "fragments"])
def test_old_client_samples_the_same_as_the_present_one(
    server: LocalServer, channel: grpc.Channel, image: Path, name: str
) -> None:
    client = OldClient(image, channel)
    update = pb.UpdateAgentRequest(all_workers=pb.AgentUpdate(agent=agent_to_proto(cartpole_agent())))
    client.call("UpdateAgent", client.message("UpdateAgentRequest", update.SerializeToString()))
    options = pb.SamplingOptions(seed=3)
    present: Any = pb.ObtainSamplesRequest(step_count=240, options=options)
    if name == "ObtainExactEpisodes":
        present = pb.ObtainExactEpisodesRequest(episode_count_per_worker=5, options=options)
    elif name == "fragments":
        present.fragments.SetInParent()
    rpc = "ObtainExactEpisodes" if name == "ObtainExactEpisodes" else "ObtainSamples"
    responses = client.call(rpc, client.message(f"{rpc}Request", present.SerializeToString()))
    with rollserve.connect(server.address, shared=True) as sampler:
        batch = {
            "ObtainSamples": lambda: sampler.obtain_samples(240, seed=3),
            "ObtainExactEpisodes": lambda: sampler.obtain_exact_episodes(5, seed=3),
            "fragments": lambda: sampler.obtain_fragments(240, seed=3),
        }[name]()
    assert columns_of(responses) == {
        "observations": batch.observations.tobytes(),
        "last observations": batch.last_observations.tobytes(),
        "actions": batch.actions.tobytes(),
        "rewards": batch.rewards.tobytes(),
    }


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.stem)
def test_old_client_changes_the_environment_and_reads_the_state(channel: grpc.Channel, image: Path) -> None:
    client = OldClient(image, channel)
    request = client.message("UpdateEnvRequest")
    request.all_workers.environment.id = "CartPole-v1"
    request.all_workers.environment.kwargs_json = '{"max_episode_steps": 9}'
    (updated,) = client.call("UpdateEnv", request)
    (status,) = client.call("GetSampler", client.message("GetSamplerRequest"))
    assert status.environment_version == updated.environment_version
    assert len(status.workers) == 2


def test_server_ignores_fields_of_later_clients(channel: grpc.Channel) -> None:
    call = channel.unary_unary("/rollserve.v1.SamplerService/GetSampler")
    assert pb.GetSamplerResponse.FromString(call(pb.GetSamplerRequest().SerializeToString() + UNKNOWN_FIELD)).workers
