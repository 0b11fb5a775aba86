"""Inputs of fuzzing: each depends on a seed and its number alone."""

from __future__ import annotations

import functools
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_models
from faults.chaos.catalogue import ENVS, agent
from faults.fuzzing.mutation import mutated, mutated_bytes, random_bytes, random_message
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from odd_errors import TEXTS as ODD_ERRORS
from sample_envs.spaces import ODD_SPACES
from saved_files import LAST_SECONDS, saved_file

import rollserve
from rollserve.agents import agent_to_proto, parameters_to_proto
from rollserve_wire.environments import EnvChange, Task, env_change_to_proto, env_spec_to_proto
from rollserve_wire.policy_map import PolicyMap, policy_map_to_proto
from rollserve_wire.rows.v1 import row_service_pb2
from rollserve_wire.tensors import named_tensors_to_proto, tensor_to_proto
from rollserve_wire.v1 import (
    agent_versions_pb2,
    datasets_pb2,
    environment_pb2,
    evaluation_pb2,
    samplers_pb2,
    settings_pb2,
    video_pb2,
)
from rollserve_wire.v1 import sampler_service_pb2 as pb

__all__ = ["METHODS", "Input", "input_of", "odd_envs"]

METHODS: Sequence[MethodDescriptor] = (
    *pb.DESCRIPTOR.services_by_name["SamplerService"].methods,
    *row_service_pb2.DESCRIPTOR.services_by_name["RowService"].methods,
    *health_pb2.DESCRIPTOR.services_by_name["Health"].methods,
    *reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].methods,
)


@dataclass(frozen=True)
class Input:
    """A request for a method.

    Attributes:
        method: method to call.
        data: serialized request.
    """

    method: MethodDescriptor
    data: bytes

    @property
    def path(self) -> str:
        """Path of the method in gRPC."""
        return f"/{self.method.containing_service.full_name}/{self.method.name}"


def input_of(seed: int, number: int) -> Input:
    """Return an input: 5% are noise, 20% of the others have mutated bytes, and 80% mutated fields."""
    source = random.Random(f"{seed} {number}")
    method = source.choice(METHODS)
    if source.random() < 0.05:
        return Input(method, random_bytes(source))
    known = _valid_requests().get(method.input_type.full_name, ())
    message: Message = (
        source.choice(known) if known and source.random() < 0.9 else random_message(method.input_type, source)
    )
    changed = mutated(message, source) if source.random() < 0.8 else message
    data = changed.SerializeToString()
    return Input(method, mutated_bytes(data, source) if source.random() < 0.2 else data)


@functools.cache
def _valid_requests() -> Mapping[str, Sequence[Message]]:
    """Return valid requests by the full name of their type; other types have random requests only."""
    requests: dict[str, list[Message]] = defaultdict(list)
    for request in (*_sampling(), *_agents(), *_envs(), *_evaluations(), *_videos(), *_samplers(), *_side_services()):
        requests[request.DESCRIPTOR.full_name].append(request)
    return requests


def _sampling() -> list[Message]:
    options = pb.SamplingOptions(
        seed=3,
        first_episode_index=5,
        max_episode_length=20,
        max_message_bytes=1 << 16,
        accept_compression=[1, 2],
        accept_frame_stacks=True,
        exploration=pb.Exploration(temperatures=[0.5, 2]),
        return_states=True,
        accept_shared_memory=True,
    )
    rows, later = pb.SamplingOptions(seed=3), pb.Fragments(row_step_count=2, skip_step_count=3)
    return [
        pb.ObtainSamplesRequest(step_count=30),
        pb.ObtainSamplesRequest(sampler="default", step_count=30, options=options),
        pb.ObtainSamplesRequest(step_count=30, options=pb.SamplingOptions(prefetch=True, blackhole=True)),
        pb.ObtainSamplesRequest(step_count=16, fragments=pb.Fragments(), options=rows),
        pb.ObtainSamplesRequest(step_count=16, fragments=later, options=rows),
        pb.ObtainExactEpisodesRequest(episode_count_per_worker=2, skip_episode_count=1, options=options),
        _stream(fragments=pb.StreamedFragments(fragment_length=4), step_count=64, options=pb.SamplingOptions(seed=3)),
        _stream(episodes=pb.StreamedEpisodes(step_count=30), max_policy_lag=1, max_unread_rounds=1, when_full=2),
        _session(fragment_length=4, options=pb.SamplingOptions(seed=3), return_infos=True),
        _session(fragment_length=4, agent_infos=named_tensors_to_proto({"value": np.empty((0, 2), np.float32)})),
        pb.GetSamplerRequest(sampler="default"),
        agent_versions_pb2.ListAgentVersionsRequest(),
        agent_versions_pb2.GetAgentRequest(policy_version=1, worker_index=1),
        agent_versions_pb2.GetAgentParametersRequest(names=["0/weight"], worker_index=1, max_message_bytes=1 << 14),
    ]


