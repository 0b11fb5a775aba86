"""Recipes of the documentation, run with PyTorch and JAX where these are installed."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import raises

import rollserve
from rollserve_server.local import LocalServer, local_server

DOCS = Path(__file__).parents[2] / "docs"
NAMES = ("client.md", "learning.md", "models.md", "normalization.md", "streaming.md")
PAGES = "".join((DOCS / name).read_text() for name in NAMES)
RECIPES = dict(re.findall(r"<!-- recipe: (\w+) -->\n```python\n(.*?)```", PAGES, re.DOTALL))


def follow(name: str, server: LocalServer, env: str) -> tuple[dict[str, Any], rollserve.EpisodeBatch]:
    """Run a recipe; return its global names and a batch of the agent that it sends last."""
    with rollserve.connect(server.address) as sampler:
        sampler.update_env(env, kwargs={"max_episode_steps": 50})
        names: dict[str, Any] = {"sampler": sampler, "__name__": "recipe"}
        exec(RECIPES[name], names)
        return names, sampler.obtain_samples(100)


def advantages(batch: rollserve.EpisodeBatch, segment: int) -> np.ndarray:
    """Return the generalized advantage estimates of a segment, by their definition as a sum."""
    part = batch.split()[segment]
    values = np.append(part.agent_infos["value"], part.last_values * ~part.terminated)
    deltas = part.rewards + 0.99 * values[1:] - values[:-1]
    decay = 0.99 * 0.95
    return np.array([np.sum(deltas[t:] * decay ** np.arange(len(deltas) - t)) for t in range(len(deltas))])


def learn(sampler: rollserve.Sampler, recipe: str, **given: Any) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """Run a recipe of docs/learning.md; return its global names and what it passed to `update`."""
    sampler.update_env("CartPole-v1", kwargs={"max_episode_steps": 30})
    updates: list[tuple[Any, ...]] = []
    names = {
        "sampler": sampler,
        "rollserve": rollserve,
        "generator": np.random.default_rng(0),
        "critic": lambda observations: observations.sum(axis=-1),
        "log_probs": lambda observations, actions: np.log(0.5 + 0 * observations[:, 0]),
        "network": lambda observations, states: observations.sum(axis=-1) + states["h"].sum(axis=-1, keepdims=True),
        "update": lambda *columns: updates.append(columns),
        **given,
    }
    exec(RECIPES[recipe], names)
    return names, updates


def test_ppo_recipe_learns_from_each_step_four_times(sampler: rollserve.Sampler) -> None:
    status = sampler.status()
    agent = rollserve.MlpAgent.initial(status.observation_space, status.action_space, value="shared", seed=0)
    names, updates = learn(sampler, "ppo", agent=agent)
    batch = names["batch"]
    assert batch.truncated.any()
    assert batch.terminated.any()
    expected = np.concatenate([advantages(batch, i) for i in range(len(batch))])
    assert np.allclose(names["advantages"], (expected - expected.mean()) / expected.std(), atol=1e-5)
    assert len(updates) == 3 * 4 * 5
    learned = np.concatenate([update[3] for update in updates[-4 * 5 :]])
    assert np.allclose(np.sort(learned), np.repeat(np.sort(names["advantages"]), 4))


def test_impala_recipe_weights_actions_by_both_policies(sampler: rollserve.Sampler) -> None:
    names, _ = learn(sampler, "impala")
    batch, ends = names["batch"], np.cumsum(names["batch"].lengths) - 1
    ratios = np.minimum(1, 0.5 / np.exp(batch.agent_infos["log_prob"][ends]))
    after = names["last_values"] * ~batch.terminated
    errors = batch.rewards[ends] + 0.99 * after - names["values"][ends]
    assert np.allclose(names["advantages"][ends], ratios * errors, rtol=1e-4)


def test_normalization_recipe_learns_from_what_acted(sampler: rollserve.Sampler) -> None:
    returns = rollserve.RunningReturns(0.99)

    def learn(parameters: dict[str, np.ndarray], batch: Any, advantages: np.ndarray, targets: np.ndarray) -> None:
        hidden = np.tanh(batch.observations @ parameters["0/weight"].T + parameters["0/bias"])
        hidden = np.tanh(hidden @ parameters["1/weight"].T + parameters["1/bias"])
        logits = hidden @ parameters["2/weight"].T + parameters["2/bias"]
        assert np.allclose(batch.agent_infos["logits"], logits, atol=1e-5)
        returns.add(dataclasses.replace(batch, rewards=batch.raw_rewards))
        assert np.allclose(batch.rewards, batch.raw_rewards / np.sqrt(returns.moments.variance + 1e-8))
        parameters["2/weight"] += np.float32(0.1)

    names: dict[str, Any] = {"sampler": sampler, "learn": learn}
    exec(RECIPES["normalization"], names)
    iterations, held = names["iterations"], sampler.agent_parameters()
    assert returns.num_unknown_episodes == 0
    assert iterations.return_moments == returns.moments
    assert iterations.observation_moments.count == 6_400
    assert np.array_equal(held["observation/mean"], iterations.observation_moments.mean)
    assert np.array_equal(held["observation/variance"], iterations.observation_moments.variance)


def test_onnx_normalization_recipe_acts_as_the_formula(server: LocalServer) -> None:
    names, batch = follow("onnx_normalization", server, "CartPole-v1")
    assert names["moments"].count >= 1000
    logits = names["moments"].normalized(batch.observations) @ names["parameters"]["weight"]
    assert np.allclose(batch.agent_infos["logits"], logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("recipe", ["sac", "prioritized"])
def test_replay_recipe_draws_from_all_calls(sampler: rollserve.Sampler, recipe: str) -> None:
    names, updates = learn(sampler, recipe)
    assert len(names["buffer"]) == 640
    assert [len(update[2]) for update in updates] == [256] * 5
    assert set((names["part"].indices // 128).tolist()) == set(range(5))


def test_stream_replay_recipe_joins_the_rounds(sampler: rollserve.Sampler) -> None:
    drawn: list[rollserve.Transitions] = []

    def learn(part: rollserve.Transitions) -> rollserve.RandomAgent:
        drawn.append(part)
        return rollserve.RandomAgent()

    sampler.update_env("Pendulum-v1")  # whose episodes have 200 steps
    sampler.update_agent(rollserve.RandomAgent())
    names = {"sampler": sampler, "rollserve": rollserve, "generator": np.random.default_rng(0), "learn": learn}
    exec(RECIPES["stream_replay"], names)
    assert len(names["buffer"]) == 4_000
    assert len(drawn) == 10
    assert 0 < (drawn[-1].lengths < 3).mean() < 0.02  # at the ends of episodes and of the data, not of rounds


def test_sequences_recipe_learns_from_each_step_once(sampler: rollserve.Sampler) -> None:
    status = sampler.status()
    core = rollserve.MlpAgent.initial(status.observation_space, status.action_space, core="gru", core_size=8, seed=0)
    sampler.update_agent(core)
    names, _ = learn(sampler, "sequences")
    assert names["found"]["learned"].sum() == 1_280
    assert np.isfinite(names["loss"])
    assert names["found"]["initial_states"].keys() == {"h"}


@pytest.mark.slow
def test_restarts_recipe_continues_until_another_client_takes_over(tmp_path: Path) -> None:
    options = ("--env", "CartPole-v1", "--backend", "in-process", "--workers", "1")
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(local_server(*options, log=tmp_path / "log"))]
        address = servers[0].address
        sampler = stack.enter_context(rollserve.connect(address, timeout=3))
        learned: list[rollserve.EpisodeBatch] = []

        def sleep(seconds: float) -> None:
            if servers[-1].process.poll() is not None:
                servers.append(stack.enter_context(local_server(*options, "--listen", address, log=tmp_path / "log")))

        def learn(agent: rollserve.MlpAgent, batch: rollserve.EpisodeBatch) -> rollserve.MlpAgent:
            learned.append(batch)
            if len(learned) == 1:
                servers[-1].stop()
            elif len(learned) == 2:
                servers[-1].reset()
            else:
                with rollserve.connect(address) as other:
                    other.update_agent(rollserve.RandomAgent())
            return agent

        status = sampler.status()
        agent = rollserve.MlpAgent.initial(status.observation_space, status.action_space, seed=0)
        names = {"sampler": sampler, "agent": agent, "learn": learn, "num_iterations": 9, "rollserve": rollserve}
        with raises(rollserve.PreconditionError, reason=rollserve.Reason.UNEXPECTED_VERSION):
            exec(RECIPES["restarts"], names | {"time": SimpleNamespace(sleep=sleep)})
        assert len(servers) == 2
        assert len(learned) == 3
        assert sampler.agent_versions()[-1].policy_version == sampler.status().policy_version == 2


@pytest.mark.filterwarnings("default")  # PyTorch's own warnings
def test_torch_recipe_acts_as_the_module(server: LocalServer) -> None:
    """Skipped where PyTorch is not installed: `pip install torch onnxscript`."""
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    names, batch = follow("torch", server, "HalfCheetah-v5")
    check_gaussian(names["policy"], batch)


def check_gaussian(policy: Any, batch: rollserve.EpisodeBatch) -> None:
    """Check that a batch has the outputs of the PyTorch module of a recipe."""
    torch = pytest.importorskip("torch")
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
