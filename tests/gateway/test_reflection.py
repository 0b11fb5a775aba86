"""A client that knows only the protos, which it gets by server reflection."""

from __future__ import annotations

import subprocess
import sys

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2

import rollserve
from rollserve_server.local import LocalServer

# A program of its own, without the project's generated classes.
CLIENT = """
import struct, sys
import grpc
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

channel = grpc.insecure_channel(sys.argv[1])
database = ProtoReflectionDescriptorDatabase(channel)
assert "rollserve.v1.SamplerService" in database.get_services()
service = DescriptorPool(database).FindServiceByName("rollserve.v1.SamplerService")
assert sorted(method.name for method in service.methods) == [
    "CallEnvironments", "CreateSampler", "DeleteSampler", "DriveEnvironments", "Evaluate", "EvaluatePopulation",
    "GetAgent", "GetAgentParameters", "GetMetrics", "GetSampler", "ListAgentVersions", "ListSamplers",
    "ObtainExactEpisodes", "ObtainSamples", "ReadDataset", "RecordDataset", "ReloadSettings", "RenderEpisode",
    "ResizePool", "RestoreSampler", "SaveSampler", "StreamSamples", "UpdateAgent", "UpdateEnv",
]

def call(name, request):
    method = service.FindMethodByName(name)
    kinds = message_factory.GetMessageClass(method.input_type), message_factory.GetMessageClass(method.output_type)
    make = channel.unary_stream if method.server_streaming else channel.unary_unary
    stub = make(f"/{service.full_name}/{name}", kinds[0].SerializeToString, kinds[1].FromString)
    return stub(json_format.ParseDict(request, kinds[0]()))

version = call("UpdateAgent", {"all_workers": {"agent": {"random": {}}}}).policy_version
cartpole = {"id": "CartPole-v1", "kwargs_json": '{"max_episode_steps": 16}'}
env = call("UpdateEnv", {"all_workers": {"environment": cartpole}})
assert list(env.observation_space.box.shape) == [4]
first, *messages, last = call("ObtainSamples", {"step_count": 161, "options": {"seed": 3}})
assert (first.beginning.seed, first.beginning.first_episode_index, first.beginning.policy_version) == (3, 0, version)
steps = 0
for message in messages:
    batch = message.batch
    assert set(batch.policy_versions) == {version}
    (observations,) = batch.observations
    assert list(observations.tensor.shape) == [sum(batch.lengths), 4]
    values = struct.unpack(f"<{4 * sum(batch.lengths)}f", observations.tensor.data)
    assert all(abs(value) < 10 for value in values)
    assert max(batch.lengths) <= 16
    steps += sum(batch.lengths)
assert steps == last.account.step_count >= 161
assert not any(name == "rollserve" or name.startswith("rollserve.") for name in sys.modules)
print(steps)
"""


def test_client_built_by_reflection_obtains_samples(server: LocalServer, sampler: rollserve.Sampler) -> None:
    shown = subprocess.run(
        [sys.executable, "-W", "error", "-c", CLIENT, server.address], capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0, shown.stderr
    assert int(shown.stdout) >= 161


def test_reflection_v1_answers_as_v1alpha_does(server: LocalServer) -> None:
    """The messages of both have the same bytes."""
    services = [f"grpc.reflection.{version}.ServerReflection" for version in ("v1", "v1alpha")]
    queries = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="rollserve.v1.SamplerService"),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=services[0]),
        reflection_pb2.ServerReflectionRequest(file_by_filename="no such file"),
    ]
    with grpc.insecure_channel(server.address) as channel:
        answers = {}
        for service in services:
            call = channel.stream_stream(f"/{service}/ServerReflectionInfo")
            answers[service] = list(call(query.SerializeToString() for query in queries))
    assert answers[services[0]] == answers[services[1]]
    listed, _, described, missing = map(reflection_pb2.ServerReflectionResponse.FromString, answers[services[0]])
    assert {service.name for service in listed.list_services_response.service} >= {*services}
    file = FileDescriptorProto.FromString(described.file_descriptor_response.file_descriptor_proto[0])
    assert file.package == "grpc.reflection.v1"
    assert "v1alpha" not in str(file)
    assert missing.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