def _stream(**fields: Any) -> pb.StreamSamplesRequest:
    return pb.StreamSamplesRequest(spec=pb.StreamSpec(**fields))


def _session(**fields: Any) -> pb.DriveEnvironmentsRequest:
    return pb.DriveEnvironmentsRequest(spec=pb.DriveSpec(**fields))


def _agents() -> list[Message]:
    agents = [agent(name) for name in ("mlp 1", "mlp 1", "value 1", "gru 1", "random", "constant")]
    agents.append(rollserve.OnnxAgent(onnx_models.categorical().SerializeToString(), head="categorical"))
    agents.append(rollserve.PythonAgent("nothing-of-this-name", {"a": 1}, {"first": np.zeros((2, 3), np.float32)}))
    agents.append(rollserve.PickledAgent(b"\x80\x04N."))
    updates = [pb.AgentUpdate(agent=agent_to_proto(each)) for each in agents]
    updates += [pb.AgentUpdate(parameters=parameters_to_proto(agent("mlp 2").parameters))] * 3
    each = pb.AgentUpdatePerWorker(updates=[updates[0], updates[1]])
    return [
        *(pb.UpdateAgentRequest(all_workers=update) for update in updates),
        pb.UpdateAgentRequest(per_worker=each, skip_if_identical=True),
    ]


def _envs() -> list[Message]:
    specs = [env_spec_to_proto(ENVS[name].reference) for name in ("cart", "short", "blocks", "screens", "stacks")]
    updates = [environment_pb2.EnvironmentUpdate(environment=spec) for spec in specs]
    change = EnvChange({"max_episode_steps": 9}, Task("set_task", {"goal": 1}), {"low": -0.01, "high": 0.01})
    updates.append(environment_pb2.EnvironmentUpdate(change=env_change_to_proto(change)))
    updates += [environment_pb2.EnvironmentUpdate(environment=env_spec_to_proto(spec)) for spec in odd_envs()]
    rows = environment_pb2.EnvironmentUpdatePerRow(updates=updates[:2] * 2)
    updates.append(environment_pb2.EnvironmentUpdate(per_row=rows))
    return [
        *(pb.UpdateEnvRequest(all_workers=update) for update in updates),
        pb.UpdateEnvRequest(per_worker=pb.EnvironmentUpdatePerWorker(updates=updates[:2])),
    ]


def odd_envs() -> list[rollserve.EnvSpec]:
    """Return environments with unusual spaces, and ones that raise, return or render something odd."""
    odd_spaces = [
        rollserve.EnvSpec("sample_envs:OddSpaces", {"kind": kind, "actions": actions})
        for kind in ODD_SPACES
        for actions in (False, True)
    ]
    returns = [
        rollserve.EnvSpec("sample_envs:Returns", {"odd": odd, "at": at})
        for odd in ("no leaf", "short tuple", "none", "array", "shape", "dtype", "ragged", "too large", "1", "3")
        for at in ("reset", "step")
    ]
    raises = [
        rollserve.EnvSpec("sample_envs:Odd", {"error": error, "at": at})
        for error in ODD_ERRORS
        for at in ("construction", "reset", "step", "close", "step infos")
    ]
    rendered = [
        rollserve.EnvSpec("sample_envs:Rendered", {"trouble": trouble})
        for trouble in ("mode", "nothing", "gray", "empty", "growing", "render", "exit", "interrupt", "step", "differ")
    ]
    ids = [rollserve.EnvSpec("x-v" + "1" * 5000), rollserve.EnvSpec("HalfCheetah-v5", {"xml_file": "x" * 300 + "/y"})]
    return [*odd_spaces, *returns, *raises, *rendered, *ids]


