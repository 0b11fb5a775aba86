"""A task that needs memory, with hand-made recurrent agents of each kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx_models import agent_of, model, node

import rollserve


def remembering_agent(core: str) -> rollserve.MlpAgent:
    """Return an agent that remembers which of the last two elements of an observation was 1 last."""
    gates = {"gru": ([0, 0, 0], [0, -40, -40], [0, -10, 10]), "lstm": ([0] * 3, [0] * 3, [0, -10, 10], [0] * 3)}[core]
    biases = {"gru": [0, 20, 0], "lstm": [20, 20, 0, 20]}[core]
    parameters = {
        "core/weight_ih": np.array(gates),
        "core/weight_hh": np.zeros((len(gates), 1)),
        "core/bias_ih": np.array(biases),
        "core/bias_hh": np.zeros(len(gates)),
        "0/weight": np.array([[-20], [20]]),
        "0/bias": np.zeros(2),
    }
    floats = {name: value.astype(np.float32) for name, value in parameters.items()}
    return rollserve.MlpAgent(floats, "categorical")


def remembering_model() -> rollserve.OnnxAgent:
    """Return a model that remembers the last observation other than 0."""
    nodes = [
        node("Mul", "observation two", "doubled"),
        node("Sub", "doubled three", "side"),
        node("Equal", "observation zero", "is_old"),
        node("Where", "is_old state/side side", "next_state/side"),
        node("Unsqueeze", "next_state/side last", "column"),
        node("MatMul", "column sides", "logits"),
    ]
    floats = {"zero": 0, "two": 2, "three": 3, "sides": [[-20, 20]]}
    constants = {name: np.array(value, np.float32) for name, value in floats.items()}
    inputs = {"observation": ["N"], "state/side": ["N"]}
    outputs = {"logits": ["N", 2], "next_state/side": ["N"]}
    return agent_of(model(nodes, inputs, outputs, {**constants, "last": np.array([1])}))


@pytest.mark.parametrize(
    "make",
    [lambda: remembering_agent("gru"), lambda: remembering_agent("lstm"), remembering_model],
    ids=["gru", "lstm", "onnx"],
)
@pytest.mark.slow
def test_recurrent_agents_solve_a_memory_task(sampler: rollserve.Sampler, make: Callable[[], Any]) -> None:
    sampler.update_env("sample_envs:Recall")
    sampler.update_agent(make())
    batch = sampler.obtain_samples(1500)
    assert len(batch) > 100
    assert (batch.returns == 1).all()
    num_ended = 0
    for _ in range(12):  # shorter than most of the episodes
        fragments = sampler.obtain_fragments(24)
        ends = np.cumsum(fragments.lengths)[fragments.terminated] - 1
        assert (fragments.rewards[ends] == 1).all()
        num_ended += len(ends)
    assert num_ended > 20


@pytest.mark.slow
def test_agents_without_memory_fail_a_memory_task(sampler: rollserve.Sampler) -> None:
    updated = sampler.update_env("sample_envs:Recall")
    spaces = updated.observation_space, updated.action_space
    for agent in (rollserve.MlpAgent.initial(*spaces, seed=0), rollserve.ConstantAgent(1)):
        sampler.update_agent(agent)
        assert abs(sampler.obtain_samples(4000, seed=3).returns.mean() - 0.5) < 0.1
