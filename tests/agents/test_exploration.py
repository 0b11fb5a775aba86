"""Exploration options of models in the ONNX format and of fixed agents; `test_mlp_exploration.py` has MLPs."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from onnx_models import gaussian, mlp_forward, mlp_parameters, model, node
from support import raises

from rollserve_server.agents import (
    AgentSpec,
    ConstantSpec,
    Exploration,
    OnnxModel,
    RandomSpec,
    build_agent,
    check_exploration,
    prepare_agent,
)
from rollserve_server.errors import InvalidValueError
from rollserve_server.settings import AgentSettings

SIZES = (3, 8, 2)
OBSERVATIONS = spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = spaces.Box(-1, 1, (2,), np.float32)
BEST = Exploration(deterministic=True)


@pytest.fixture(scope="module")
def squashed() -> AgentSpec:
    made = OnnxModel(gaussian(SIZES).SerializeToString(), {}, {}, "squashed_gaussian", ())
    return prepare_agent(made, OBSERVATIONS, ACTIONS, AgentSettings())


def act(spec: AgentSpec, exploration: Exploration) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    check_exploration(spec, exploration)
    agent = build_agent(spec, OBSERVATIONS, ACTIONS, 6, exploration=exploration)
    noise = np.zeros((6, agent.noise_width))
    agent.draw_noise(np.random.default_rng(0), noise)
    if agent.factors is not None:
        noise[:, 0] = agent.factors[np.arange(6) % len(agent.factors)]
    observations = np.random.default_rng(1).uniform(-1, 1, (6, 3)).astype(np.float32)
    (actions,), infos = agent.act([observations], noise)
    return actions.copy(), {"observations": observations, **{name: column.copy() for name, column in infos.items()}}


def test_model_with_a_head_explores_by_noise_scale(squashed: AgentSpec) -> None:
    best, infos = act(squashed, BEST)
    mean = mlp_forward(mlp_parameters(SIZES), infos["observations"])
    assert np.allclose(best, np.tanh(mean), atol=1e-5)
    assert not infos["log_prob"].any()
    actions, infos = act(squashed, Exploration(noise_scale=(0.5, 2)))
    for first, scale in enumerate((0.5, 2)):
        expected, expected_infos = act(squashed, Exploration(noise_scale=(scale,)))
        assert np.array_equal(actions[first::2], expected[first::2])
        assert np.allclose(infos["log_prob"][first::2], expected_infos["log_prob"][first::2], atol=1e-5)
    assert np.abs(actions - best)[1::2].mean() > 2 * np.abs(actions - best)[::2].mean()


def test_model_with_noise_gets_none_when_deterministic() -> None:
    """The noise of a model with the head `actions` cannot be scaled, only set to 0."""
    made = model([node("Tanh", "noise", "action")], {"observation": ["N", 3], "noise": ["N", 2]}, {"action": ["N", 2]})
    onnx = OnnxModel(made.SerializeToString(), {}, {}, "actions", ())
    spec = prepare_agent(onnx, OBSERVATIONS, ACTIONS, AgentSettings())
    assert act(spec, Exploration())[0].all()
    assert not act(spec, BEST)[0].any()
    with raises(InvalidValueError, field="noise_scales", quotes="actions"):
        act(spec, Exploration(noise_scale=(2,)))


def test_constant_and_random_agents_reject_exploration() -> None:
    constant = ConstantSpec({"": np.full(2, 0.5, np.float32)})
    assert np.all(act(constant, BEST)[0] == 0.5)
    with raises(InvalidValueError, field="epsilons", quotes="constant"):
        act(constant, Exploration(epsilon=(0.5,)))
    with raises(InvalidValueError, field="deterministic", quotes="random"):
        act(RandomSpec(), BEST)
