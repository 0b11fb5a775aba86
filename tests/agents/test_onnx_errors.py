"""Models in the ONNX format that are rejected, or fail in a call."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import onnx
import pytest
from gymnasium import spaces as gym_spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from onnx_models import (
    FLOAT,
    HEAD,
    INT64,
    agent_of,
    categorical,
    changed,
    model,
    node,
    prepared,
)
from support import agent_and_workers, raises

import rollserve
from rollserve import Reason
from rollserve_server.agents import OnnxModel, build_agent, prepare_agent
from rollserve_server.errors import DomainError, InvalidValueError
from rollserve_server.settings import AgentSettings, SandboxLimits

SIZES = (4, 16, 2)
MATMUL = node("Gemm", "observation w", "logits")


def raising_after(limit: float) -> onnx.ModelProto:
    """Return a model that fails when the cart is further from 0 than the limit: it looks up a missing row."""
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
    """Return a model whose outputs are NaN when an element of the observation is further from 0 than its limit."""
    nodes = [
        node("Abs", "observation", "distances"),
        node("Sub", "limits distances", "left"),
        node("Sqrt", "left", "roots"),
        node("Gemm", "roots w", "logits"),
    ]
    constants = {"limits": np.array(limits, np.float32), "w": np.zeros((4, 2), np.float32)}
    return model(nodes, {"observation": ["N", 4]}, {"logits": ["N", 2]}, constants)


@pytest.mark.parametrize("vectorization", ["rows", "native"])
def test_nan_output_fails_the_call_with_its_position(cartpole: rollserve.Sampler, vectorization: Any) -> None:
    cartpole.update_env(rollserve.EnvSpec("CartPole-v1", vectorization=vectorization, num_rows=4))
    cartpole.update_agent(agent_of(nan_after(0.3, 1e9, 1e9, 1e9)))
    pattern = r"episode \d+.*'logits'.*\bnan\b"
    for obtain in (cartpole.obtain_samples, cartpole.obtain_fragments):
        with raises(rollserve.PreconditionError, reason=Reason.AGENT_FAILED, match=pattern):
            obtain(4000)
    cartpole.update_agent(agent_of(categorical(SIZES)))
    assert cartpole.obtain_samples(40).num_steps >= 40
    assert cartpole.obtain_fragments(40).num_steps == 40


def test_model_does_not_act_on_last_observations(cartpole: rollserve.Sampler) -> None:
    """The last observation of an episode stays in its row without an action."""
    limits = 2.4, 1e9, 0.20944, 1e9  # bounds beyond which episodes end
    cartpole.update_agent(agent_of(nan_after(*limits)))
    batch = cartpole.obtain_exact_episodes(6)
    assert (np.abs(batch.last_observations) > limits).any(axis=1).sum() >= 10


def test_failing_model_fails_the_call(cartpole: rollserve.Sampler) -> None:
    space, actions_space = gym_spaces.Box(-0.04, 0.04, (4,), np.float32), gym_spaces.Discrete(2)
    spec = prepared(raising_after(0.05), space, actions_space)  # observations that the model does not fail for
    agent = build_agent(spec, space, actions_space, 2)
    agent.act([np.zeros((2, 4), np.float32)], np.zeros((2, 1)))
    with raises(DomainError, reason=Reason.AGENT_FAILED, quotes="Gather"):
        agent.act([np.ones((2, 4), np.float32)], np.zeros((2, 1)))
    with raises(rollserve.InvalidArgumentError, field="all_workers.agent.onnx.model", quotes=("2", "Gather")):
        cartpole.update_agent(agent_of(raising_after(0.05)))


def test_action_outside_its_space_fails_the_call(cartpole: rollserve.Sampler) -> None:
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


def external_model() -> onnx.ModelProto:
    made = changed()
    onnx.external_data_helper.set_external_data(made.graph.initializer[0], "/etc/hostname")
    return made


def hidden_external_model() -> onnx.ModelProto:
    tensor = external_model().graph.initializer[0]
    constant = onnx.helper.make_node("Constant", [], ["w"], value=tensor)
    return changed(nodes=[constant, node("Gemm", "observation w", "logits")], initializers={})


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
        ("2", "Reshape"),
    ),
    "one row for all": (
        changed(nodes=[node("Gemm", "observation w", "y"), node("ReduceMean", "y axes", "logits")],
                initializers={"w": np.ones((4, 2), np.float32), "axes": np.array([0])}, outputs={"logits": [None, 2]}),
        "",
        ("'logits'", "(1, 2)"),
    ),
    "random numbers": (
        changed(nodes=[node("RandomNormalLike", "observation", "x"), node("Gemm", "x w", "logits")]),
        "",
        ("noise",),
    ),
    "another file": (external_model(), ".initializer['w']", ("file",)),
    "another file within": (hidden_external_model(), ".initializer['w']", ("file",)),
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


@pytest.mark.parametrize("kind", REFUSED)
def test_invalid_model_is_rejected(cartpole: rollserve.Sampler, kind: str) -> None:
    cartpole.update_agent(rollserve.RandomAgent())
    before = agent_and_workers(cartpole)
    made, field, quotes = REFUSED[kind]
    data = made if isinstance(made, bytes) else made.SerializeToString()
    path = f"all_workers.agent.onnx.model{field}"
    with raises(rollserve.InvalidArgumentError, field=path, reason=Reason.INVALID_VALUE, quotes=quotes):
        cartpole.update_agent(rollserve.OnnxAgent(data, HEAD))
    assert agent_and_workers(cartpole) == before


def test_invalid_names_and_heads_are_rejected(cartpole: rollserve.Sampler) -> None:
    made = changed()
    refused: list[tuple[dict[str, Any], str, tuple[str, ...]]] = [
        ({"inputs": {"state": "observation"}}, "inputs", ("'state'", "['observation', 'noise', 'previous_action', ")),
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


def test_sandbox_limits_time_and_model_size() -> None:
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
def test_mutated_models_are_accepted_or_rejected(data: st.DataObject) -> None:
    """The server's process survives in either case."""
    whole = bytearray(categorical((4, 3, 2)).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(whole) - 1))
        whole[start : start + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    with contextlib.suppress(InvalidValueError):
        spec = prepared(bytes(whole), gym_spaces.Box(-1, 1, (4,), np.float32), gym_spaces.Discrete(2))
        assert spec.outputs["logits"].shape == (2,)
