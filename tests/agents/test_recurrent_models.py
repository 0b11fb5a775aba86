"""Recurrent models in the ONNX format: states as inputs and outputs, and models that are rejected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from gymnasium import spaces
from onnx_models import FLOAT, INT64, agent_of, model, node, prepared
from recurrent_truth import check_beginnings
from support import raises

import rollserve
from rollserve_server.errors import InvalidValueError


def recurrent(change: Callable[[dict[str, Any]], None] = lambda fields: None) -> onnx.ModelProto:
    """Return a model with the next state tanh(observation · w + h · u) and logits computed from it."""
    source = np.random.default_rng(0)
    weights = {"w": (4, 3), "u": (3, 3), "v": (3, 2)}
    fields: dict[str, Any] = {
        "nodes": [
            node("MatMul", "observation w", "x"),
            node("MatMul", "state/h u", "y"),
            node("Add", "x y", "z"),
            node("Tanh", "z", "next_state/h"),
            node("MatMul", "next_state/h v", "logits"),
        ],
        "inputs": {"observation": ["N", 4], "state/h": ["N", 3]},
        "outputs": {"logits": ["N", 2], "next_state/h": ["N", 3]},
        "initializers": {name: source.standard_normal(shape).astype(np.float32) for name, shape in weights.items()},
        "types": {},
    }
    change(fields)
    return model(**fields)


def renamed(fields: dict[str, Any]) -> None:
    """Rename the state's input and output to names that are no roles."""
    nodes = fields["nodes"]
    nodes[1], nodes[3] = node("MatMul", "before u", "y"), node("Tanh", "z", "after")
    nodes[4] = node("MatMul", "after v", "logits")
    fields["inputs"]["before"] = fields["inputs"].pop("state/h")
    fields["outputs"]["after"] = fields["outputs"].pop("next_state/h")


NAMED = {"inputs": {"state/memory": "before"}, "outputs": {"next_state/memory": "after"}}


@pytest.mark.parametrize(
    ("made", "names", "state"), [(recurrent(), {}, "h"), (recurrent(renamed), NAMED, "memory")], ids=["h", "memory"]
)
@pytest.mark.parametrize("vectorization", ["rows", "native"])
def test_recurrent_model_equals_plain_formulas(
    sampler: rollserve.Sampler, made: onnx.ModelProto, names: Any, state: str, vectorization: Any
) -> None:
    sampler.update_env(rollserve.EnvSpec("CartPole-v1", vectorization=vectorization, num_rows=3))
    sampler.update_agent(agent_of(made, **names))
    batch = sampler.obtain_samples(200, return_states=True)
    parameters = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in made.graph.initializer}
    assert check_beginnings(batch) == 0
    for episode in batch.split():
        remembered = np.zeros(3)
        for step, observation in enumerate(episode.observations):
            assert np.allclose(episode.agent_infos[f"state/{state}"][step], remembered, atol=1e-4)
            remembered = np.tanh(observation @ parameters["w"] + remembered @ parameters["u"])
            assert np.allclose(episode.agent_infos["logits"][step], remembered @ parameters["v"], atol=1e-4)
    calls = [sampler.obtain_fragments(48, return_states=True) for _ in range(2)]
    assert check_beginnings(calls[0]) == 0
    assert check_beginnings(calls[1]) > 0


