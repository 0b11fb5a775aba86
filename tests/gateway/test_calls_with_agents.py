"""Calls that bring an agent: they update it first, sample with the new version, or fail and change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from cutting_proxy import cutting_proxy
from mlp_agents import cartpole_agent
from scripted_server import scripted_server
from support import equal, raises

import rollserve
from rollserve import Reason
from rollserve.agents import agent_to_proto
from rollserve_server.local import LocalServer, local_server
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.episode_batch_pb2 import Beginning
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub

OPTIONS = (
    *("--env", "CartPole-v1", "--backend", "in-process", "--workers", "2"),
    *("--vectorization", "rows", "--rows", "4", "--seed", "7"),
)
CALLS: dict[str, Callable[..., rollserve.EpisodeBatch]] = {
    "samples": lambda sampler, **options: sampler.obtain_samples(300, **options),
    "exact episodes": lambda sampler, **options: sampler.obtain_exact_episodes(3, **options),
    "fragments": lambda sampler, **options: sampler.obtain_fragments(320, **options),
}


@pytest.fixture(scope="module")
def module_server() -> Iterator[LocalServer]:
    with local_server(*OPTIONS) as server:
        yield server


@pytest.fixture
def server(module_server: LocalServer) -> LocalServer:
    module_server.reset()
    return module_server


@pytest.fixture
def sampler(server: LocalServer) -> Iterator[rollserve.Sampler]:
    with rollserve.connect(server.address) as sampler:
        yield sampler


@pytest.mark.parametrize("call", CALLS)
def test_call_with_agent_delivers_the_same_as_update_and_call(sampler: rollserve.Sampler, call: str) -> None:
    sampler.update_agent(cartpole_agent(1))
    expected = CALLS[call](sampler, seed=3)
    sampler.update_agent(cartpole_agent(2))
    batch = CALLS[call](sampler, seed=3, agent=cartpole_agent(1))
    assert set(batch.policy_versions) == {3}
    for name in ("observations", "actions", "rewards", "terminated"):
        np.testing.assert_array_equal(getattr(batch, name), getattr(expected, name))


def test_call_with_parameters_samples_with_the_present_agent_changed(sampler: rollserve.Sampler) -> None:
    sampler.update_agent(cartpole_agent(1))
    batch = sampler.obtain_samples(100, agent=cartpole_agent(2).parameters)
    assert set(batch.policy_versions) == {2}
    parameters = sampler.agent_parameters()
    for name, value in cartpole_agent(2).parameters.items():
        np.testing.assert_array_equal(parameters[name], value)


async def test_asynchronous_call_with_agent_samples_with_it(server: LocalServer) -> None:
    async with rollserve.aconnect(server.address) as sampler:
        batch = await sampler.obtain_samples(100, agent=cartpole_agent(1))
        again = await sampler.obtain_samples(100)
    assert set(batch.policy_versions) == set(again.policy_versions) == {1}


def test_client_expects_the_agent_that_its_call_brought(sampler: rollserve.Sampler, server: LocalServer) -> None:
    sampler.obtain_samples(100, agent=cartpole_agent(1))
    assert set(sampler.obtain_samples(100).policy_versions) == {1}
    with rollserve.connect(server.address) as other:
        other.obtain_samples(100, agent=cartpole_agent(2))
    refused = {"field": "options.expected_policy_version", "reason": Reason.UNEXPECTED_VERSION}
    with raises(rollserve.PreconditionError, **refused):
        sampler.obtain_samples(100)
    with raises(rollserve.PreconditionError, **refused):
        sampler.obtain_samples(100, agent=cartpole_agent(3).parameters)
    assert sampler.status().policy_version == 2
    # A whole agent replaces whatever is there.
    assert set(sampler.obtain_samples(100, agent=cartpole_agent(3)).policy_versions) == {3}


def test_broken_call_with_agent_is_resumed_with_the_version_that_it_made(server: LocalServer) -> None:
    with (
        cutting_proxy(server.address, num_cuts=3, max_bytes=100_000, seed=1) as proxy,
        rollserve.connect(proxy.address, max_message_bytes=20_000) as sampler,
    ):
        sampler.status()
        batch = sampler.obtain_samples(8000, seed=3, agent=cartpole_agent(1))
        account = batch.account
        assert account.num_resumptions > 0
        (version,) = set(batch.policy_versions)
        assert sampler.status().policy_version == version
        assert equal(batch, sampler.obtain_samples(8000, seed=3))


@pytest.mark.parametrize(
    ("options", "field", "reason"),
    [
        ({"agent": {"0/weight": np.zeros((4, 4), np.float32)}}, "options.agent_update.parameters", "INVALID_VALUE"),
        (
            {"agent": cartpole_agent().parameters, "noise_scale": 2.0},
            "options.exploration.noise_scales",
            "INVALID_VALUE",
        ),
        ({"agent": cartpole_agent(), "noise_scale": 2.0}, "options.exploration.noise_scales", "INVALID_VALUE"),
        ({"agent": rollserve.PythonAgent("absent")}, "options.agent_update.agent.python.name", "AGENT_NOT_FOUND"),
        ({"agent": cartpole_agent(), "env_version": 9}, "options.environment_version", "ENVIRONMENT_VERSION"),
        ({"agent": cartpole_agent(), "expected_num_workers": 9}, "options.worker_count", "WORKER_COUNT"),
    ],
    ids=["parameters", "exploration", "exploration of a whole agent", "python agent", "environment", "workers"],
)
@pytest.mark.parametrize("call", CALLS)
def test_call_with_bad_agent_changes_nothing(
    sampler: rollserve.Sampler, call: str, options: dict[str, Any], field: str, reason: str
) -> None:
    sampler.update_agent(cartpole_agent(1))
    with pytest.raises(rollserve.RollserveError) as caught:
        CALLS[call](sampler, **options)
    assert (caught.value.field, caught.value.reason) == (field, reason)
    assert sampler.status().policy_version == 1
    assert set(CALLS[call](sampler).policy_versions) == {1}


def test_fragments_that_rows_cannot_make_leave_the_agent(sampler: rollserve.Sampler) -> None:
    sampler.update_agent(cartpole_agent(1))
    with raises(rollserve.InvalidArgumentError, field="step_count"):
        sampler.obtain_fragments(321, agent=cartpole_agent(2))
    assert sampler.status().policy_version == 1


def test_parameters_without_an_agent_are_refused(sampler: rollserve.Sampler) -> None:
    with raises(rollserve.PreconditionError, reason=Reason.NO_AGENT):
        sampler.obtain_samples(100, agent=cartpole_agent().parameters)


@pytest.mark.parametrize("name", ["policy_version", "min_policy_version", "expected_policy_version"])
def test_agent_is_refused_beside_a_version(sampler: rollserve.Sampler, name: str) -> None:
    with raises(rollserve.InvalidArgumentError, field=name):
        sampler.obtain_samples(100, agent=cartpole_agent(), **{name: 1})  # type: ignore[misc]


def test_request_with_agent_and_version_is_refused(server: LocalServer, sampler: rollserve.Sampler) -> None:
    update = pb.AgentUpdate(agent=agent_to_proto(cartpole_agent()))
    options = pb.SamplingOptions(policy_version=1, agent_update=update)
    with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError) as caught:
        list(SamplerServiceStub(channel).ObtainSamples(pb.ObtainSamplesRequest(step_count=1, options=options)))
    assert caught.value.details() == (
        "options.agent_update: expected none beside a version that acts, got the policy version 1"
    )
    assert sampler.status().policy_version == 0


def test_agent_too_large_for_a_call_is_refused_with_advice(sampler: rollserve.Sampler) -> None:
    large = {"0/weight": np.zeros((1 << 20, 2), np.float32)}
    with raises(rollserve.InvalidArgumentError, field="agent", match="call update_agent first"):
        sampler.obtain_samples(100, agent=large)


def test_server_that_does_not_know_agents_of_calls_is_noticed() -> None:
    beginning = pb.ObtainSamplesResponse(beginning=Beginning(seed=1, policy_version=1)).SerializeToString()
    with (
        scripted_server(ObtainSamples=lambda _: [beginning]) as address,
        rollserve.connect(address) as sampler,
        raises(rollserve.ServerError, field="agent", match="call update_agent instead"),
    ):
        sampler.obtain_samples(100, agent=cartpole_agent())
