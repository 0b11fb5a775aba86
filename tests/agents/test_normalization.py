"""Observations normalized by the agent: fixed within a version, and alike wherever the version acts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import grpc
import numpy as np
import pytest
from gymnasium import spaces
from mlp_agents import OBSERVATIONS, act, agent_of, observe, spec_of
from support import equal, raises

import rollserve
from rollserve.agents import agent_to_proto
from rollserve_server.agents import build_agent
from rollserve_server.local import LocalServer
from rollserve_wire.v1 import agent_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub

PARAMETERS = "all_workers.agent.mlp.parameters['observation/variance']"
NORMALIZATION = "all_workers.agent.mlp.normalization"


@pytest.fixture
def server(thread_server: LocalServer) -> LocalServer:
    return thread_server


@pytest.fixture
def sampler(thread_sampler: rollserve.Sampler) -> rollserve.Sampler:
    return thread_sampler


def moments(seed: int, size: int = 7) -> dict[str, np.ndarray]:
    source = np.random.default_rng(seed)
    return {
        "observation/mean": source.normal(size=size),
        "observation/variance": source.uniform(0, 2, size) * (source.random(size) > 0.2),
    }


def normalized(observations: np.ndarray, parameters: Mapping[str, np.ndarray], epsilon: float, clip: float) -> Any:
    """Return what Stable-Baselines3's VecNormalize makes of observations."""
    deviation = np.sqrt(parameters["observation/variance"] + epsilon)
    return np.clip((observations - parameters["observation/mean"]) / deviation, -clip, clip).astype(np.float32)


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "value": {"value": "separate", "layer_norm": True},
    "shared value": {"value": "shared"},
    "clip": {"settings": {"normalization_clip": 0.3, "normalization_epsilon": 0.5}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_normalized_agent_acts_as_a_plain_one_on_normalized_observations(kind: str) -> None:
    plain = agent_of("diagonal_gaussian", **KINDS[kind])
    agent = dataclasses.replace(plain, parameters={**plain.parameters, **moments(2)})
    observations = observe(33)
    expected = normalized(observations, agent.parameters, agent.normalization_epsilon, agent.normalization_clip)
    assert np.ptp(expected) > 0.5
    actions, infos = act(agent, observations)
    expected_actions, expected_infos = act(plain, expected)
    assert np.array_equal(actions, expected_actions)
    assert infos.keys() == expected_infos.keys()
    assert all(np.array_equal(infos[name], expected_infos[name]) for name in infos)


def test_normalization_has_the_precision_of_observations_in_float64() -> None:
    space = spaces.Box(-np.inf, np.inf, (7,), np.float64)
    plain = agent_of("categorical")
    parameters = {**plain.parameters, "observation/mean": np.full(7, 1e9), "observation/variance": np.full(7, 1e-2)}
    agent = dataclasses.replace(plain, parameters=parameters)
    offsets = np.random.default_rng(0).uniform(-0.1, 0.1, (5, 7))
    built = build_agent(spec_of(agent), space, spaces.Discrete(4, start=3), 5)
    _, infos = built.act([1e9 + offsets], np.zeros((5, built.noise_width)))
    _, expected = act(plain, (offsets / 0.1).astype(np.float32))
    assert np.allclose(infos["logits"], expected["logits"], atol=1e-4)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 5, 16])
def test_bits_of_a_row_do_not_depend_on_the_rows_beside_it(num_rows: int) -> None:
    plain = agent_of("diagonal_gaussian", value="shared")
    agent = dataclasses.replace(plain, parameters={**plain.parameters, **moments(2)})
    observations = observe(64)
    _, whole = act(agent, observations)
    _, part = act(agent, observations[:num_rows])
    assert all(np.array_equal(part[name], whole[name][:num_rows]) for name in ("mean", "value"))


