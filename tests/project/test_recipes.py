"""Recipes of docs/agents.md, run with PyTorch and JAX where these are installed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

import rollserve
from rollserve_server.local import LocalServer

DOCS = Path(__file__).parents[2] / "docs" / "agents.md"
RECIPES = dict(re.findall(r"<!-- recipe: (\w+) -->\n```python\n(.*?)```", DOCS.read_text(), re.DOTALL))


def follow(name: str, server: LocalServer, env: str) -> tuple[dict[str, Any], rollserve.EpisodeBatch]:
    """Run a recipe; return its global names and a batch of the agent it sends."""
    with rollserve.connect(server.address) as sampler:
        sampler.update_env(env, kwargs={"max_episode_steps": 50})
        names: dict[str, Any] = {"sampler": sampler, "__name__": "recipe"}
        exec(RECIPES[name], names)
        return names, sampler.obtain_samples(100)


def test_onnx_recipe_acts_as_the_model(server: LocalServer) -> None:
    names, batch = follow("onnx", server, "CartPole-v1")
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in names["model"].graph.initializer}
    hidden = np.tanh(batch.observations @ weights["hidden.weight"] + weights["hidden.bias"])
    logits = hidden @ weights["logits.weight"] + np.array([0.5, -0.5])
    assert np.allclose(batch.agent_infos["logits"], logits, rtol=0, atol=1e-5)


def test_recurrent_recipe_acts_as_the_model(server: LocalServer) -> None:
    names, batch = follow("recurrent", server, "CartPole-v1")
    assert not batch.initial_states["h"].any()
    for episode in batch.split():
        h = np.zeros(16)
        for step, observation in enumerate(episode.observations):
            h = np.tanh(observation @ names["parameters"]["weight_ih"] + h @ names["parameters"]["weight_hh"])
            logits = h @ names["parameters"]["logits.weight"]
            assert np.allclose(episode.agent_infos["logits"][step], logits, rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("default")  # PyTorch's own warnings
def test_torch_recipe_acts_as_the_module(server: LocalServer) -> None:
    """Skipped where PyTorch is not installed: `pip install torch onnxscript`."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    names, batch = follow("torch", server, "HalfCheetah-v5")
    policy = names["policy"]
    outputs = policy(torch.as_tensor(batch.observations, dtype=torch.float32))
    mean, log_std, value = (output.detach() for output in outputs)
    assert np.allclose(batch.agent_infos["mean"], mean.numpy(), rtol=0, atol=1e-5)
    assert np.allclose(batch.agent_infos["log_std"], log_std.numpy(), rtol=0, atol=1e-5)
    assert np.allclose(batch.agent_infos["value"], value.numpy()[:, 0], rtol=0, atol=1e-5)
    log_prob = torch.distributions.Normal(mean, log_std.exp()).log_prob(torch.as_tensor(batch.actions)).sum(1)
    assert np.allclose(batch.agent_infos["log_prob"], log_prob.numpy(), atol=1e-4)


@pytest.mark.filterwarnings("default")  # warnings of JAX and its exporter
def test_jax_recipe_acts_as_the_function(server: LocalServer) -> None:
    """Skipped where the exporter is not installed: `pip install jax2onnx`."""
    pytest.importorskip("jax2onnx")
    names, batch = follow("jax", server, "CartPole-v1")
    logits, value = map(np.asarray, names["policy"](names["parameters"], batch.observations))
    assert np.allclose(batch.agent_infos["logits"], logits, rtol=0, atol=1e-5)
    assert np.allclose(batch.agent_infos["value"], value[:, 0], rtol=0, atol=1e-5)
