"""Agents in the ONNX format: they act as the model says, anywhere, and no model does harm."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnx
import pytest
from gymnasium import spaces as gym_spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper
from onnx_models import FLOAT, INT64, categorical, gaussian, mlp_forward, mlp_parameters, model, node
from pools import pool_of, sample, slot_of
from support import equal, raises

import rollserve
from rollserve import Reason
from rollserve_server.agents import OnnxModel, OnnxSpec, build_agent, prepare_agent
from rollserve_server.envs import leaves_of_space
from rollserve_server.errors import DomainError, InvalidValueError
from rollserve_server.local import LocalServer
from rollserve_server.pool import AtLeast, Backend
from rollserve_server.settings import AgentSettings, SandboxLimits

HEAD = "categorical"
SIZES = (4, 16, 2)


def agent_of(made: onnx.ModelProto, head: Any = HEAD, **options: Any) -> rollserve.OnnxAgent:
    return rollserve.OnnxAgent(made.SerializeToString(), head, **options)


def prepared(
    made: onnx.ModelProto | bytes,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    head: Any = HEAD,
    sandbox: SandboxLimits | None = None,
    **names: Any,
) -> OnnxSpec:
    data = made if isinstance(made, bytes) else made.SerializeToString()
    options = {"inputs": {}, "outputs": {}, "infos": (), **names}
    settings = AgentSettings(model_sandbox=sandbox or SandboxLimits())
    spec = prepare_agent(OnnxModel(data, head=head, **options), observation_space, action_space, settings)
    assert isinstance(spec, OnnxSpec)
    return spec


@pytest.fixture
def cartpole(server: LocalServer) -> Iterator[rollserve.Sampler]:
    with rollserve.connect(server.address) as sampler:
        sampler.update_env("CartPole-v1")
        yield sampler


# What the server reports is what the model gives.


def test_categorical(cartpole: rollserve.Sampler, tmp_path: Path) -> None:
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
def test_gaussian(server: LocalServer, head: Any) -> None:
    """HalfCheetah's observations are float64, and converted."""
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
            inside = (np.abs(batch.actions) < 0.999).all(axis=1)  # beyond, floats do not tell the numbers before tanh
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


def test_value_further_outputs_and_names(cartpole: rollserve.Sampler) -> None:
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


def test_all_kinds_of_observations_and_actions(server: LocalServer) -> None:
    """A model that gives the actions itself, from every leaf and from noise."""
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


def test_native_rows_and_fragments(cartpole: rollserve.Sampler) -> None:
    cartpole.update_env(rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=6))
    cartpole.update_agent(agent_of(categorical(SIZES)))
    for batch in (cartpole.obtain_samples(100), cartpole.obtain_fragments(120)):
        logits = mlp_forward(mlp_parameters(SIZES), batch.observations)
        assert np.allclose(batch.agent_infos["logits"], logits, rtol=0, atol=1e-5)


# Parameters alone.


def test_parameters_by_name(cartpole: rollserve.Sampler) -> None:
    """Those that do not come stay as they are, and the agent is the same as one that is sent whole."""
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
def test_parameters_that_are_refused(
    cartpole: rollserve.Sampler, parameters: dict[str, np.ndarray], field: str, quotes: str | tuple[str, ...]
) -> None:
    version = cartpole.update_agent(agent_of(categorical(SIZES)))
    with raises(rollserve.InvalidArgumentError, field=f"all_workers.parameters{field}", quotes=quotes):
        cartpole.update_agent(parameters)
    assert cartpole.status().policy_version == version


def test_constants_are_no_parameters() -> None:
    """Integers, sizes, infinities and what nothing takes stay in the graph or go."""
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
    assert not actions.any()  # what is ruled out is not done
    assert not agent.failures()


# Everywhere the same.


def make_space_rows(space: gymnasium.Space[Any], num_rows: int) -> list[np.ndarray]:
    source = np.random.default_rng(0)
    return [source.standard_normal((num_rows, *leaf.shape)).astype(leaf.dtype) for leaf in leaves_of_space(space)]


