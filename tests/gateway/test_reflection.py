"""A client that knows only the protos, which it gets by server reflection."""

from __future__ import annotations

import subprocess
import sys

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
    "Evaluate", "EvaluatePopulation", "GetAgentParameters", "GetSampler", "ListAgentVersions", "ObtainExactEpisodes",
    "ObtainSamples", "ResizePool", "UpdateAgent", "UpdateEnv",
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
