"""Agents in the ONNX format: outputs, parameters, reproducibility, and models that are rejected."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnx
import pytest
from gymnasium import spaces as gym_spaces
from onnx import TensorProto, numpy_helper
from onnx_models import (
    FLOAT,
    HEAD,
    INT64,
    agent_of,
    categorical,
    gaussian,
    mlp_forward,
    mlp_parameters,
    model,
    node,
    prepared,
)
from pools import pool_of, sample
from support import equal, raises

import rollserve
from rollserve import Reason
from rollserve_server.agents import OnnxModel, build_agent
from rollserve_server.envs import leaves_of_space
from rollserve_server.local import LocalServer
from rollserve_server.pool import AtLeast, Backend

SIZES = (4, 16, 2)


# Outputs.


def test_categorical_model_equals_plain_formulas(cartpole: rollserve.Sampler, tmp_path: Path) -> None:
    path = tmp_path / "policy.onnx"
    onnx.save(categorical(SIZES), path)
    cartpole.update_agent(rollserve.OnnxAgent(path, HEAD))
    batch = cartpole.obtain_samples(200)
    logits = mlp_forward(mlp_parameters(SIZES), batch.observations)
    assert np.allclose(batch.agent_infos["logits"], logits, rtol=0, atol=1e-5)
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert np.allclose(batch.agent_infos["log_prob"], log_probs[np.arange(len(logits)), batch.actions], atol=1e-5)
    assert cartpole.status().agent_kinds == ("onnx",)


@pytest.mark.parametrize("head", ["diagonal_gaussian", "squashed_gaussian"])
def test_gaussian_model_equals_plain_formulas(server: LocalServer, head: Any) -> None:
    """HalfCheetah's observations are float64, which the model gets as float32."""
    sizes = (17, 32, 6)
    with rollserve.connect(server.address) as sampler:
        sampler.update_env("HalfCheetah-v5", kwargs={"max_episode_steps": 60})
        sampler.update_agent(agent_of(gaussian(sizes), head))
        batch = sampler.obtain_samples(100, seed=1)
        infos = batch.agent_infos
        mean = mlp_forward(mlp_parameters(sizes), batch.observations.astype(np.float32))
        assert np.allclose(infos["mean"], mean, rtol=0, atol=1e-5)
        assert np.allclose(infos["log_std"], np.linspace(-1, 0.5, 6), atol=1e-6)
        std = np.exp(infos["log_std"].astype(np.float64))
        if head == "diagonal_gaussian":
            deviations, correction = (batch.actions - mean) / std, 0.0
        else:
            inside = (np.abs(batch.actions) < 0.999).all(axis=1)  # closer to 1, tanh cannot be inverted in float32
            batch_actions, mean, std = batch.actions[inside].astype(np.float64), mean[inside], std[inside]
            infos = {name: column[inside] for name, column in infos.items()}
            deviations = (np.arctanh(batch_actions) - mean) / std
            correction = np.log(1 - batch_actions**2)
            assert inside.sum() > 20
        log_prob = (-0.5 * deviations**2 - np.log(std) - 0.5 * np.log(2 * np.pi) - correction).sum(axis=1)
        assert np.allclose(infos["log_prob"], log_prob, atol=1e-2)
        assert equal(batch, sampler.obtain_samples(100, seed=1))
        sampler.update_env("CartPole-v1")
        with raises(rollserve.PreconditionError, reason=Reason.AGENT_MISFIT, quotes=("(17,)", "(4,)")):
            sampler.obtain_samples(1)


def test_value_infos_and_renamed_ports_are_reported(cartpole: rollserve.Sampler) -> None:
    nodes = [
        node("Gemm", "x w", "y", transB=1),
        node("ReduceSum", "x axes", "v", keepdims=1),
        node("Cast", "x", "rounded", to=INT64),
    ]
    made = model(
        nodes,
        {"x": ["N", 4]},
        {"y": ["N", 2], "v": ["N", 1], "rounded": ["N", 4]},
        {"w": np.ones((2, 4), np.float32), "axes": np.array([1])},
        types={"rounded": INT64},
    )
    names = {"inputs": {"observation": "x"}, "outputs": {"logits": "y", "value": "v"}}
    cartpole.update_agent(agent_of(made, infos=["rounded"], **names))
    batch = cartpole.obtain_samples(50)
    assert set(batch.agent_infos) == {"log_prob", "logits", "value", "rounded"}
    assert np.allclose(batch.agent_infos["value"], batch.observations.sum(axis=1), atol=1e-5)
    assert np.array_equal(batch.agent_infos["rounded"], np.trunc(batch.observations))
    assert batch.agent_infos["rounded"].dtype == np.int64