@pytest.mark.parametrize("activation", ["Tanh", "Relu", "Elu", "Mish"])
def test_a_row_does_not_depend_on_its_neighbours(activation: str) -> None:
    """To the last bit. Elu and Mish do, in ONNX Runtime, unless the number of rows is a multiple of eight."""
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


def test_a_model_of_zeros_says_nothing_of_those_to_come() -> None:
    """Sums of zeros have the same bits in any order; those of later parameters do not."""
    space, actions_space = gym_spaces.Box(-1, 1, (17,), np.float32), gym_spaces.Box(-1, 1, (3,), np.float32)
    made = gaussian((17, 7, 3), activation="Elu")
    for tensor in made.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(np.zeros_like(numpy_helper.to_array(tensor)), tensor.name))
    assert prepared(made, space, actions_space, "diagonal_gaussian").batching == (8, 64)


def test_rows_that_belong_together_in_the_graph_are_run_one_by_one() -> None:
    """A model that normalizes over the batch would make rows depend on each other."""
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


async def test_determinism_over_workers_rows_and_backends(backend: Backend) -> None:
    env = rollserve.EnvSpec("HalfCheetah-v5", {"max_episode_steps": 25})
    made = OnnxModel(gaussian((17, 24, 6), activation="Elu").SerializeToString(), {}, {}, "diagonal_gaussian", ())
    batches = []
    for num_workers, num_rows in ((1, 3), (2, 2)):
        async with pool_of(backend, env, workers=num_workers, rows=num_rows) as pool:
            await pool.update_agent([made])
            batches.append(await sample(pool, AtLeast(200), seed=5))
    assert equal(*batches)


# Models that are of no use.


def raising_after(limit: float) -> onnx.ModelProto:
    """Looks up one of two rows of a table, unless the cart is further away than that."""
    nodes = [
        node("Gather", "observation zero", "position", axis=1),
        node("Abs", "position", "distance"),
        node("Div", "distance limit", "part"),
        node("Cast", "part", "index", to=INT64),
        node("Gather", "table index", "logits", axis=0),
    ]
    constants = {
        "zero": np.array(0),
        "limit": np.float32(limit),
        "table": np.zeros((1, 2), np.float32),
    }
    return model(nodes, {"observation": ["N", 4]}, {"logits": ["N", 2]}, constants)


def nan_after(*limits: float) -> onnx.ModelProto:
    """The square root of what turns negative when an element of the observation is further from 0 than its limit."""
    nodes = [
        node("Abs", "observation", "distances"),
        node("Sub", "limits distances", "left"),
        node("Sqrt", "left", "roots"),
        node("Gemm", "roots w", "logits"),
    ]
    constants = {"limits": np.array(limits, np.float32), "w": np.zeros((4, 2), np.float32)}
    return model(nodes, {"observation": ["N", 4]}, {"logits": ["N", 2]}, constants)


@pytest.mark.parametrize("vectorization", ["rows", "native"])
def test_what_is_no_number_ends_the_call_and_tells_where(cartpole: rollserve.Sampler, vectorization: Any) -> None:
    cartpole.update_env(rollserve.EnvSpec("CartPole-v1", vectorization=vectorization, num_rows=4))
    cartpole.update_agent(agent_of(nan_after(0.3, 1e9, 1e9, 1e9)))
    pattern = r"episode \d+.*'logits'.*\bnan\b"
    for obtain in (cartpole.obtain_samples, cartpole.obtain_fragments):
        with raises(rollserve.PreconditionError, reason=Reason.AGENT_FAILED, match=pattern):
            obtain(4000)
    cartpole.update_agent(agent_of(categorical(SIZES)))
    assert cartpole.obtain_samples(40).num_steps >= 40
    assert cartpole.obtain_fragments(40).num_steps == 40


