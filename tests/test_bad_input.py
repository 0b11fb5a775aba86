"""Each kind of bad input has its status, its reason, and a message with the field, what came and what was expected."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.rpc import error_details_pb2, status_pb2

import rollserve
from rollserve._codec.tensors import tensor_to_proto
from rollserve.agents import agent_to_proto
from rollserve.v1 import agent_pb2, environment_pb2, evaluation_pb2, tensor_pb2
from rollserve.v1 import sampler_service_pb2 as pb
from rollserve.v1.sampler_service_pb2_grpc import SamplerServiceStub
from rollserve_server.local import LocalServer

CONTRACT = (Path(__file__).parents[1] / "protos/rollserve/v1/errors.proto").read_text()
INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
DENIED, PRECONDITION = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.fixture
def stub(server: LocalServer, sampler: rollserve.Sampler) -> Iterator[SamplerServiceStub]:
    """The bare service; `sampler` has prepared CartPole-v1 and an MLP."""
    with grpc.insecure_channel(server.address) as channel:
        yield SamplerServiceStub(channel)


@pytest.fixture
def unchanged(sampler: rollserve.Sampler) -> Iterator[None]:
    """Sees to it that a test changes nothing on the server."""
    before, batch = sampler.status(), sampler.obtain_samples(50, seed=1)
    yield
    after, again = sampler.status(), sampler.obtain_samples(50, seed=1)
    assert (before.policy_version, before.env_version) == (after.policy_version, after.env_version)
    assert np.array_equal(batch.observations, again.observations)
    assert np.array_equal(batch.agent_infos["log_prob"], again.agent_infos["log_prob"])


def refused(call: Any, request: Any) -> grpc.RpcError:
    def answer() -> None:
        response = call(request)
        if isinstance(response, grpc.RpcContext):  # a stream
            list(response)

    with pytest.raises(grpc.RpcError) as caught:
        answer()
    return caught.value


def check(error: Any, code: grpc.StatusCode, reason: str, *fragments: str) -> None:
    assert error.code() == code, error.details()
    for fragment in fragments:
        assert fragment in error.details()
    metadata = dict(error.trailing_metadata())
    assert metadata["rollserve-reason"] == reason
    status = status_pb2.Status.FromString(metadata["grpc-status-details-bin"])
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain) == (reason, "rollserve")
    assert f" ERROR_REASON_{reason} = " in CONTRACT
    for detail in status.details[1:]:
        bad_request = error_details_pb2.BadRequest()
        assert detail.Unpack(bad_request)
        (violation,) = bad_request.field_violations
        assert error.details() == f"{violation.field}: {violation.description}"
    assert status.message == error.details()
    assert "Traceback" not in error.details()
    assert ".py" not in error.details()


OBTAIN_CASES: list[tuple[Any, grpc.StatusCode, str, tuple[str, ...]]] = [
    (pb.ObtainSamplesRequest(), INVALID, "INVALID_VALUE", ("step_count", "0 came", "from 1 to")),
    (pb.ObtainSamplesRequest(step_count=-3), INVALID, "INVALID_VALUE", ("step_count", "-3 came")),
    (pb.ObtainExactEpisodesRequest(), INVALID, "INVALID_VALUE", ("episode_count_per_worker", "0 came")),
    (pb.ObtainExactEpisodesRequest(episode_count_per_worker=-1), INVALID, "INVALID_VALUE", ("-1 came",)),
    (pb.ObtainSamplesRequest(step_count=2**63 - 1), INVALID, "INVALID_VALUE", ("step_count", "9223372036854775807")),
    (
        pb.ObtainExactEpisodesRequest(episode_count_per_worker=2**62),
        INVALID,
        "INVALID_VALUE",
        ("episode_count_per_worker",),
    ),
    (
        pb.ObtainSamplesRequest(
            step_count=1, options=pb.SamplingOptions(seed=2**64 - 1, first_episode_index=2**64 - 1)
        ),
        INVALID,
        "INVALID_VALUE",
        ("options.first_episode_index", "18446744073709551615 came"),
    ),
    (
        pb.ObtainSamplesRequest(sampler="other", step_count=1),
        NOT_FOUND,
        "SAMPLER_NOT_FOUND",
        ("sampler", "'other' came", "'default'"),
    ),
    (
        pb.ObtainSamplesRequest(step_count=1, options=pb.SamplingOptions(max_message_bytes=100)),
        INVALID,
        "INVALID_VALUE",
        ("options.max_message_bytes", "100 came", "4096"),
    ),
    (
        pb.ObtainSamplesRequest(step_count=1, options=pb.SamplingOptions(max_message_bytes=1 << 30)),
        INVALID,
        "INVALID_VALUE",
        ("options.max_message_bytes", "1073741824 came"),
    ),
    (
        pb.ObtainSamplesRequest(step_count=1, options=pb.SamplingOptions(accept_compression=[1, 0])),
        INVALID,
        "INVALID_VALUE",
        ("options.accept_compression", "one that is not set came", "a value of Compression"),
    ),
    (
        pb.ObtainSamplesRequest(step_count=1, options=pb.SamplingOptions(first_episode_index=1)),
        INVALID,
        "INVALID_VALUE",
        ("options.first_episode_index", "options.seed"),
    ),
    *(
        (
            pb.ObtainSamplesRequest(step_count=1, options=pb.SamplingOptions(exploration=exploration)),
            INVALID,
            "INVALID_VALUE",
            (f"options.exploration.{message}",),
        )
        for exploration, message in (
            (pb.Exploration(temperatures=[0]), "temperatures[0]: 0.0 came, a number from 1e-06 to 1e+06"),
            (pb.Exploration(temperatures=[np.nan]), "temperatures[0]: nan came"),
            (pb.Exploration(noise_scales=[-1]), "noise_scales[0]: -1.0 came"),
            (pb.Exploration(epsilons=[1.5]), "epsilons[0]: 1.5 came, a number from 0 to 1"),
            (
                pb.Exploration(temperatures=[2], deterministic=True),
                "temperatures: 1 numbers came, none beside deterministic",
            ),
            (pb.Exploration(epsilons=[0] * 1025), "epsilons: 1025 numbers came, at most 1024"),
            (pb.Exploration(noise_scales=[2]), "noise_scales: 2.0 came, none for the head categorical"),
            (pb.Exploration(epsilons=[0]), "epsilons: 0.0 came, none for the head categorical"),
        )
    ),
    (
        pb.ObtainSamplesRequest(step_count=1, options=pb.SamplingOptions(expected_policy_version=999)),
        PRECONDITION,
        "POLICY_VERSION",
        ("options.expected_policy_version", "999 came", "current version is"),
    ),
    (
        pb.ObtainSamplesRequest(step_count=12, fragments=pb.Fragments()),
        INVALID,
        "INVALID_VALUE",
        ("step_count", "12 came", "a multiple of 8", "8 or 16"),
    ),
    (
        pb.ObtainSamplesRequest(
            step_count=8, fragments=pb.Fragments(), options=pb.SamplingOptions(seed=1, first_episode_index=1)
        ),
        INVALID,
        "INVALID_VALUE",
        ("options.first_episode_index", "1 came", "none beside fragments"),
    ),
    (
        pb.ObtainSamplesRequest(step_count=8, fragments=pb.Fragments(soft_horizon=True)),
        INVALID,
        "INVALID_VALUE",
        ("fragments.soft_horizon", "options.max_episode_length"),
    ),
    (
        pb.ObtainSamplesRequest(step_count=8, fragments=pb.Fragments(skip_step_count=9)),
        INVALID,
        "INVALID_VALUE",
        ("fragments.skip_step_count", "9 came", "at most"),
    ),
    (
        pb.ObtainSamplesRequest(step_count=8, fragments=pb.Fragments(row_step_count=0)),
        INVALID,
        "INVALID_VALUE",
        ("fragments.row_step_count", "options.seed"),
    ),
    (
        pb.ObtainSamplesRequest(
            step_count=8, fragments=pb.Fragments(row_step_count=2**64 - 1), options=pb.SamplingOptions(seed=1)
        ),
        INVALID,
        "INVALID_VALUE",
        ("fragments.row_step_count", "18446744073709551615 came"),
    ),
    (
        pb.ObtainSamplesRequest(
            step_count=8, fragments=pb.Fragments(row_step_count=77), options=pb.SamplingOptions(seed=2**63)
        ),
        PRECONDITION,
        "ROW_STEP_COUNT",
        ("fragments.row_step_count", "77 came"),
    ),
    (
        pb.ObtainSamplesRequest(step_count=2**50, fragments=pb.Fragments()),
        EXHAUSTED,
        "FRAGMENTS_TOO_LARGE",
        ("step_count", "1125899906842624 came", "would do"),
    ),
]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("request_", "code", "reason", "fragments"), OBTAIN_CASES)
def test_sampling(
    stub: SamplerServiceStub, request_: Any, code: grpc.StatusCode, reason: str, fragments: tuple[str, ...]
) -> None:
    exact = isinstance(request_, pb.ObtainExactEpisodesRequest)
    check(refused(stub.ObtainExactEpisodes if exact else stub.ObtainSamples, request_), code, reason, *fragments)


def environment(*args: Any, **kwargs: Any) -> pb.UpdateEnvRequest:
    update = environment_pb2.EnvironmentUpdate(environment=environment_pb2.Environment(*args, **kwargs))
    return pb.UpdateEnvRequest(all_workers=update)


def environments(*ids: str) -> pb.UpdateEnvRequest:
    updates = [environment(id=env_id).all_workers for env_id in ids]
    return pb.UpdateEnvRequest(per_worker=pb.EnvironmentUpdatePerWorker(updates=updates))


def wrapped(name: str, kwargs_json: str = "") -> pb.UpdateEnvRequest:
    return environment(id="CartPole-v1", wrappers=[environment_pb2.Wrapper(name=name, kwargs_json=kwargs_json)])


def nested(depth: int) -> pb.UpdateEnvRequest:
    """Arguments with so many objects in each other."""
    return environment(id="CartPole-v1", kwargs_json='{"a":' * (depth - 1) + "{}" + "}" * (depth - 1))


ENV_CASES: list[tuple[Any, grpc.StatusCode, str, tuple[str, ...]]] = [
    (pb.UpdateEnvRequest(), INVALID, "INVALID_VALUE", ("update", "all_workers or per_worker")),
    (environment(), NOT_FOUND, "ENV_NOT_FOUND", ("id", "''")),
    (
        pb.UpdateEnvRequest(all_workers=environment_pb2.EnvironmentUpdate()),
        INVALID,
        "INVALID_VALUE",
        ("all_workers.update",),
    ),
    (environment(task=environment_pb2.Task(method="set_task", argument_json="{")), INVALID, "INVALID_VALUE", ("task",)),
    (environment(reset_options_json="[]"), INVALID, "INVALID_VALUE", ("reset_options_json: '[]' came",)),
    (environment(id="Nope-v0"), NOT_FOUND, "ENV_NOT_FOUND", ("all_workers.environment.id: 'Nope-v0' came",)),
    (environment(id="CartPole-v99"), NOT_FOUND, "ENV_NOT_FOUND", ("id", "'CartPole-v99'")),
    (
        environment(id="CartPole-v1", kwargs_json="[1]"),
        INVALID,
        "INVALID_VALUE",
        ("all_workers.environment.kwargs_json: '[1]' came",),
    ),
    (environment(id="CartPole-v1", kwargs_json="{"), INVALID, "INVALID_VALUE", ("kwargs_json", "JSON object")),
    (
        environment(id="CartPole-v1", kwargs_json='{"nope": 1}'),
        INVALID,
        "ENV_REFUSED",
        ("kwargs_json", "CartPole-v1", "nope"),
    ),
    (environment(id="sample_envs:Failing", kwargs_json='{"at": "construction"}'), INVALID, "ENV_REFUSED", ("broken",)),
    (environment(id="CartPole-v1", kwargs_json='{"id": "os:system"}'), INVALID, "ENV_REFUSED", ("kwargs_json", "'id'")),
    (environment(id="os:system"), DENIED, "MODULE_NOT_ALLOWED", ("id", "'os'", "--allow-module")),
    (environment(id="sample_envsx:Ends"), DENIED, "MODULE_NOT_ALLOWED", ("'sample_envsx'",)),
    (
        environment(id="sample_envs:NOT_AN_ENVIRONMENT"),
        NOT_FOUND,
        "ENV_NOT_FOUND",
        ("all_workers.environment.id: sample_envs:NOT_AN_ENVIRONMENT is not a gymnasium.Env",),
    ),
    (
        environment(id="sample_envs:NotAnEnvironment"),
        NOT_FOUND,
        "ENV_NOT_FOUND",
        ("all_workers.environment.id: sample_envs:NotAnEnvironment is not a gymnasium.Env",),
    ),
    (
        environment(id="sample_envs:Nope"),
        NOT_FOUND,
        "ENV_NOT_FOUND",
        ("all_workers.environment.id: 'sample_envs' has no 'Nope'",),
    ),
    (
        environment(id="sample_envs:Spaceless"),
        INVALID,
        "ENV_REFUSED",
        ("all_workers.environment.id: sample_envs:Spaceless has no observation_space, a gymnasium.Space was expected",),
    ),
    (environment(id="sample_envs:OddlyNamed"), INVALID, "INVALID_VALUE", ("id", "'\\ud800'")),
    (
        environment(id="CartPole-v1", kwargs_json='{"\\ud800": 1}'),
        INVALID,
        "INVALID_VALUE",
        ("'\\ud800' came", "Unicode"),
    ),
    (environment(id="CartPole-v1", kwargs_json='{"a": ["\\udc80"]}'), INVALID, "INVALID_VALUE", ("'\\udc80' came",)),
    (
        environment(id="sample_envs:Refusing", kwargs_json='{"text": "d800 1f600 25"}'),
        INVALID,
        "ENV_REFUSED",
        ("RuntimeError: \\ud800😀%",),
    ),
    (environment(id="CartPole-v1", kwargs_json='{"a": NaN}'), INVALID, "INVALID_VALUE", ("JSON object",)),
    (environment(id="CartPole-v1", kwargs_json='{"a": -Infinity}'), INVALID, "INVALID_VALUE", ("JSON object",)),
    (environment(id="CartPole-v1", kwargs_json='{"a": 1e999}'), INVALID, "INVALID_VALUE", ("finite numbers",)),
    (nested(65), INVALID, "INVALID_VALUE", ("all_workers.environment.kwargs_json", "more than 64 deep")),
    (nested(700), INVALID, "INVALID_VALUE", ("more than 64 deep",)),
    (nested(100_000), INVALID, "INVALID_VALUE", ("more than 64 deep",)),
    (nested(64), INVALID, "ENV_REFUSED", ("'a'",)),
    (
        environment(id="CartPole-v1", wrappers=[environment_pb2.Wrapper(name="RecordEpisodeStatistics")] * 65),
        INVALID,
        "INVALID_VALUE",
        ("all_workers.environment.wrappers: 65 came, at most 64",),
    ),
    (
        environment(id="HalfCheetah-v5", kwargs_json='{"xml_file": "/etc/hostname"}'),
        DENIED,
        "PATH_NOT_ALLOWED",
        ("all_workers.environment.kwargs_json: '/etc/hostname' came", "--allow-path"),
    ),
    (
        environment(id="HalfCheetah-v5", kwargs_json='{"xml_file": "~/x.xml"}'),
        DENIED,
        "PATH_NOT_ALLOWED",
        ("'~/x.xml'",),
    ),
    (environment(id="HalfCheetah-v5", kwargs_json='{"a": [{"b": "../x"}]}'), DENIED, "PATH_NOT_ALLOWED", ("'../x'",)),
    (environment(id="HalfCheetah-v5", kwargs_json='{"a": "b/../../x"}'), DENIED, "PATH_NOT_ALLOWED", ("'b/../../x'",)),
    (environment(id="HalfCheetah-v5", kwargs_json='{"a": "file:x"}'), DENIED, "PATH_NOT_ALLOWED", ("'file:x'",)),
    (
        wrapped("TimeLimit", '{"max_episode_steps": "/"}'),
        DENIED,
        "PATH_NOT_ALLOWED",
        ("all_workers.environment.wrappers[0].kwargs_json: '/' came",),
    ),
    (environment(id="sample_envs.nothing:Ends"), NOT_FOUND, "MODULE_NOT_FOUND", ("sample_envs.nothing",)),
    (
        environment(id="CartPole-v1", kwargs_json='{"render_mode": "human"}'),
        DENIED,
        "RENDER_MODE_NOT_ALLOWED",
        ("render_mode",),
    ),
    (environment(id="sample_envs:Unsupported"), INVALID, "INVALID_VALUE", ("a Text space", "expected")),
    (wrapped("Nope"), NOT_FOUND, "WRAPPER_NOT_FOUND", ("wrappers[0].name", "'Nope'")),
    (wrapped("vector"), NOT_FOUND, "WRAPPER_NOT_FOUND", ("wrappers[0].name",)),
    (wrapped("RecordVideo", '{"video_folder": "x"}'), DENIED, "WRAPPER_NOT_ALLOWED", ("RecordVideo", "writes files")),
    (wrapped("TimeLimit", "7"), INVALID, "INVALID_VALUE", ("wrappers[0].kwargs_json", "JSON object")),
    (
        wrapped("TimeLimit", '{"nope": 7}'),
        INVALID,
        "ENV_REFUSED",
        ("all_workers.environment.wrappers[0].kwargs_json: refused",),
    ),
    (
        environments("CartPole-v1", "CartPole-v1", "CartPole-v1"),
        INVALID,
        "INVALID_VALUE",
        ("per_worker.updates", "3 elements", "2 workers"),
    ),
    (
        environments("CartPole-v1", "Pendulum-v1"),
        INVALID,
        "INVALID_VALUE",
        ("per_worker.updates[1]", "observation_space"),
    ),
    (
        environments("CartPole-v1", "Nope-v0"),
        NOT_FOUND,
        "ENV_NOT_FOUND",
        ("per_worker.updates[1]", "'Nope-v0'"),
    ),
]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("request_", "code", "reason", "fragments"), ENV_CASES)
def test_environments(
    stub: SamplerServiceStub, request_: Any, code: grpc.StatusCode, reason: str, fragments: tuple[str, ...]
) -> None:
    check(refused(stub.UpdateEnv, request_), code, reason, *fragments)


def cartpole_agent() -> agent_pb2.Agent:
    """An agent that fits CartPole-v1."""
    observations = rollserve.spaces.Box(np.float32(-1), np.float32(1), (4,), np.dtype(np.float32))
    return agent_to_proto(rollserve.MlpAgent.initial(observations, rollserve.spaces.Discrete(2), hidden_sizes=(8,)))


def changed_agent(change: Any) -> pb.UpdateAgentRequest:
    agent = cartpole_agent()
    change(agent.mlp)
    return pb.UpdateAgentRequest(all_workers=pb.AgentUpdate(agent=agent))


def changed_tensor(name: str, value: Any) -> pb.UpdateAgentRequest:
    def change(mlp: agent_pb2.MlpAgent) -> None:
        for tensor in mlp.parameters.tensors:
            if tensor.name == name:
                tensor.tensor.CopyFrom(value if isinstance(value, tensor_pb2.Tensor) else tensor_to_proto(value))

    return changed_agent(change)


def parameters(*tensors: tensor_pb2.NamedTensor) -> pb.UpdateAgentRequest:
    return pb.UpdateAgentRequest(all_workers=pb.AgentUpdate(parameters=agent_pb2.Parameters(tensors=tensors)))


def constant(**leaves: Any) -> pb.UpdateAgentRequest:
    tensors = [
        tensor_pb2.NamedTensor(name=name.replace("plain", ""), tensor=tensor_to_proto(np.asarray(value)))
        for name, value in leaves.items()
    ]
    agent = agent_pb2.Agent(constant=agent_pb2.ConstantAgent(action=tensors))
    return pb.UpdateAgentRequest(all_workers=pb.AgentUpdate(agent=agent))


ZEROS = np.zeros((8, 4), np.float32)
WITH_NAN = ZEROS.copy()
WITH_NAN[3, 1] = np.nan

LIMITS_CROSSED = agent_pb2.DiagonalGaussianHead(min_log_std=1, max_log_std=-1)
WITH_SETTINGS = agent_pb2.OnnxAgent(squashed_gaussian=agent_pb2.SquashedGaussianHead(max_log_std=2))

AGENT_CASES: list[tuple[Any, tuple[str, ...]]] = [
    (pb.UpdateAgentRequest(), ("update", "all_workers or per_worker")),
    (pb.UpdateAgentRequest(all_workers=pb.AgentUpdate()), ("all_workers.update: none came, agent or parameters",)),
    (
        pb.UpdateAgentRequest(all_workers=pb.AgentUpdate(agent=agent_pb2.Agent())),
        ("all_workers.agent.kind: none came",),
    ),
    (
        pb.UpdateAgentRequest(per_worker=pb.AgentUpdatePerWorker(updates=[pb.AgentUpdate(agent=cartpole_agent())] * 3)),
        ("per_worker.updates", "3 elements", "2 workers"),
    ),
    (
        pb.UpdateAgentRequest(
            per_worker=pb.AgentUpdatePerWorker(
                updates=[
                    pb.AgentUpdate(agent=cartpole_agent()),
                    constant(plain=5).all_workers,
                ]
            )
        ),
        ("per_worker.updates[1].agent.constant.action['']: 5 came, a value of Discrete(2)",),
    ),
    (changed_agent(lambda mlp: mlp.ClearField("head")), ("all_workers.agent.mlp.head: none came, categorical",)),
    (changed_agent(lambda mlp: mlp.ClearField("activation")), ("mlp.activation", "none came")),
    (changed_agent(lambda mlp: setattr(mlp, "activation", 99)), ("mlp.activation", "99 came")),
    (changed_agent(lambda mlp: mlp.diagonal_gaussian.SetInParent()), ("mlp.head", "diagonal_gaussian", "Discrete")),
    (changed_agent(lambda mlp: mlp.bernoulli.SetInParent()), ("mlp.head", "bernoulli", "MultiBinary")),
    (
        changed_agent(lambda mlp: mlp.multi_categorical.SetInParent()),
        ("mlp.head", "multi_categorical", "MultiDiscrete"),
    ),
    (changed_agent(lambda mlp: mlp.squashed_gaussian.SetInParent()), ("mlp.head", "squashed_gaussian", "with bounds")),
    (changed_agent(lambda mlp: setattr(mlp.epsilon_greedy, "epsilon", 2)), ("mlp.epsilon_greedy.epsilon: 2.0 came",)),
    (changed_agent(lambda mlp: setattr(mlp.epsilon_greedy, "epsilon", np.nan)), ("epsilon: nan came", "from 0 to 1")),
    (changed_agent(lambda mlp: setattr(mlp.boltzmann, "temperature", 0)), ("mlp.boltzmann.temperature: 0.0 came",)),
    (
        changed_agent(lambda mlp: mlp.diagonal_gaussian.MergeFrom(LIMITS_CROSSED)),
        ("mlp.diagonal_gaussian.max_log_std: -1.0 came, at least min_log_std, 1.0,",),
    ),
    (changed_agent(lambda mlp: setattr(mlp.layer_norm, "epsilon", 0)), ("mlp.layer_norm.epsilon: 0.0 came", "1e-12")),
    (changed_agent(lambda mlp: mlp.layer_norm.SetInParent()), ("parameters: '0/norm/weight' is missing",)),
    (changed_agent(lambda mlp: mlp.shared_value.SetInParent()), ("parameters: 'value/weight' is missing",)),
    (changed_agent(lambda mlp: mlp.separate_value.SetInParent()), ("parameters: 'value/0/weight' is missing",)),
    (
        changed_agent(lambda mlp: mlp.separate_value.hidden_sizes.extend([8, 0])),
        ("mlp.separate_value.hidden_sizes[1]: 0 came", "positive"),
    ),
    (
        changed_agent(lambda mlp: mlp.separate_value.hidden_sizes.extend([1] * 1000)),
        ("mlp.separate_value.hidden_sizes: 1000 sizes came, at most 999",),
    ),
    (
        pb.UpdateAgentRequest(all_workers=pb.AgentUpdate(agent=agent_pb2.Agent(onnx=WITH_SETTINGS))),
        ("onnx.squashed_gaussian.max_log_std: 2.0 came, none: a model gives log_std",),
    ),
    (changed_agent(lambda mlp: mlp.gru.SetInParent()), ("mlp.gru.size: 0 came", "from 1 to 4096")),
    (changed_agent(lambda mlp: setattr(mlp.lstm, "size", 4097)), ("mlp.lstm.size: 4097 came", "from 1 to 4096")),
    (changed_agent(lambda mlp: setattr(mlp.lstm, "size", 8)), ("parameters: 'core/weight_ih' is missing",)),
    (changed_agent(lambda mlp: mlp.ClearField("layer_sizes")), ("mlp.layer_sizes: 0 sizes came",)),
    (
        changed_agent(lambda mlp: mlp.layer_sizes.extend([1] * 100_000)),
        ("mlp.layer_sizes: 100003 sizes came, from 2",),
    ),
    (
        changed_agent(lambda mlp: mlp.layer_sizes.__setitem__(slice(1, 2), [1] * 999)),
        ("parameters: '2/weight' is missing, ['0/weight', ", "and 1992 more]"),
    ),
    (changed_agent(lambda mlp: mlp.layer_sizes.__setitem__(0, 5)), ("mlp.layer_sizes[0]", "5 came", "4")),
    (changed_agent(lambda mlp: mlp.layer_sizes.__setitem__(2, 3)), ("mlp.layer_sizes[2]", "3 came", "2")),
    (changed_agent(lambda mlp: mlp.layer_sizes.__setitem__(1, 0)), ("mlp.layer_sizes[1]: 0 came", "positive")),
    (
        changed_agent(lambda mlp: mlp.layer_sizes.__setitem__(1, 9)),
        ("all_workers.agent.mlp.parameters['0/weight'].shape: (8, 4) came, (9, 4)",),
    ),
    (
        changed_agent(lambda mlp: mlp.parameters.tensors.pop(0)),
        ("all_workers.agent.mlp.parameters: '0/weight' is missing",),
    ),
    (
        changed_agent(lambda mlp: mlp.parameters.tensors.add(name="x", tensor=tensor_to_proto(ZEROS))),
        ("parameters", "'x' is unknown"),
    ),
    (
        changed_agent(lambda mlp: mlp.parameters.tensors.add(name="0/bias", tensor=tensor_to_proto(ZEROS))),
        ("parameters", "'0/bias'", "twice"),
    ),
    (changed_tensor("0/weight", ZEROS.T), ("parameters['0/weight'].shape", "(4, 8) came", "(8, 4)")),
    (changed_tensor("0/weight", ZEROS.astype(np.float64)), ("'0/weight'", "float64 came", "float32")),
    (changed_tensor("0/weight", WITH_NAN), ("parameters['0/weight'][3, 1]", "nan came", "finite")),
    (changed_tensor("0/weight", np.full_like(ZEROS, np.inf)), ("'0/weight'", "inf came", "finite")),
    (
        changed_tensor("0/weight", tensor_pb2.Tensor(data_type=tensor_pb2.DATA_TYPE_FLOAT32, shape=[8, 4], data=b"1")),
        ("'0/weight'", "1 bytes came", "128"),
    ),
    (changed_tensor("0/weight", tensor_pb2.Tensor(shape=[8, 4])), ("'0/weight'", "data_type", "0 came")),
    (changed_tensor("0/weight", tensor_pb2.Tensor(compression=1)), ("'0/weight'", "compression 1 came", "none")),
    (
        changed_tensor(
            "0/weight", tensor_pb2.Tensor(data_type=tensor_pb2.DATA_TYPE_FLOAT32, shape=[-8, -4], data=b"\0" * 128)
        ),
        ("'0/weight'", "shape (-8, -4) came"),
    ),
    (
        changed_tensor(
            "0/weight", tensor_pb2.Tensor(data_type=tensor_pb2.DATA_TYPE_FLOAT32, shape=[1 << 62, 1 << 62], data=b"1")
        ),
        ("'0/weight': shape (4611686018427387904, 4611686018427387904) came",),
    ),
    (
        changed_tensor("0/weight", tensor_pb2.Tensor(data_type=tensor_pb2.DATA_TYPE_FLOAT32, shape=[1 << 62] * 20_000)),
        ("'0/weight': a shape of 20000 sizes came",),
    ),
    (parameters(), ("all_workers.parameters: '0/weight' is missing",)),
    (constant(), ("constant.action", "leaves [] came")),
    (constant(plain=[1, 1]), ("constant.action['']", "(2,) came")),
    (constant(plain=0.5), ("constant.action['']", "float64 came", "int64")),
    (constant(other=1), ("constant.action", "leaves ['other'] came")),
]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("request_", "fragments"), AGENT_CASES)
def test_agents(stub: SamplerServiceStub, request_: Any, fragments: tuple[str, ...]) -> None:
    check(refused(stub.UpdateAgent, request_), INVALID, "INVALID_VALUE", *fragments)


@pytest.mark.parametrize("values", [[256, 257], [-256, 1], [2**32, 0]])
def test_constant_integers_are_not_made_to_fit(
    stub: SamplerServiceStub, sampler: rollserve.Sampler, values: list[int]
) -> None:
    sampler.update_env("sample_envs:Switches")
    error = refused(stub.UpdateAgent, constant(on=values, force=1.0))
    check(error, INVALID, "INVALID_VALUE", "constant.action['on']", str(values[0]), "a value of MultiBinary(2)")
    error = refused(stub.UpdateAgent, constant(on=[0, 1], force=1e300))
    check(error, INVALID, "INVALID_VALUE", "constant.action['force']: 1e+300 came")
    stub.UpdateAgent(constant(on=[0, 1], force=0.1))


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("text", ["😀" * 600, "%" * 900, "\x7f" * 2000, "x" * 100_000])
def test_errors_fit_into_headers_whatever_is_in_them(stub: SamplerServiceStub, text: str) -> None:
    error = refused(stub.UpdateEnv, environment(id=text))
    check(
        error,
        NOT_FOUND,
        "ENV_NOT_FOUND",
        f"environment.id: '{text[:10]}" if text.isprintable() else "all_workers.environment.id",
    )
    assert error.details().endswith("…")


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "data", [b"\xff\xff", pb.UpdateEnvRequest(sampler="xyz").SerializeToString().replace(b"xyz", b"\xff12")]
)
@pytest.mark.parametrize("method", list(pb.DESCRIPTOR.services_by_name["SamplerService"].methods))
def test_bytes_that_are_no_request(server: LocalServer, method: MethodDescriptor, data: bytes) -> None:
    name = method.name
    with grpc.insecure_channel(server.address) as channel:
        make = channel.unary_stream if method.server_streaming else channel.unary_unary
        error = refused(make(f"/rollserve.v1.SamplerService/{name}"), data)
    check(error, INVALID, "INVALID_VALUE", f"{len(data)} bytes came that are no rollserve.v1.{name}Request")


def test_texts_that_are_no_paths_get_through(sampler: rollserve.Sampler) -> None:
    sampler.update_env("ALE/Pong-v5", kwargs={"obs_type": "grayscale"})
    sampler.update_env("FrozenLake-v1", kwargs={"desc": ["SFFF", "FHFH", "FFFH", "HFFG"]})
    sampler.update_env("HalfCheetah-v5", kwargs={"xml_file": "half_cheetah.xml"})


@pytest.mark.usefixtures("unchanged")
def test_unknown_sampler_in_each_call(stub: SamplerServiceStub) -> None:
    for call, request in (
        (stub.UpdateAgent, pb.UpdateAgentRequest(sampler="x")),
        (stub.UpdateEnv, pb.UpdateEnvRequest(sampler="x")),
        (stub.ObtainExactEpisodes, pb.ObtainExactEpisodesRequest(sampler="x")),
        (stub.GetSampler, pb.GetSamplerRequest(sampler="x")),
    ):
        check(refused(call, request), NOT_FOUND, "SAMPLER_NOT_FOUND", "sampler: 'x' came")


def test_agent_that_does_not_fit_any_more(stub: SamplerServiceStub, sampler: rollserve.Sampler) -> None:
    sampler.update_env("Pendulum-v1")
    error = refused(stub.ObtainSamples, pb.ObtainSamplesRequest(step_count=1))
    check(error, PRECONDITION, "AGENT_MISFIT", "does not fit the environment", "mlp")
    sampler.update_agent(rollserve.RandomAgent())
    assert len(sampler.obtain_samples(1)) == 1
    sampler.update_env("CartPole-v1")
    assert len(sampler.obtain_samples(1)) == 1


def test_parameters_for_an_agent_without_any(stub: SamplerServiceStub, sampler: rollserve.Sampler) -> None:
    sampler.update_agent(rollserve.RandomAgent())
    error = refused(stub.UpdateAgent, parameters())
    check(error, INVALID, "INVALID_VALUE", "parameters", "random")


def test_a_step_that_does_not_fit_into_a_message(stub: SamplerServiceStub, sampler: rollserve.Sampler) -> None:
    sampler.update_env("sample_envs:Big", kwargs={"observation_bytes": 5 << 20, "length": 2})
    sampler.update_agent(rollserve.RandomAgent())
    error = refused(stub.ObtainSamples, pb.ObtainSamplesRequest(step_count=1))
    check(error, EXHAUSTED, "MESSAGE_TOO_SMALL", "options.max_message_bytes", "4190208 came", "takes 10")
    error = refused(stub.Evaluate, pb.EvaluateRequest(episode_count=1, episodes=evaluation_pb2.EpisodeDelivery()))
    check(error, EXHAUSTED, "MESSAGE_TOO_SMALL", "episodes.max_message_bytes", "4190208 came", "takes 10")
    with rollserve.connect(sampler_address(stub), max_message_bytes=12 << 20) as patient:
        batch = patient.obtain_samples(3)
    assert np.array_equal(batch.observations[:, 0], [0, 1, 0, 1])


def sampler_address(stub: SamplerServiceStub) -> str:
    target: str = stub.GetSampler._channel.target().decode()  # type: ignore[attr-defined]
    return target.removeprefix("dns:///").removeprefix("ipv4:")


@pytest.mark.parametrize("at", ["reset", "step"])
def test_an_environment_that_raises(stub: SamplerServiceStub, sampler: rollserve.Sampler, at: str) -> None:
    sampler.update_env("sample_envs:Failing", kwargs={"at": at})
    sampler.update_agent(rollserve.RandomAgent())
    for _ in range(2):  # and the server goes on
        error = refused(stub.ObtainSamples, pb.ObtainSamplesRequest(step_count=1))
        check(error, grpc.StatusCode.INTERNAL, "ENV_FAILED", "environment seed", f"raised in {at}", "broken by design")
    sampler.update_env("CartPole-v1")
    assert len(sampler.obtain_samples(1)) == 1


def test_an_observation_of_another_shape(stub: SamplerServiceStub, sampler: rollserve.Sampler) -> None:
    sampler.update_env("sample_envs:WrongObservation")
    sampler.update_agent(rollserve.RandomAgent())
    error = refused(stub.ObtainSamples, pb.ObtainSamplesRequest(step_count=1))
    check(error, grpc.StatusCode.INTERNAL, "ENV_FAILED", "shape (1,)", "(3,)")
