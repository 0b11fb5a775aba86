"""Versions of agents: which one acts, which are kept, their parameters, and updates that are skipped."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx_models import categorical
from pools import RecordingBackend, calls_of, pool_of, sample, sample_request, until
from rejections import check_status, rejection_of
from support import equal, raises

import rollserve
from rollserve import Reason
from rollserve.agent_versions import ParametersCollector
from rollserve.agents import agent_to_proto, parameters_to_proto
from rollserve_server.agents import MlpSpec, OnnxModel, RandomSpec, sandbox
from rollserve_server.agents.onnx import preparing
from rollserve_server.errors import NotReadyError, OverLimitError
from rollserve_server.gateway.messages.agents import parameter_messages
from rollserve_server.local import LocalServer
from rollserve_server.pool import AtLeast, Backend, InProcessBackend, Pool
from rollserve_server.sampling import Worker
from rollserve_wire.v1 import agent_versions_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub

OBSERVATIONS = rollserve.spaces.Box(np.float32(-1), np.float32(1), (4,), np.dtype(np.float32))
ACTIONS = rollserve.spaces.Discrete(2)
LARGE = (64, 64)
ONNX = rollserve.OnnxAgent(categorical().SerializeToString(), "categorical")
GetParameters = agent_versions_pb2.GetAgentParametersRequest


def mlp(seed: int = 0, hidden_sizes: tuple[int, ...] = (8,)) -> rollserve.MlpAgent:
    return rollserve.MlpAgent.initial(OBSERVATIONS, ACTIONS, hidden_sizes=hidden_sizes, seed=seed)


def spec(seed: int = 0) -> MlpSpec:
    agent = mlp(seed, LARGE)
    return MlpSpec(agent.layer_sizes, agent.activation, agent.head, agent.parameters)


def num_bytes(agent: rollserve.MlpAgent) -> int:
    return sum(value.nbytes for value in agent.parameters.values())


def same(ones: dict[str, np.ndarray], others: Any) -> bool:
    """Whether parameters are equal, to the last bit."""
    return ones.keys() == others.keys() and all(
        (value.dtype, value.shape, value.tobytes()) == (others[name].dtype, others[name].shape, others[name].tobytes())
        for name, value in ones.items()
    )


def test_min_policy_version_rejects_older_versions(sampler: rollserve.Sampler) -> None:
    old = sampler.update_agent(mlp(1))
    new = sampler.update_agent(mlp(2))
    assert sampler.obtain_samples(1, min_policy_version=new).policy_versions[0] == new
    assert sampler.obtain_samples(1, min_policy_version=old).policy_versions[0] == new
    assert sampler.obtain_samples(1, min_policy_version=old, policy_version=old).policy_versions[0] == old
    assert sampler.obtain_samples(1, min_policy_version=-5, expected_policy_version=new).policy_versions[0] == new
    error, field, reason = rollserve.PreconditionError, "options.min_policy_version", Reason.POLICY_VERSION
    for obtain in (sampler.obtain_samples, sampler.obtain_exact_episodes, sampler.obtain_fragments):
        with raises(error, field=field, reason=reason, quotes=(str(new + 1), str(new))):
            obtain(8, min_policy_version=new + 1, expected_policy_version=new)
    with raises(error, field=field, reason=reason, quotes=(str(new), str(old))):
        sampler.obtain_samples(1, min_policy_version=new, policy_version=old)
    with raises(error, field=field, reason=reason, quotes=(str(new + 1), str(new))):
        sampler.evaluate(1, min_policy_version=new + 1)
    field, reason = "options.expected_policy_version", Reason.UNEXPECTED_VERSION
    with raises(error, field=field, reason=reason, quotes=str(old)):
        sampler.evaluate(1, expected_policy_version=old)
    assert sampler.evaluate(1, expected_policy_version=new, min_policy_version=new).policy_version == new
    with raises(error, field=field, reason=reason, quotes=str(old)):
        sampler.obtain_samples(1, min_policy_version=new, expected_policy_version=old)


@pytest.mark.parametrize(
    ("agent", "other"),
    [
        (mlp(0), mlp(1)),
        (mlp(0), dataclasses.replace(mlp(0), activation="relu")),
        (rollserve.ConstantAgent(0), rollserve.ConstantAgent(1)),
        (rollserve.RandomAgent(), rollserve.ConstantAgent(1)),
    ],
    ids=["parameters", "structure", "action", "kind"],
)
def test_identical_agent_is_skipped_on_request(sampler: rollserve.Sampler, agent: Any, other: Any) -> None:
    version = sampler.update_agent(agent)
    assert sampler.update_agent(agent, skip_if_identical=True) == version
    assert sampler.update_agent(per_worker=[agent, agent], skip_if_identical=True) == version
    assert sampler.status().policy_version == version
    assert sampler.update_agent(agent) == version + 1  # skipped only on request
    for rise, agents in enumerate(([agent, other], [other, agent], [other, other]), 2):
        assert sampler.update_agent(per_worker=agents, skip_if_identical=True) == version + rise
        assert sampler.update_agent(per_worker=agents, skip_if_identical=True) == version + rise
    assert sampler.update_agent(other, skip_if_identical=True) == version + 4
    assert sampler.update_agent(agent, skip_if_identical=True) == version + 5


async def test_identical_parameters_are_skipped_on_request(sampler: rollserve.Sampler, server: LocalServer) -> None:
    async with rollserve.aconnect(server.address) as asynchronous:
        agent = mlp()
        version = await asynchronous.update_agent(agent)
        assert await asynchronous.update_agent(agent.parameters, skip_if_identical=True) == version
        assert agent.parameters["0/bias"][0] == 0
        other = {**agent.parameters, "0/bias": -agent.parameters["0/bias"]}  # equal numbers, other bits
        assert await asynchronous.update_agent(other, skip_if_identical=True) == version + 1
        assert await asynchronous.update_agent(other, skip_if_identical=True) == version + 1


def test_response_says_whether_the_agent_is_unchanged(stub: SamplerServiceStub) -> None:
    agent = mlp(3)
    whole = pb.AgentUpdate(agent=agent_to_proto(agent))
    alone = pb.AgentUpdate(parameters=parameters_to_proto(agent.parameters))
    first = stub.UpdateAgent(pb.UpdateAgentRequest(all_workers=whole, skip_if_identical=True))
    assert not first.unchanged
    for update in (whole, alone):
        answer = stub.UpdateAgent(pb.UpdateAgentRequest(all_workers=update, skip_if_identical=True))
        assert (answer.policy_version, answer.unchanged) == (first.policy_version, True)
    answer = stub.UpdateAgent(pb.UpdateAgentRequest(all_workers=alone))
    assert (answer.policy_version, answer.unchanged) == (first.policy_version + 1, False)


def test_invalid_update_is_rejected_despite_skip_if_identical(sampler: rollserve.Sampler) -> None:
    agent = mlp()
    version = sampler.update_agent(agent)
    with raises(rollserve.InvalidArgumentError, field="all_workers.parameters", quotes="'nope'"):
        sampler.update_agent({**agent.parameters, "nope": np.zeros(1)}, skip_if_identical=True)
    with raises(rollserve.InvalidArgumentError, field="per_worker.updates", quotes=("1", "2")):
        sampler.update_agent(per_worker=[agent], skip_if_identical=True)
    sampler.update_env("Pendulum-v1")
    with raises(rollserve.InvalidArgumentError, field="all_workers.agent.mlp.head"):
        sampler.update_agent(agent, skip_if_identical=True)  # the agent does not fit the new environment
    assert sampler.status().policy_version == version


async def test_identical_model_is_not_probed_again() -> None:
    data = categorical().SerializeToString()
    model = OnnxModel(data, {}, {}, "categorical", ())
    async with pool_of(InProcessBackend()) as pool:
        versions = pool.agents
        with mock.patch.object(preparing, "run_in_sandbox", wraps=sandbox.run_in_sandbox) as tried:
            await pool.update_agent([model])
            assert (await pool.current_if_same([OnnxModel(bytes(data), {}, {}, "categorical", ())])).version == 1
            for change in ({"data": categorical(seed=1).SerializeToString()}, {"outputs": {"logits": "logits"}}):
                assert await pool.current_if_same([dataclasses.replace(model, **change)]) is None
            _, parameters = versions.parameters(None, 0)
            assert (await pool.current_if_same([{"0.bias": parameters["0.bias"].copy()}])).version == 1
            assert await pool.current_if_same([{"0.bias": parameters["0.bias"] + 1}]) is None
            await pool.update_agent([{"0.bias": parameters["0.bias"] + 1}])
            assert await pool.current_if_same([model]) is None
            await pool.update_agent([{"0.bias": parameters["0.bias"]}])
            assert tried.call_count == 1
        hashes = [version.agents[0].content_hash for version in await versions.listed()]
        assert hashes[0] == hashes[2] != hashes[1]


def test_versions_are_listed(sampler: rollserve.Sampler) -> None:
    one, other = mlp(1), mlp(2)
    numbers = [sampler.update_agent(agent) for agent in (one, other, one.parameters)]
    numbers.append(sampler.update_agent(per_worker=[rollserve.RandomAgent(), other]))
    versions = sampler.agent_versions()
    assert [version.policy_version for version in versions] == numbers
    assert [[agent.kind for agent in version.agents] for version in versions] == [["mlp"]] * 3 + [["random", "mlp"]]
    sizes = [[agent.parameter_bytes for agent in version.agents] for version in versions]
    assert sizes == [[num_bytes(one)]] * 3 + [[0, num_bytes(other)]]
    hashes = [version.agents[-1].content_hash for version in versions]
    assert hashes[0] == hashes[2] != hashes[1] == hashes[3]
    assert [version.is_current for version in versions] == [False, False, False, True]
    times = [version.updated for version in versions]
    assert times == sorted(times)
    assert all(time.utcoffset() is not None for time in times)
    assert not any(version.in_use for version in versions)
    with sampler.stream_samples(10**9, policy_version=numbers[1]) as stream:
        next(stream)
        assert [version.in_use for version in sampler.agent_versions()] == [False, True, False, False]
        sampler.update_agent(mlp(3))
        sampler.update_agent(mlp(4))
        held = [version.policy_version for version in sampler.agent_versions()]
        assert held == [*numbers[1:], numbers[-1] + 1, numbers[-1] + 2]  # one more, because a call uses it
        assert next(stream).policy_versions[0] == numbers[1]


@pytest.mark.parametrize("max_message_bytes", [None, 5000])
def test_parameters_are_returned_as_they_were_sent(
    sampler: rollserve.Sampler, server: LocalServer, max_message_bytes: int | None
) -> None:
    agent = mlp(hidden_sizes=(1300, 1100) if max_message_bytes is None else (50, 40))
    version = sampler.update_agent(agent)
    sampler.update_agent({name: 2 * value for name, value in agent.parameters.items()})
    with rollserve.connect(server.address, max_message_bytes=max_message_bytes) as reader:
        received = reader.agent_parameters(version)
        assert same(received, agent.parameters)
        assert list(received) == list(agent.parameters)
        received["0/bias"] += 1  # the arrays belong to the caller
        assert same(reader.agent_parameters(), {name: 2 * value for name, value in agent.parameters.items()})
        names = ["2/bias", "1/weight"]
        assert same(reader.agent_parameters(version, names=names), {name: agent.parameters[name] for name in names})


def test_parameter_messages_stay_below_the_limit(stub: SamplerServiceStub, sampler: rollserve.Sampler) -> None:
    version = sampler.update_agent(mlp(hidden_sizes=(1300, 1100)))
    messages = list(stub.GetAgentParameters(GetParameters()))
    assert len(messages) > 1
    assert {message.policy_version for message in messages} == {version}
    messages = list(stub.GetAgentParameters(GetParameters(names=["0/weight"], max_message_bytes=4096)))
    assert max(message.ByteSize() for message in messages) <= 4096
    offset = 0
    for message in messages:
        for part in message.parts:
            assert (part.name, part.shape, part.offset_bytes) == ("0/weight", [1300, 4], offset)
            offset += len(part.data)
    assert offset == 1300 * 4 * 4


async def test_parameters_are_returned_of_each_worker(sampler: rollserve.Sampler, server: LocalServer) -> None:
    agents = [rollserve.RandomAgent(), mlp(1)]
    sampler.update_agent(per_worker=agents)
    assert sampler.agent_parameters() == {}
    assert same(sampler.agent_parameters(worker=1), mlp(1).parameters)
    async with rollserve.aconnect(server.address) as asynchronous:
        assert same(await asynchronous.agent_parameters(worker=1), mlp(1).parameters)
        assert await asynchronous.agent_versions() == sampler.agent_versions()
        with raises(rollserve.InvalidArgumentError, field="worker_index", quotes=("2", "1")):
            await asynchronous.agent_parameters(worker=2)
    sampler.update_agent(mlp(2))
    assert same(sampler.agent_parameters(worker=1), mlp(2).parameters)


def test_parameters_are_returned_of_models(sampler: rollserve.Sampler) -> None:
    version = sampler.update_agent(ONNX)
    before = sampler.agent_parameters()
    assert {"0.weight", "0.bias"} <= before.keys()
    assert sampler.update_agent(ONNX, skip_if_identical=True) == version
    sampler.update_agent({"0.bias": before["0.bias"] + 1})
    assert same(sampler.agent_parameters(), {**before, "0.bias": before["0.bias"] + 1})
    assert same(sampler.agent_parameters(version), before)


def test_invalid_parameter_request_is_rejected(stub: SamplerServiceStub, sampler: rollserve.Sampler) -> None:
    first = sampler.update_agent(mlp())
    for seed in range(4):
        sampler.update_agent(mlp(seed))
    held = ", ".join(str(first + i) for i in range(1, 5))
    for version in (first, first + 5, -1):
        quotes = (str(version), held)
        with raises(rollserve.PreconditionError, field="policy_version", reason=Reason.POLICY_VERSION, quotes=quotes):
            sampler.agent_parameters(version)
    with raises(rollserve.InvalidArgumentError, field="names[1]", quotes=("'nope'", "'0/weight'")):
        sampler.agent_parameters(names=["0/bias", "nope"])
    with raises(TypeError, field="names"):
        sampler.agent_parameters(names="0/bias")
    with raises(ValueError, field="names"):
        sampler.agent_parameters(names=[])
    with raises(ValueError, field="version"):
        sampler.agent_parameters(0)
    with raises(TypeError, field="version"):
        sampler.agent_parameters("1")  # type: ignore[arg-type]
    with raises(rollserve.InvalidArgumentError, field="worker"):
        sampler.agent_parameters(worker=-1)
    with raises(TypeError, field="skip_if_identical"):
        sampler.update_agent(mlp(), skip_if_identical=1)  # type: ignore[arg-type]
    for call, request, field, reason in (
        (
            stub.ListAgentVersions,
            agent_versions_pb2.ListAgentVersionsRequest(sampler="x"),
            "sampler",
            Reason.SAMPLER_NOT_FOUND,
        ),
        (stub.GetAgentParameters, GetParameters(sampler="x"), "sampler", Reason.SAMPLER_NOT_FOUND),
        (stub.GetAgentParameters, GetParameters(max_message_bytes=4095), "max_message_bytes", Reason.INVALID_VALUE),
    ):
        check_status(rejection_of(call, request), reason, field=field)


async def test_versions_are_empty_without_an_agent() -> None:
    async with pool_of(InProcessBackend()) as pool:
        assert list(await pool.agents.listed()) == []
        with raises(NotReadyError, reason=Reason.NO_AGENT):
            pool.agents.parameters(None, 0)
        with raises(NotReadyError, reason=Reason.NO_AGENT):
            await pool.current_if_same([mlp().parameters])
        assert await pool.current_if_same([RandomSpec()]) is None


def joined(messages: Sequence[agent_versions_pb2.GetAgentParametersResponse]) -> dict[str, np.ndarray]:
    """Return the parameters that a client joins from messages."""
    collector = ParametersCollector()
    for message in messages:
        collector.add(message)
    return collector.result()


DTYPES = ["?", "i1", "f2", ">f4", "f4", "f8"]


@given(data=st.data(), limit=st.integers(200, 2000))
def test_cut_parameters_are_joined(data: st.DataObject, limit: int) -> None:
    names = data.draw(st.lists(st.text(max_size=5), unique=True, max_size=4))
    shapes = st.lists(st.integers(0, 30), max_size=3)
    source = np.random.default_rng(data.draw(st.integers(0, 1000)))
    parameters = {
        name: source.integers(0, 2, data.draw(shapes)).astype(data.draw(st.sampled_from(DTYPES))) for name in names
    }
    messages = list(parameter_messages(7, parameters, limit))
    assert all(message.ByteSize() <= limit and message.policy_version == 7 for message in messages)
    little = {name: value.astype(value.dtype.newbyteorder("<")) for name, value in parameters.items()}
    assert same(joined(messages), little)
    # A missing or repeated part is an error.
    parts = [part for message in messages for part in message.parts]
    if len(parts) > 1:
        position = data.draw(st.integers(0, len(parts) - 1))
        for changed in (parts[:position] + parts[position + 1 :], parts[: position + 1] + parts[position:]):
            response = agent_versions_pb2.GetAgentParametersResponse(parts=changed)
            with contextlib.suppress(rollserve.ServerError):
                received = joined([response])
                # A parameter in one missing part is not noticed.
                assert same(received, {name: little[name] for name in received})
                assert len(received) == len(little) - 1


def test_name_larger_than_a_message_is_rejected() -> None:
    field, reason = "max_message_bytes", Reason.MESSAGE_TOO_SMALL
    with raises(OverLimitError, field=field, reason=reason, match=r"\b5\d\d\b"):
        list(parameter_messages(1, {"x" * 500: np.zeros(3)}, 300))


async def numbers(pool: Pool) -> list[int]:
    return [version.number for version in await pool.agents.listed()]


async def test_kept_versions_are_bounded_in_bytes(backend: Backend) -> None:
    limit = int(2.9 * num_bytes(mlp(hidden_sizes=LARGE)))
    recording: Any = RecordingBackend(backend)
    async with pool_of(recording, keep_versions=10, max_kept_agent_bytes=limit) as pool:
        for seed in range(5):
            await pool.update_agent([spec(seed)])
        assert await numbers(pool) == [3, 4, 5]
        await sample(pool, AtLeast(10), policy_version=3)
        with raises(NotReadyError, field="options.policy_version", quotes=("2", "3, 4, 5")):
            await sample(pool, AtLeast(10), policy_version=2)
        request = sample_request(AtLeast(10**6), 1 << 22, policy_version=3)
        async with contextlib.aclosing(pool.sample(request)) as items:
            await anext(items)
            await pool.update_agent([spec(6)])
            await pool.update_agent([RandomSpec()])
            assert await numbers(pool) == [3, 5, 6, 7]
        assert await numbers(pool) == [5, 6, 7]
        for handle in recording.handles.values():
            while (await handle.call(Worker.installed_versions))[1] != {5, 6, 7}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_running_call_keeps_its_version_beyond_the_bound(backend: Backend) -> None:
    async with pool_of(backend, max_kept_agent_bytes=0) as pool:
        await pool.update_agent([spec(1)])
        expected = await sample(pool, AtLeast(30_000), seed=1)
        calls = calls_of(pool)
        running = asyncio.create_task(sample(pool, AtLeast(30_000), seed=1))
        await until(lambda: bool(calls))
        for seed in (2, 3):
            await pool.update_agent([spec(seed)])
        assert await numbers(pool) == [1, 3]
        assert not running.done()
        assert equal(await running, expected)
        assert await numbers(pool) == [3]