def test_what_the_environment_shows_after_an_episode_does_not_matter(cartpole: rollserve.Sampler) -> None:
    """The last observation of an episode stays in its row, and nothing is asked of it."""
    limits = 2.4, 1e9, 0.20944, 1e9  # where an episode ends
    cartpole.update_agent(agent_of(nan_after(*limits)))
    batch = cartpole.obtain_exact_episodes(6)
    assert (np.abs(batch.last_observations) > limits).any(axis=1).sum() >= 10


def test_a_model_that_fails_while_it_is_sampled_with(cartpole: rollserve.Sampler) -> None:
    space, actions_space = gym_spaces.Box(-0.04, 0.04, (4,), np.float32), gym_spaces.Discrete(2)
    spec = prepared(raising_after(0.05), space, actions_space)  # where it does not fail yet
    agent = build_agent(spec, space, actions_space, 2)
    agent.act([np.zeros((2, 4), np.float32)], np.zeros((2, 1)))
    with raises(DomainError, reason=Reason.AGENT_FAILED, quotes="Gather"):
        agent.act([np.ones((2, 4), np.float32)], np.zeros((2, 1)))
    with raises(rollserve.InvalidArgumentError, field="all_workers.agent.onnx.model", quotes=("2 rows", "Gather")):
        cartpole.update_agent(agent_of(raising_after(0.05)))


def test_actions_that_are_not_in_their_space(cartpole: rollserve.Sampler) -> None:
    nodes = [
        node("ReduceSum", "observation axes", "sum", keepdims=0),
        node("Mul", "sum gain", "large"),
        node("Cast", "large", "action", to=INT64),
    ]
    constants = {"axes": np.array([1]), "gain": np.float32(1)}
    made = model(nodes, {"observation": ["N", 4]}, {"action": ["N"]}, constants, types={"action": INT64})
    cartpole.update_agent(agent_of(made, "actions"))
    cartpole.update_agent({"gain": np.float32(1000)})
    with raises(rollserve.PreconditionError, reason=Reason.AGENT_FAILED, match=r"episode \d+.*\b0\b.*'action'"):
        cartpole.obtain_samples(100)


def changed(**fields: Any) -> onnx.ModelProto:
    """The usual model with other inputs, outputs, types, nodes or opset."""
    arguments: dict[str, Any] = {
        "nodes": [node("Gemm", "observation w", "logits")],
        "inputs": {"observation": ["N", 4]},
        "outputs": {"logits": ["N", 2]},
        "initializers": {"w": np.ones((4, 2), np.float32)},
    }
    return model(**{**arguments, **fields})


def external() -> onnx.ModelProto:
    made = changed()
    onnx.external_data_helper.set_external_data(made.graph.initializer[0], "/etc/hostname")
    return made


def hidden_external() -> onnx.ModelProto:
    tensor = external().graph.initializer[0]
    constant = onnx.helper.make_node("Constant", [], ["w"], value=tensor)
    return changed(nodes=[constant, node("Gemm", "observation w", "logits")], initializers={})