def test_model_is_read_as_onnx_whatever_its_bytes(cartpole: rollserve.Sampler) -> None:
    """ONNX Runtime takes files with "ORTM" in the bytes 4 to 7 for models of its own format, and runs those instead."""
    made = categorical(SIZES)
    made.producer_name = "ORTM"
    assert made.SerializeToString()[4:8] == b"ORTM"
    cartpole.update_agent(agent_of(made))
    batch = cartpole.obtain_samples(20)
    logits = mlp_forward(mlp_parameters(SIZES), batch.observations)
    assert np.allclose(batch.agent_infos["logits"], logits, rtol=0, atol=1e-5)


def test_model_acts_in_nested_spaces(server: LocalServer) -> None:
    """The model computes the actions itself, from every leaf and from noise."""
    leaves = {"image": [3, 2], "pose/0": [2], "pose/1": [], "switches": [3], "counts": [2]}
    types = {"observation/image": TensorProto.UINT8, "observation/pose/1": INT64, "observation/counts": FLOAT}
    types |= {"observation/switches": TensorProto.INT8, "action/turn": INT64}
    inputs = {f"observation/{name}": ["N", *shape] for name, shape in leaves.items()}
    nodes = [
        node("Sub", "observation/pose/1 one", "action/turn_"),
        node("Mod", "action/turn_ three", "action/turn"),
        node("Tanh", "noise", "action/push"),
        node("Cast", "observation/image", "pixels", to=FLOAT),
        node("ReduceMean", "pixels pixel_axes", "brightness", keepdims=0),
        node("Cast", "observation/switches", "floats", to=FLOAT),
        node("ReduceSum", "floats axes", "switched", keepdims=0),
        node("ReduceSum", "observation/pose/0 axes", "posed", keepdims=0),
        node("ReduceSum", "observation/counts axes", "counted", keepdims=0),
        node("Sum", "brightness switched posed counted", "log_prob"),
    ]
    constants = {"one": np.array(1), "three": np.array(3), "axes": np.array([1]), "pixel_axes": np.array([1, 2])}
    outputs = {"action/turn": ["N"], "action/push": ["N", 2], "log_prob": ["N"]}
    made = model(nodes, {**inputs, "noise": ["N", 2]}, outputs, constants, types=types)
    with rollserve.connect(server.address) as sampler:
        sampler.update_env("sample_envs:Nested")
        sampler.update_agent(agent_of(made, "actions"))
        batch = sampler.obtain_samples(40, seed=3)
        observations, actions = batch.observations, batch.actions
        assert np.array_equal(actions["turn"], (observations["pose/1"] - 1) % 3)
        assert np.all(np.abs(actions["push"]) < 1)
        assert len(np.unique(actions["push"])) == actions["push"].size
        sums = [
            observations["image"].mean(axis=(1, 2)),
            *(observations[name].sum(1) for name in ("pose/0", "switches")),
        ]
        log_prob = sum(sums) + observations["counts"].sum(axis=1)
        assert np.allclose(batch.agent_infos["log_prob"], log_prob, rtol=1e-5)
        assert equal(batch, sampler.obtain_samples(40, seed=3))


def test_model_acts_in_native_rows_and_fragments(cartpole: rollserve.Sampler) -> None:
    cartpole.update_env(rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=6))
    cartpole.update_agent(agent_of(categorical(SIZES)))
    for batch in (cartpole.obtain_samples(100), cartpole.obtain_fragments(120)):
        logits = mlp_forward(mlp_parameters(SIZES), batch.observations)
        assert np.allclose(batch.agent_infos["logits"], logits, rtol=0, atol=1e-5)


# Parameters.