def _evaluations() -> list[Message]:
    env = env_spec_to_proto(ENVS["short"].spec)
    members = {name: np.stack([array] * 3) for name, array in agent("mlp 1").parameters.items()}
    options = pb.EvaluationOptions(seed=1, first_episode_index=2, max_episode_length=20, environment=env)
    greedy = pb.EvaluationOptions(exploration=pb.Exploration(deterministic=True))
    policy_map = policy_map_to_proto(PolicyMap.of({0: "a", "b*": [("a", -1, 0.5), ("b", 2, 0.5)]}))
    in_turns = pb.EvaluationOptions(environment=env, policy_maps=[policy_map] * 2)
    delivery = evaluation_pb2.EpisodeDelivery(accept_compression=[1])
    return [
        pb.EvaluateRequest(episode_count=3, options=options, episodes=delivery),
        pb.EvaluateRequest(episode_count=3, options=greedy),
        pb.EvaluateRequest(episode_count=3, options=in_turns),
        pb.EvaluatePopulationRequest(parameters=parameters_to_proto(members), episode_count=2, different_episodes=True),
        pb.EvaluatePopulationRequest(parameters=parameters_to_proto(members), episode_count=2, options=options),
        pb.EvaluatePopulationRequest(
            policies=dict.fromkeys("ab", parameters_to_proto(members)), episode_count=2, options=in_turns
        ),
    ]


def _videos() -> list[Message]:
    recorded = video_pb2.RecordedEpisode(
        environment_seed=3,
        actions=named_tensors_to_proto({"": np.array([0, 1, 1])}),
        rewards=tensor_to_proto(np.ones(3, np.float32)),
        terminated=True,
        observation_checksums=[1, 2, 3, 4],
        values=tensor_to_proto(np.zeros(3, np.float32)),
    )
    sampled = pb.SampledEpisode(seed=1, episode_index=2, max_episode_length=5)
    overlays: list[video_pb2.VideoOverlay.ValueType] = [
        video_pb2.VIDEO_OVERLAY_STEP,
        video_pb2.VIDEO_OVERLAY_ACTION,
        video_pb2.VIDEO_OVERLAY_VALUE,
    ]
    return [
        pb.RenderEpisodeRequest(recorded=recorded, format=video_pb2.VIDEO_FORMAT_MP4, overlays=overlays),
        *(
            pb.RenderEpisodeRequest(sampled=sampled, format=form, frames_per_second=fps)
            for form in (video_pb2.VIDEO_FORMAT_RAW, video_pb2.VIDEO_FORMAT_MP4)
            for fps in (9.0, 1e-320, 1e-9, 0.001)
        ),
    ]


def _samplers() -> list[Message]:
    env, quota = env_spec_to_proto(ENVS["short"].spec), samplers_pb2.SamplerQuota(worker_count=1, steps_per_second=9e9)
    create = samplers_pb2.CreateSamplerRequest(sampler="a", environment=env, worker_count=1, quota=quota, exist_ok=True)
    create.lease.FromSeconds(5)
    shuffle, shard = datasets_pb2.DatasetShuffle(seed=1, step_count=9), datasets_pb2.DatasetShard(index=0, count=2)
    files = datasets_pb2.DatasetFiles(paths=["a", f"{'x' * 300}/a"], fragment_length=1, shuffle=shuffle, shard=shard)
    live = datasets_pb2.DatasetSource(live=datasets_pb2.LiveEpisodes(step_count=4), weight=0.5)
    return [
        create,
        samplers_pb2.DeleteSamplerRequest(sampler="a"),
        samplers_pb2.ListSamplersRequest(),
        settings_pb2.ReloadSettingsRequest(),
        samplers_pb2.SaveSamplerRequest(),
        pb.RecordDatasetRequest(dataset="a-v0", step_count=9, options=pb.SamplingOptions(seed=1)),
        pb.ReadDatasetRequest(sources=[datasets_pb2.DatasetSource(files=files), live], batch_size=2, mix_seed=1),
        *(
            samplers_pb2.RestoreSamplerRequest(data=saved_file(ENVS["short"].spec, num_rows=4, seconds=seconds))
            for seconds in (0.0, LAST_SECONDS)
        ),
    ]


def _side_services() -> list[Message]:
    reflect = reflection_pb2.ServerReflectionRequest
    extension = reflection_pb2.ExtensionRequest(containing_type="google.protobuf.FieldOptions", extension_number=1)
    return [
        health_pb2.HealthCheckRequest(),
        health_pb2.HealthCheckRequest(service=METHODS[0].containing_service.full_name),
        reflect(list_services=""),
        reflect(host="x", file_containing_symbol=METHODS[0].containing_service.full_name),
        reflect(file_by_filename="rollserve/v1/agent.proto"),
        reflect(file_containing_extension=extension),
        reflect(all_extension_numbers_of_type="google.protobuf.FieldOptions"),
    ]