def cartpole_agent(sampler: rollserve.Sampler, seed: int = 0, **options: Any) -> rollserve.MlpAgent:
    """Return an agent whose actions depend on the normalization."""
    status = sampler.status()
    agent = rollserve.MlpAgent.initial(
        status.observation_space, status.action_space, hidden_sizes=(8,), seed=seed, normalization=True, **options
    )
    parameters = {
        **agent.parameters,
        "1/weight": 300 * agent.parameters["1/weight"],
        "observation/mean": np.array([0.01, -0.3, 0.02, 0.2]),
        "observation/variance": np.array([0.02, 0.4, 0.003, 0.3]),
    }
    return dataclasses.replace(agent, parameters=parameters)


@pytest.mark.parametrize(
    "env", [rollserve.EnvSpec("CartPole-v1", num_rows=3), rollserve.EnvSpec("CartPole-v1", vectorization="native")]
)
def test_batch_is_the_same_with_any_number_of_workers_and_rows(
    sampler: rollserve.Sampler, env: rollserve.EnvSpec
) -> None:
    sampler.update_env(env)
    sampler.update_agent(cartpole_agent(sampler))
    expected = sampler.obtain_samples(600, seed=3)
    for num_workers in (1, 3, 5):
        sampler.resize(num_workers)
        assert equal(sampler.obtain_samples(600, seed=3), expected)


def test_logits_in_a_batch_are_of_normalized_observations(sampler: rollserve.Sampler) -> None:
    for env in (rollserve.EnvSpec("CartPole-v1"), rollserve.EnvSpec("CartPole-v1", vectorization="native")):
        sampler.update_env(env)
        agent = cartpole_agent(sampler)
        sampler.update_agent(agent)
        batch = sampler.obtain_samples(300, seed=3)
        assert isinstance(batch.observations, np.ndarray)
        x = normalized(batch.observations, agent.parameters, 1e-8, 10).astype(np.float64)
        weights = {name: value.astype(np.float64) for name, value in agent.parameters.items()}
        hidden = np.tanh(x @ weights["0/weight"].T + weights["0/bias"])
        logits = hidden @ weights["1/weight"].T + weights["1/bias"]
        assert np.allclose(batch.agent_infos["logits"], logits, rtol=1e-4, atol=1e-4)


def test_parameters_have_the_normalization_of_their_version(sampler: rollserve.Sampler) -> None:
    agent = cartpole_agent(sampler)
    first = sampler.update_agent(agent)
    before = sampler.obtain_samples(300, seed=3)
    other = {**agent.parameters, "observation/mean": np.array([0.1, 0.3, -0.02, -0.2])}
    second = sampler.update_agent(other)
    after = sampler.obtain_samples(300, seed=3)
    assert not np.array_equal(before.actions, after.actions)
    assert equal(before, sampler.obtain_samples(300, seed=3, policy_version=first))
    for version, expected in ((first, agent.parameters), (second, other)):
        held = sampler.agent_parameters(version)
        assert held.keys() == expected.keys()
        assert all(held[name].dtype == value.dtype for name, value in expected.items())
        assert all(np.array_equal(held[name], value) for name, value in expected.items())


@pytest.mark.parametrize("core", [None, "gru"])
def test_evaluations_and_populations_normalize_alike(sampler: rollserve.Sampler, core: Any) -> None:
    agent = cartpole_agent(sampler, core=core, core_size=8)
    sampler.update_agent(agent)
    result = sampler.evaluate(12, seed=3)
    sampled = sampler.obtain_samples(int(result.lengths.sum()), seed=3)
    assert np.array_equal(sampled.lengths, result.lengths)
    source = np.random.default_rng(1)
    members = {
        "observation/mean": source.normal(scale=0.3, size=(4, 4)),
        "observation/variance": source.uniform(0, 0.3, (4, 4)),
        "0/bias": source.normal(size=(4, 8)).astype(np.float32),
    }
    population = sampler.evaluate_population(members, 5, seed=3)
    for member in range(4):
        sampler.update_agent({**agent.parameters, **{name: value[member] for name, value in members.items()}})
        assert np.array_equal(population.returns[member], sampler.evaluate(5, seed=3).returns)
    assert len({float(each) for each in population.mean_returns}) > 2
    members["observation/variance"][2, 1] = -1
    with raises(rollserve.InvalidArgumentError, field="parameters['observation/variance'][2, 1]"):
        sampler.evaluate_population(members, 5)