MATMUL = node("Gemm", "observation w", "logits")
REFUSED: dict[str, tuple[onnx.ModelProto | bytes, str, tuple[str, ...]]] = {
    "no protobuf": (b"\xff\xff", "", ("ModelProto",)),
    "empty": (b"", "", ("graph", "opset")),
    "truncated": (categorical().SerializeToString()[:-7], "", ("ModelProto",)),
    "newer opset": (changed(opset=99), ".opset_import", ("99",)),
    "unknown operator": (changed(nodes=[node("Magic", "observation w", "logits")]), "", ("ONNX Runtime", "Magic")),
    "missing input": (
        changed(inputs={"x": ["N", 4]}, nodes=[node("Gemm", "x w", "logits")]),
        ".input",
        ("'observation'", "['x']"),
    ),
    "extra input": (
        changed(inputs={"observation": ["N", 4], "mask": ["N", 2]}),
        ".input",
        ("['observation', 'mask']", "['observation']"),
    ),
    "missing output": (
        changed(nodes=[node("Gemm", "observation w", "y")], outputs={"y": ["N", 2]}),
        ".output",
        ("'logits'", "['y']"),
    ),
    "extra output": (
        changed(nodes=[MATMUL, node("Abs", "logits", "y")], outputs={"logits": ["N", 2], "y": ["N", 2]}),
        ".output",
        ("'y'", "infos"),
    ),
    "other rows": (
        changed(inputs={"observation": ["N", 5]}, initializers={"w": np.ones((5, 2), np.float32)}),
        ".input['observation']",
        ("('N', 5)", "('N', 4)"),
    ),
    "more axes": (
        changed(inputs={"observation": ["N", 1, 4]}, nodes=[node("MatMul", "observation w", "logits")]),
        ".input['observation']",
        ("('N', 1, 4)", "('N', 4)"),
    ),
    "integers for floats": (
        changed(types={"observation": INT64, "logits": INT64}, initializers={"w": np.ones((4, 2), np.int64)}),
        ".input['observation']",
        ("int64", "float32"),
    ),
    "too few logits": (
        changed(outputs={"logits": ["N", 3]}, initializers={"w": np.ones((4, 3), np.float32)}),
        ".output['logits']",
        ("(3,)", "2"),
    ),
    "fixed batch": (
        changed(inputs={"observation": [1, 4]}, outputs={"logits": [1, 2]}),
        ".input['observation']",
        ("batch", "1"),
    ),
    "fixed batch within": (
        changed(
            nodes=[node("Reshape", "observation shape", "x"), node("Gemm", "x w", "logits")],
            initializers={"w": np.ones((4, 2), np.float32), "shape": np.array([1, 4])},
        ),
        "",
        ("2 rows", "Reshape"),
    ),
    "one row for all": (
        changed(nodes=[node("Gemm", "observation w", "y"), node("ReduceMean", "y axes", "logits")],
                initializers={"w": np.ones((4, 2), np.float32), "axes": np.array([0])}, outputs={"logits": [None, 2]}),
        "",
        ("'logits'", "(1, 2)", "2 rows"),
    ),
    "random numbers": (
        changed(nodes=[node("RandomNormalLike", "observation", "x"), node("Gemm", "x w", "logits")]),
        "",
        ("same input", "noise"),
    ),
    "another file": (external(), ".initializer['w']", ("file",)),
    "another file within": (hidden_external(), ".initializer['w']", ("file",)),
    "not a number": (
        changed(initializers={"w": np.full((4, 2), np.nan, np.float32)}),
        ".initializer['w']",
        ("NaN",),
    ),
    "too much memory": (
        changed(nodes=[node("ConstantOfShape", "huge", "x"), node("ReduceMax", "x", "most", keepdims=0),
                       node("Gemm", "observation w", "y"), node("Add", "y most", "logits")],
                initializers={"w": np.ones((4, 2), np.float32), "huge": np.array([1 << 36])}),
        "",
        (),
    ),
}  # fmt: skip
"""Models, the field below `model` that is at fault, and what the message has to quote."""


def held(sampler: rollserve.Sampler) -> tuple[Any, ...]:
    """What acts, and in which processes."""
    status = sampler.status()
    return status.policy_version, status.agent_kinds, [worker.process_id for worker in status.workers]


@pytest.mark.parametrize("kind", REFUSED)
def test_models_that_are_refused(cartpole: rollserve.Sampler, kind: str) -> None:
    """The message names the field, and nothing changes."""
    cartpole.update_agent(rollserve.RandomAgent())
    before = held(cartpole)
    made, field, quotes = REFUSED[kind]
    data = made if isinstance(made, bytes) else made.SerializeToString()
    path = f"all_workers.agent.onnx.model{field}"
    with raises(rollserve.InvalidArgumentError, field=path, reason=Reason.INVALID_VALUE, quotes=quotes):
        cartpole.update_agent(rollserve.OnnxAgent(data, HEAD))
    assert held(cartpole) == before


