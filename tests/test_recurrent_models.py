"""Recurrent models in the ONNX format: each state goes in and comes out, and what does not fit is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from gymnasium import spaces
from onnx_models import FLOAT, INT64, model, node
from support import raises
from test_onnx import agent_of, prepared
from test_recurrent import check_beginnings

import rollserve
from rollserve_server.errors import InvalidValueError


def recurrent(change: Callable[[dict[str, Any]], None] = lambda fields: None) -> onnx.ModelProto:
    """tanh(observation · w + h · u) is remembered, and logits are made of it."""
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
    """Names that are no roles."""
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
def test_models(sampler: rollserve.Sampler, made: onnx.ModelProto, names: Any, state: str, vectorization: Any) -> None:
    sampler.update_env(rollserve.EnvSpec("CartPole-v1", vectorization=vectorization, num_rows=3))
    sampler.update_agent(agent_of(made, **names))
    batch = sampler.obtain_samples(200, return_states=True)
    parameters = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in made.graph.initializer}
    assert check_beginnings(batch) == 0
    for episode in batch.split():
        remembered = np.zeros(3)
        for step, observation in enumerate(episode.observations):
            assert np.allclose(episode.agent_infos[f"state/{state}"][step], remembered, atol=1e-5)
            remembered = np.tanh(observation @ parameters["w"] + remembered @ parameters["u"])
            assert np.allclose(episode.agent_infos["logits"][step], remembered @ parameters["v"], atol=1e-5)
    calls = [sampler.obtain_fragments(48, return_states=True) for _ in range(2)]
    assert check_beginnings(calls[0]) == 0
    assert check_beginnings(calls[1]) > 0


def set_(group: str, name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda fields: fields[group].__setitem__(name, value)


def without(group: str, name: str) -> Callable[[dict[str, Any]], None]:
    return lambda fields: fields[group].pop(name)


def cast(fields: dict[str, Any]) -> None:
    """Gives the next state as float64."""
    fields["nodes"][3:] = [
        node("Tanh", "z", "active"),
        node("Cast", "active", "next_state/h", to=onnx.TensorProto.DOUBLE),
        node("MatMul", "active v", "logits"),
    ]
    fields["types"]["next_state/h"] = onnx.TensorProto.DOUBLE


def wider(fields: dict[str, Any]) -> None:
    """Gives a next state of six numbers for one of three."""
    fields["nodes"][3:] = [node("Concat", "z z", "next_state/h", axis=1), node("MatMul", "z v", "logits")]
    fields["outputs"]["next_state/h"] = ["N", 6]


def without_input(fields: dict[str, Any]) -> None:
    """Remembers nothing, and gives a next state."""
    del fields["inputs"]["state/h"]
    fields["nodes"][1:3] = [node("Identity", "x", "z")]


def told_twice(fields: dict[str, Any]) -> None:
    """Has an output that is called like what is told of the state."""
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
    "no such state": (
        lambda fields: None,
        {"inputs": {"state/c": "cell"}},
        "model.input",
        ("'cell'", "'state/c'", "['observation', 'state/h']"),
    ),
    "another shape": (wider, {}, "model.output['next_state/h']", ("(6,)", "(3,)", "'state/h'")),
    "another type": (cast, {}, "model.output['next_state/h']", ("float64", "float32", "'state/h'")),
    "integers": (set_("types", "state/h", INT64), {}, "model.input['state/h']", ("int64",)),
    "an axis of any size": (
        set_("inputs", "state/h", ["N", "size"]),
        {},
        "model.input['state/h']",
        ("('N', 'size')", "('N', 64)"),
    ),
    "no shape": (set_("inputs", "state/h", None), {}, "model.input['state/h']", ("None", "('N', 64)")),
    "a fixed batch": (set_("inputs", "state/h", [1, 3]), {}, "model.input['state/h']", ("batch", "1")),
    "more than anybody remembers": (
        set_("inputs", "state/h", ["N", 50_000_000]),
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
    "a role that is none": (
        lambda fields: None,
        {"inputs": {"states/h": "state/h"}},
        "inputs",
        ("'states/h'", "['observation', 'noise'"),
    ),
    "told twice": (told_twice, {**NAMED, "infos": ["state/memory"]}, "infos[0]", ("'state/memory'",)),
}
"""Changes, names of roles, the field at fault, and what the message has to quote."""


@pytest.mark.parametrize("case", REFUSED)
def test_models_that_are_refused(case: str) -> None:
    change, names, field, quotes = REFUSED[case]
    with raises(InvalidValueError, field=field, quotes=quotes):
        prepared(recurrent(change), spaces.Box(-1, 1, (4,)), spaces.Discrete(2), **names)


def test_a_refused_model_changes_nothing(sampler: rollserve.Sampler) -> None:
    version = sampler.status().policy_version
    field = "all_workers.agent.onnx.model.output"
    with raises(rollserve.InvalidArgumentError, field=field, quotes="'next_state/h'"):
        sampler.update_agent(agent_of(recurrent(without("outputs", "next_state/h"))))
    assert sampler.status().policy_version == version


@pytest.mark.parametrize("vectorization", ["rows", "native"])
def test_a_state_that_is_no_number_ends_the_call_and_tells_where(
    sampler: rollserve.Sampler, vectorization: Any
) -> None:
    """One that is raised by one with each step, and has a root only as long as it is small."""
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