def test_parameters_are_updated_by_name(cartpole: rollserve.Sampler) -> None:
    """Parameters that are not sent keep their values; an updated agent acts as one that is sent whole."""
    first, second = mlp_parameters(SIZES, 0), mlp_parameters(SIZES, 1)
    version = cartpole.update_agent(agent_of(categorical(SIZES, 0)))
    part = {name: second[name] for name in ("0.weight", "1.bias")}
    assert cartpole.update_agent(part) == version + 1
    batch = cartpole.obtain_samples(50, seed=1)
    assert np.allclose(batch.agent_infos["logits"], mlp_forward({**first, **part}, batch.observations), atol=1e-5)
    cartpole.update_agent(second)
    updated = cartpole.obtain_samples(50, seed=1)
    cartpole.update_agent(agent_of(categorical(SIZES, 1)))
    whole = cartpole.obtain_samples(50, seed=1)
    assert updated.observations.tobytes() == whole.observations.tobytes()
    assert updated.agent_infos["logits"].tobytes() == whole.agent_infos["logits"].tobytes()
    earlier = cartpole.obtain_samples(50, seed=1, policy_version=version + 1)
    assert earlier.agent_infos["logits"].tobytes() == batch.agent_infos["logits"].tobytes()
    per_worker = [{"1.bias": np.full(2, worker, np.float32)} for worker in range(2)]
    cartpole.update_agent(per_worker=per_worker)
    batch = cartpole.obtain_exact_episodes(1)
    for worker, episode in enumerate(batch.split()):
        logits = mlp_forward({**second, **per_worker[worker]}, episode.observations)
        assert np.allclose(episode.agent_infos["logits"], logits, atol=1e-5)


@pytest.mark.parametrize(
    ("parameters", "field", "quotes"),
    [
        ({"nothing": np.zeros(2, np.float32)}, "", ("'nothing'", "['0.weight'")),
        ({"0.bias": np.zeros(2, np.float32)}, "['0.bias'].shape", ("(2,)", "(16,)")),
        ({"0.bias": np.zeros(16)}, "['0.bias'].data_type", ("float64", "float32")),
        ({"1.bias": np.array([0, np.nan], np.float32)}, "['1.bias'][1]", "nan"),
        ({"1.bias": np.array([np.inf, 0], np.float32)}, "['1.bias'][0]", "inf"),
    ],
    ids=["unknown name", "shape", "type", "NaN", "infinity"],
)
def test_invalid_parameter_is_rejected(
    cartpole: rollserve.Sampler, parameters: dict[str, np.ndarray], field: str, quotes: str | tuple[str, ...]
) -> None:
    version = cartpole.update_agent(agent_of(categorical(SIZES)))
    with raises(rollserve.InvalidArgumentError, field=f"all_workers.parameters{field}", quotes=quotes):
        cartpole.update_agent(parameters)
    assert cartpole.status().policy_version == version


def test_constants_are_not_parameters() -> None:
    """Integers, sizes and infinities stay in the graph, and unused initializers are dropped."""
    nodes = [
        node("Reshape", "observation shape", "image"),
        node("Resize", "image  scales", "larger"),
        node("ReduceMean", "larger axes", "mean", keepdims=0),
        node("Concat", "mean mean", "two", axis=1),
        node("Add", "two mask", "masked"),
        node("Mul", "masked gain", "logits"),
    ]
    constants = {
        "shape": np.array([0, 1, 2, 2]),
        "scales": np.array([1, 1, 2, 2], np.float32),
        "axes": np.array([2, 3]),
        "mask": np.array([0, -np.inf], np.float32),
        "unused": np.ones(3, np.float32),
    }
    made = model(nodes, {"observation": ["N", 4]}, {"logits": ["N", 2]}, {**constants, "gain": np.float32(2)})
    space = gym_spaces.Box(-1, 1, (4,), np.float32)
    spec = prepared(made, space, gym_spaces.Discrete(2))
    assert list(spec.shapes) == ["gain"]
    agent = build_agent(spec, space, gym_spaces.Discrete(2), 3)
    (actions,), infos = agent.act([np.ones((3, 4), np.float32)], np.full((3, 1), 0.9))
    assert infos["logits"].tolist() == [[2, -np.inf]] * 3
    assert not actions.any()  # a logit of -inf rules the action out
    assert not agent.failures()