def replaced(group: str, name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda fields: fields[group].__setitem__(name, value)


def without(group: str, name: str) -> Callable[[dict[str, Any]], None]:
    return lambda fields: fields[group].pop(name)


def cast(fields: dict[str, Any]) -> None:
    """Change the type of the next state to float64."""
    fields["nodes"][3:] = [
        node("Tanh", "z", "active"),
        node("Cast", "active", "next_state/h", to=onnx.TensorProto.DOUBLE),
        node("MatMul", "active v", "logits"),
    ]
    fields["types"]["next_state/h"] = onnx.TensorProto.DOUBLE


def wider(fields: dict[str, Any]) -> None:
    """Change the shape of the next state from (3,) to (6,)."""
    fields["nodes"][3:] = [node("Concat", "z z", "next_state/h", axis=1), node("MatMul", "z v", "logits")]
    fields["outputs"]["next_state/h"] = ["N", 6]


def without_input(fields: dict[str, Any]) -> None:
    """Remove the state's input, but not its output."""
    del fields["inputs"]["state/h"]
    fields["nodes"][1:3] = [node("Identity", "x", "z")]


def with_a_taken_name(fields: dict[str, Any]) -> None:
    """Add an output with the name of the state's info."""
    renamed(fields)
    fields["nodes"].append(node("Identity", "z", "state/memory"))
    fields["outputs"]["state/memory"] = ["N", 3]


REFUSED: dict[str, tuple[Callable[[dict[str, Any]], None], dict[str, Any], str, tuple[str, ...]]] = {
    "no next state": (
        without("outputs", "next_state/h"),
        {},
        "model.output",
        ("'next_state/h'", "['logits']"),
    ),
    "no state": (without_input, {}, "model.input", ("'state/h'", "'next_state/h'")),
    "missing state": (
        lambda fields: None,
        {"inputs": {"state/c": "cell"}},
        "model.input",
        ("'cell'", "'state/c'", "['observation', 'state/h']"),
    ),
    "another shape": (wider, {}, "model.output['next_state/h']", ("(6,)", "(3,)", "'state/h'")),
    "another type": (cast, {}, "model.output['next_state/h']", ("float64", "float32", "'state/h'")),
    "integers": (replaced("types", "state/h", INT64), {}, "model.input['state/h']", ("int64",)),
    "an axis of any size": (
        replaced("inputs", "state/h", ["N", "size"]),
        {},
        "model.input['state/h']",
        ("('N', 'size')", "('N', 64)"),
    ),
    "no shape": (replaced("inputs", "state/h", None), {}, "model.input['state/h']", ("None", "('N', 64)")),
    "a fixed batch": (replaced("inputs", "state/h", [1, 3]), {}, "model.input['state/h']", ("batch", "1")),
    "too large a state": (
        replaced("inputs", "state/h", ["N", 50_000_000]),
        {},
        "model.input",
        ("50000000", "65536"),
    ),
    "a name of a mask": (
        lambda fields: None,
        {"inputs": {"state/_h": "state/h"}, "outputs": {"next_state/_h": "next_state/h"}},
        "model.input",
        ("'state/_h'", "'_'"),
    ),
    "unknown role": (
        lambda fields: None,
        {"inputs": {"states/h": "state/h"}},
        "inputs",
        ("'states/h'", "['observation', 'noise'"),
    ),
    "a taken name": (with_a_taken_name, {**NAMED, "infos": ["state/memory"]}, "infos[0]", ("'state/memory'",)),
}
"""Changes, names of roles, the field at fault, and what the message has to quote."""


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_recurrent_model_is_rejected(case: str) -> None:
    change, names, field, quotes = REFUSED[case]
    with raises(InvalidValueError, field=field, quotes=quotes):
        prepared(recurrent(change), spaces.Box(-1, 1, (4,)), spaces.Discrete(2), **names)


def test_rejected_model_changes_nothing(sampler: rollserve.Sampler) -> None:
    version = sampler.status().policy_version
    field = "all_workers.agent.onnx.model.output"
    with raises(rollserve.InvalidArgumentError, field=field, quotes="'next_state/h'"):
        sampler.update_agent(agent_of(recurrent(without("outputs", "next_state/h"))))
    assert sampler.status().policy_version == version


@pytest.mark.parametrize("vectorization", ["rows", "native"])
def test_nan_state_fails_the_call_with_its_position(sampler: rollserve.Sampler, vectorization: Any) -> None:
    """The state counts steps, and becomes NaN when it exceeds 2.5."""
    nodes = [
        node("MatMul", "observation w", "logits"),
        node("Sub", "limit state/count", "left"),
        node("Sqrt", "left", "root"),
        node("Mul", "root zero", "nothing"),
        node("Sum", "state/count one nothing", "next_state/count"),
    ]
    constants = {"limit": 2.5, "zero": 0, "one": 1, "w": np.zeros((4, 2))}
    made = model(
        nodes,
        {"observation": ["N", 4], "state/count": ["N"]},
        {"logits": ["N", 2], "next_state/count": ["N"]},
        {name: np.float32(value) for name, value in constants.items()},
        types={"state/count": FLOAT},
    )
    sampler.update_env(rollserve.EnvSpec("CartPole-v1", vectorization=vectorization, num_rows=4))
    sampler.update_agent(agent_of(made))
    pattern = r"episode \d+.*\b3\b.*'next_state/count'.*\bnan\b"
    for obtain in (sampler.obtain_samples, sampler.obtain_fragments):
        with raises(rollserve.PreconditionError, reason=rollserve.Reason.AGENT_FAILED, match=pattern):
            obtain(80)
