"""MLPs as ONNX models: what the server computes with either, and exports that are refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import raises

import rollserve

Make = Callable[..., rollserve.MlpAgent]


def changed(agent: rollserve.MlpAgent, **changes: Any) -> rollserve.MlpAgent:
    """Return an agent with other settings, and parameters that are not small."""
    generator = np.random.default_rng(3)
    parameters = {
        name: value + 0.3 * generator.standard_normal(value.shape).astype(value.dtype)
        for name, value in agent.parameters.items()
        if not name.endswith("variance")
    }
    return dataclasses.replace(agent, parameters={**agent.parameters, **parameters}, **changes)


CASES: dict[str, tuple[str | rollserve.EnvSpec, dict[str, Any], dict[str, Any]]] = {
    "tanh": ("CartPole-v1", {}, {}),
    "relu": ("CartPole-v1", {"activation": "relu", "value": "shared"}, {}),
    "elu": ("CartPole-v1", {"activation": "elu", "value": "separate", "layer_norm": True}, {}),
    "gelu": ("CartPole-v1", {"activation": "gelu"}, {}),
    "gelu_tanh": ("CartPole-v1", {"activation": "gelu_tanh"}, {}),
    "silu": ("CartPole-v1", {"activation": "silu", "hidden_sizes": ()}, {}),
    "gru": ("CartPole-v1", {"core": "gru", "value": "shared", "previous_reward": True}, {}),
    "lstm": ("CartPole-v1", {"core": "lstm", "value": "separate"}, {}),
    "normalized": ("CartPole-v1", {"normalization": True}, {"normalization_clip": 0.5}),
    "gaussian": ("Pendulum-v1", {}, {"max_log_std": -0.1}),
    "squashed": ("Pendulum-v1", {"head": "squashed_gaussian", "predicted_log_std": True}, {"min_log_std": -1.0}),
    "discrete observations": ("FrozenLake-v1", {}, {}),
    "tuple observations": ("Blackjack-v1", {}, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_model_acts_as_the_mlp(thread_sampler: rollserve.Sampler, name: str) -> None:
    env, options, settings = CASES[name]
    updated = thread_sampler.update_env(env)
    spaces = updated.observation_space, updated.action_space
    mlp = changed(rollserve.MlpAgent.initial(*spaces, seed=0, **options), **settings)
    thread_sampler.update_agent(mlp)
    # Rounding grows with each step that an episode has gone another way.
    expected = thread_sampler.obtain_samples(150, seed=1, max_episode_length=25)
    model = rollserve.OnnxAgent.from_mlp(mlp, *spaces)
    thread_sampler.update_agent(model)
    batch = thread_sampler.obtain_samples(150, seed=1, max_episode_length=25)
    assert np.allclose(batch.actions, expected.actions, atol=1e-4)  # integers are equal
    for key in ("value", "logits", "mean", "log_std", "log_prob"):
        if key in expected.agent_infos:
            assert np.allclose(batch.agent_infos[key], expected.agent_infos[key], atol=1e-3), key
    assert thread_sampler.agent_parameters().keys() == mlp.parameters.keys()
    thread_sampler.update_agent(mlp.parameters)
    again = thread_sampler.obtain_samples(150, seed=1, max_episode_length=25)
    assert np.allclose(again.actions, expected.actions, atol=1e-4)


def test_hybrid_head_becomes_heads_of_leaves(thread_sampler: rollserve.Sampler) -> None:
    updated = thread_sampler.update_env("sample_envs:Hybrid")
    spaces = updated.observation_space, updated.action_space
    mlp = changed(rollserve.MlpAgent.initial(*spaces, seed=0, head={"1": "squashed_gaussian"}))
    thread_sampler.update_agent(mlp)
    expected = thread_sampler.obtain_samples(60, seed=1)
    thread_sampler.update_agent(rollserve.OnnxAgent.from_mlp(mlp, *spaces))
    batch = thread_sampler.obtain_samples(60, seed=1)
    for leaf, action in expected.actions.items():
        assert np.allclose(batch.actions[leaf], action, atol=1e-4), leaf


def test_mask_of_the_mlp_is_the_models(thread_sampler: rollserve.Sampler) -> None:
    updated = thread_sampler.update_env("sample_envs:Masked", kwargs={"source": "observation"})
    spaces = updated.observation_space, updated.action_space
    mask = rollserve.ActionMask(observation="action_mask")
    mlp = changed(rollserve.MlpAgent.initial(*spaces, seed=0, action_mask=mask))
    thread_sampler.update_agent(mlp)
    expected = thread_sampler.obtain_samples(60, seed=1)
    thread_sampler.update_agent(rollserve.OnnxAgent.from_mlp(mlp, *spaces))
    batch = thread_sampler.obtain_samples(60, seed=1)
    assert np.array_equal(batch.actions, expected.actions)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"head": "epsilon_greedy"}, "head: expected a head that models have, categorical"),
        ({"head": "boltzmann"}, "head: expected a head that models have"),
        ({"previous_action": True}, "previous_action: expected False for a model"),
    ],
)
def test_mlp_that_no_model_can_be_is_refused(
    thread_sampler: rollserve.Sampler, options: dict[str, Any], text: str
) -> None:
    status = thread_sampler.status()
    spaces = status.observation_space, status.action_space
    with raises(ValueError, match=text):
        rollserve.OnnxAgent.from_mlp(rollserve.MlpAgent.initial(*spaces, seed=0, **options), *spaces)