# Reproducibility.


def make_space_rows(space: gymnasium.Space[Any], num_rows: int) -> list[np.ndarray]:
    source = np.random.default_rng(0)
    return [source.standard_normal((num_rows, *leaf.shape)).astype(leaf.dtype) for leaf in leaves_of_space(space)]


@pytest.mark.parametrize("activation", ["Tanh", "Relu", "Elu", "Mish"])
def test_row_has_the_same_bits_beside_any_others(activation: str) -> None:
    """ONNX Runtime's Elu and Mish give other bits for a row unless the number of rows is a multiple of 8."""
    space, actions_space = gym_spaces.Box(-1, 1, (17,), np.float32), gym_spaces.Box(-1, 1, (3,), np.float32)
    spec = prepared(gaussian((17, 7, 3), activation=activation), space, actions_space, "diagonal_gaussian")
    (observations,) = make_space_rows(space, 150)
    noise = np.random.default_rng(1).standard_normal((150, 3))

    def act(chosen: np.ndarray) -> list[bytes]:
        agent = build_agent(spec, space, actions_space, len(chosen))
        (actions,), infos = agent.act([observations[chosen]], noise[chosen])
        return [b"".join(column[row].tobytes() for column in (actions, *infos.values())) for row in range(len(chosen))]

    expected = act(np.arange(150))
    for num_rows in (1, 2, 3, 5, 8, 13, 64, 65, 100):
        chosen = np.random.default_rng(num_rows).permutation(150)[:num_rows]
        assert act(chosen) == [expected[row] for row in chosen], num_rows


def test_batching_of_a_model_of_zeros_holds_for_later_parameters() -> None:
    """Sums of zeros have the same bits in any order, which sums of later parameters do not."""
    space, actions_space = gym_spaces.Box(-1, 1, (17,), np.float32), gym_spaces.Box(-1, 1, (3,), np.float32)
    made = gaussian((17, 7, 3), activation="Elu")
    for tensor in made.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(np.zeros_like(numpy_helper.to_array(tensor)), tensor.name))
    assert prepared(made, space, actions_space, "diagonal_gaussian").batching == (8, 64)


def test_model_that_mixes_rows_runs_row_by_row() -> None:
    """The model normalizes over the batch."""
    nodes = [
        node("ReduceMean", "observation axes", "mean", keepdims=1),
        node("Sub", "observation mean", "logits"),
    ]
    made = model(nodes, {"observation": ["N", 2]}, {"logits": ["N", 2]}, {"axes": np.array([0])})
    space, actions_space = gym_spaces.Box(-1, 1, (2,), np.float32), gym_spaces.Discrete(2)
    spec = prepared(made, space, actions_space)
    assert spec.batching == (1, 1)
    _, infos = build_agent(spec, space, actions_space, 5).act(make_space_rows(space, 5), np.zeros((5, 1)))
    assert not infos["logits"].any()


async def test_batch_does_not_depend_on_workers_or_rows(backend: Backend) -> None:
    env = rollserve.EnvSpec("HalfCheetah-v5", {"max_episode_steps": 25})
    made = OnnxModel(gaussian((17, 24, 6), activation="Elu").SerializeToString(), {}, {}, "diagonal_gaussian", ())
    batches = []
    for num_workers, num_rows in ((1, 3), (2, 2)):
        async with pool_of(backend, env, workers=num_workers, rows=num_rows) as pool:
            await pool.update_agent([made])
            batches.append(await sample(pool, AtLeast(200), seed=5))
    assert equal(*batches)


async def test_new_worker_gets_the_model(ray_backend: Backend) -> None:
    made = OnnxModel(categorical(SIZES).SerializeToString(), {}, {}, HEAD, ())
    async with pool_of(ray_backend) as pool:
        await pool.update_agent([made])
        await pool.update_agent([mlp_parameters(SIZES, 1)])
        before = await sample(pool, AtLeast(100), seed=1)
        os.kill(pool.status().workers[0].identity.process_id, signal.SIGKILL)
        assert equal(before, await sample(pool, AtLeast(100), seed=1))