def test_names_that_are_refused(cartpole: rollserve.Sampler) -> None:
    made = changed()
    refused: list[tuple[dict[str, Any], str, tuple[str, ...]]] = [
        ({"inputs": {"state": "observation"}}, "inputs", ("'state'", "['observation', 'noise']")),
        ({"outputs": {"mean": "logits"}}, "outputs", ("'mean'", "['logits', 'value']")),
        ({"outputs": {"value": "v"}}, "model.output", ("'v'", "'value'", "['logits']")),
        ({"infos": ["x"]}, "infos[0]", ("'x'",)),
        ({"infos": ["logits"]}, "infos[0]", ("'logits'",)),
        ({"inputs": {"noise": "observation"}}, "model.input", ("['observation']",)),
        ({"head": "diagonal_gaussian"}, "head", ("diagonal_gaussian", "Discrete(2)")),
        ({"head": "actions"}, "model.output", ("'action'",)),
    ]
    for options, field, quotes in refused:
        with raises(rollserve.InvalidArgumentError, field=f"all_workers.agent.onnx.{field}", quotes=quotes):
            cartpole.update_agent(agent_of(made, **{"head": HEAD, **options}))
    with raises(ValueError, field="head"):
        agent_of(made, "softmax")


def test_a_trial_has_limits() -> None:
    space = gym_spaces.Box(-1, 1, (4,), np.float32)
    body = onnx.helper.make_graph(
        [node("Tanh", "state", "next"), node("Identity", "go", "going")],
        "body",
        [onnx.helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in
         (("i", INT64, []), ("go", TensorProto.BOOL, []), ("state", FLOAT, ["N", 4]))],
        [onnx.helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in
         (("going", TensorProto.BOOL, []), ("next", FLOAT, ["N", 4]))],
    )  # fmt: skip
    loop = onnx.helper.make_node("Loop", ["most", "yes", "observation"], ["x"], body=body)
    constants = {"w": np.ones((4, 2), np.float32), "most": np.array(1 << 40), "yes": np.array(True)}
    endless = changed(nodes=[loop, node("Gemm", "x w", "logits")], initializers=constants)
    with raises(InvalidValueError, field="model", match=r"\b(1|5) s\b"):
        prepared(endless, space, gym_spaces.Discrete(2), sandbox=SandboxLimits(seconds=1))
    seven = OnnxModel(b"1234567", {}, {}, HEAD, ())
    quotes = ("7", "6", "--max-model-bytes")
    with raises(DomainError, field="model", reason=Reason.MODEL_TOO_LARGE, quotes=quotes):
        prepare_agent(seven, space, gym_spaces.Discrete(2), AgentSettings(max_model_bytes=6))


@settings(max_examples=25)
@given(data=st.data())
def test_mutated_models_do_no_harm(data: st.DataObject) -> None:
    """They are taken or refused, by this process, which is still there."""
    whole = bytearray(categorical((4, 3, 2)).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(whole) - 1))
        whole[start : start + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    with contextlib.suppress(InvalidValueError):
        spec = prepared(bytes(whole), gym_spaces.Box(-1, 1, (4,), np.float32), gym_spaces.Discrete(2))
        assert spec.outputs["logits"].shape == (2,)


async def test_a_worker_that_is_lost_gets_the_model_again(ray_backend: Backend) -> None:
    made = OnnxModel(categorical(SIZES).SerializeToString(), {}, {}, HEAD, ())
    async with pool_of(ray_backend) as pool:
        await pool.update_agent([made])
        await pool.update_agent([mlp_parameters(SIZES, 1)])
        before = await sample(pool, AtLeast(100), seed=1)
        slot_of(pool, 0).handle.kill()
        await asyncio.sleep(0.2)
        assert equal(before, await sample(pool, AtLeast(100), seed=1))
