"""Requests that any RPC may reject, and calls that fail because of the agent or the environment."""

from __future__ import annotations

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor import MethodDescriptor
from rejections import check_status, rejection_of

import rollserve
from rollserve import Reason
from rollserve_server.local import LocalServer
from rollserve_wire.v1 import evaluation_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub

METHODS = list(pb.DESCRIPTOR.services_by_name["SamplerService"].methods)
NO_MESSAGE = b"\xff\xff"
NO_UTF8 = pb.UpdateEnvRequest(sampler="xyz").SerializeToString().replace(b"xyz", b"\xff12")


@pytest.mark.usefixtures("unchanged_stub")
@pytest.mark.parametrize(
    ("method", "data"),
    [
        *(pytest.param(method, NO_MESSAGE, id=f"{method.name}-no message") for method in METHODS),
        # Field 1 of a request without fields is unknown, and unknown bytes may be any.
        *(
            pytest.param(method, NO_UTF8, id=f"{method.name}-no UTF-8")
            for method in METHODS
            if method.input_type.fields
        ),
    ],
)
def test_malformed_bytes_are_rejected(server: LocalServer, method: MethodDescriptor, data: bytes) -> None:
    name = method.name
    with grpc.insecure_channel(server.address) as channel:
        make = channel.unary_stream if method.server_streaming else channel.unary_unary
        error = rejection_of(make(f"/rollserve.v1.SamplerService/{name}"), data)
    check_status(error, Reason.INVALID_VALUE, quotes=(str(len(data)), f"rollserve.v1.{name}Request"))


def test_unknown_sampler_is_rejected_by_each_rpc(unchanged_stub: SamplerServiceStub) -> None:
    for call, request in (
        (unchanged_stub.UpdateAgent, pb.UpdateAgentRequest(sampler="x")),
        (unchanged_stub.UpdateEnv, pb.UpdateEnvRequest(sampler="x")),
        (unchanged_stub.ObtainExactEpisodes, pb.ObtainExactEpisodesRequest(sampler="x")),
        (unchanged_stub.GetSampler, pb.GetSamplerRequest(sampler="x")),
    ):
        check_status(rejection_of(call, request), Reason.SAMPLER_NOT_FOUND, field="sampler", quotes="'x'")


def test_agent_misfits_an_environment_that_was_replaced(stub: SamplerServiceStub, sampler: rollserve.Sampler) -> None:
    sampler.update_env("Pendulum-v1")
    error = rejection_of(stub.ObtainSamples, pb.ObtainSamplesRequest(step_count=1))
    check_status(error, Reason.AGENT_MISFIT, quotes="mlp.head")
    sampler.update_agent(rollserve.RandomAgent())
    assert len(sampler.obtain_samples(1)) == 1
    sampler.update_env("CartPole-v1")
    assert len(sampler.obtain_samples(1)) == 1


def test_step_larger_than_a_message_is_rejected(
    stub: SamplerServiceStub, sampler: rollserve.Sampler, server: LocalServer
) -> None:
    sampler.update_env("sample_envs:Big", kwargs={"observation_bytes": 5 << 20, "length": 2})
    sampler.update_agent(rollserve.RandomAgent())
    evaluation = pb.EvaluateRequest(episode_count=1, episodes=evaluation_pb2.EpisodeDelivery())
    for call, request, field in (
        (stub.ObtainSamples, pb.ObtainSamplesRequest(step_count=1), "options.max_message_bytes"),
        (stub.Evaluate, evaluation, "episodes.max_message_bytes"),
    ):
        error = rejection_of(call, request)
        # The step has two observations of 5 MiB.
        check_status(error, Reason.MESSAGE_TOO_SMALL, field=field, quotes=("4190208", "10486"))
    with rollserve.connect(server.address, max_message_bytes=12 << 20) as patient:
        batch = patient.obtain_samples(3)
    assert np.array_equal(batch.observations[:, 0], [0, 1, 0, 1])


@pytest.mark.parametrize("at", ["reset", "step"])
def test_failing_environment_fails_the_call_alone(
    stub: SamplerServiceStub, sampler: rollserve.Sampler, at: str
) -> None:
    sampler.update_env("sample_envs:Failing", kwargs={"at": at})
    sampler.update_agent(rollserve.RandomAgent())
    for _ in range(2):
        error = rejection_of(stub.ObtainSamples, pb.ObtainSamplesRequest(step_count=1))
        check_status(error, Reason.ENV_FAILED, quotes=("sample_envs:Failing", at, "RuntimeError: broken by design"))
    sampler.update_env("CartPole-v1")
    assert len(sampler.obtain_samples(1)) == 1


def test_observation_of_another_shape_fails_the_call(stub: SamplerServiceStub, sampler: rollserve.Sampler) -> None:
    sampler.update_env("sample_envs:WrongObservation")
    sampler.update_agent(rollserve.RandomAgent())
    error = rejection_of(stub.ObtainSamples, pb.ObtainSamplesRequest(step_count=1))
    check_status(error, Reason.ENV_FAILED, quotes=("(1,)", "(3,)"))