def with_parameter(name: str, value: np.ndarray | None) -> agent_pb2.MlpAgent:
    """Return an agent for CartPole-v1 with normalization and another value of a parameter; None for none."""
    observations = rollserve.spaces.Box(np.float32(-1), np.float32(1), (4,), np.dtype(np.float32))
    agent = rollserve.MlpAgent.initial(observations, rollserve.spaces.Discrete(2), seed=0, normalization=True)
    parameters = {**agent.parameters, name: value}
    present = {name: value for name, value in parameters.items() if value is not None}
    return agent_to_proto(dataclasses.replace(agent, parameters=present)).mlp


def with_setting(**settings: float) -> agent_pb2.MlpAgent:
    mlp = with_parameter("log", None)
    mlp.normalization.CopyFrom(agent_pb2.ObservationNormalization(**settings))
    return mlp


def without_normalization() -> agent_pb2.MlpAgent:
    mlp = with_parameter("log", None)
    mlp.ClearField("normalization")
    return mlp


REJECTED = {
    "negative variance": (with_parameter("observation/variance", np.array([1.0, 0, -1e-9, 1])), f"{PARAMETERS}[2]"),
    "nan variance": (with_parameter("observation/variance", np.array([1.0, 0, np.nan, 1])), f"{PARAMETERS}[2]"),
    "shape": (with_parameter("observation/variance", np.ones(5)), f"{PARAMETERS}.shape"),
    "dtype": (with_parameter("observation/variance", np.ones(4, np.float32)), f"{PARAMETERS}.data_type"),
    "missing": (with_parameter("observation/variance", None), "all_workers.agent.mlp.parameters"),
    "without normalization": (without_normalization(), "all_workers.agent.mlp.parameters"),
    "epsilon": (with_setting(epsilon=0), f"{NORMALIZATION}.epsilon"),
    "nan epsilon": (with_setting(epsilon=np.nan), f"{NORMALIZATION}.epsilon"),
    "clip": (with_setting(clip=0), f"{NORMALIZATION}.clip"),
    "infinite clip": (with_setting(clip=np.inf), f"{NORMALIZATION}.clip"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_invalid_normalization_is_rejected(server: LocalServer, case: str) -> None:
    mlp, field = REJECTED[case]
    with grpc.insecure_channel(server.address) as channel:
        stub = SamplerServiceStub(channel)
        before = stub.GetSampler(pb.GetSamplerRequest()).policy_version
        request = pb.UpdateAgentRequest(all_workers=pb.AgentUpdate(agent=agent_pb2.Agent(mlp=mlp)))
        with raises(grpc.RpcError, field=field):
            stub.UpdateAgent(request)
        assert stub.GetSampler(pb.GetSamplerRequest()).policy_version == before


def test_moments_without_one_hot_leaves_are_rejected_with_what_has_them(thread_sampler: rollserve.Sampler) -> None:
    env = thread_sampler.update_env(rollserve.EnvSpec("sample_envs:Pictures-v0", {"nested": True}))
    agent = rollserve.MlpAgent.initial(env.observation_space, env.action_space, seed=0, normalization=True)
    thread_sampler.update_agent(agent)
    moments = thread_sampler.obtain_samples(20, observation_moments=True).account.observation_moments
    assert moments is not None
    with raises(rollserve.InvalidArgumentError, match=r"m\.parameters\(observation_space, without=mask\)"):
        thread_sampler.update_agent(agent, observation_moments=moments)
    thread_sampler.update_agent({**agent.parameters, **moments.parameters(env.observation_space)})


def test_initial_agent_normalizes_by_mean_zero_and_variance_one() -> None:
    assert spec_of(agent_of("categorical")).normalization is None
    plain = agent_of("categorical")
    ones = {"observation/mean": np.zeros(7), "observation/variance": np.ones(7)}
    agent = dataclasses.replace(plain, parameters={**plain.parameters, **ones})
    observations = np.eye(7, dtype=OBSERVATIONS.dtype)  # as of a one-hot leaf
    assert np.array_equal(act(agent, observations)[1]["logits"], act(plain, observations)[1]["logits"])
