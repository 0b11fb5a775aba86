"""Recipes of the documentation, run with PyTorch and JAX where these are installed."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper
from support import raises

import rollserve
from rollserve_server.local import LocalServer, local_server

DOCS = Path(__file__).parents[2] / "docs"
NAMES = ("agents.md", "client.md", "learning.md", "normalization.md", "sampling.md", "streaming.md")
PAGES = "".join((DOCS / name).read_text() for name in NAMES)
RECIPES = dict(re.findall(r"<!-- recipe: (\w+) -->\n```python\n(.*?)```", PAGES, re.DOTALL))


def follow(name: str, server: LocalServer, env: str, *others: str) -> tuple[dict[str, Any], rollserve.EpisodeBatch]:
    """Run a recipe, and others after it; return their global names and a batch of the agent they send last."""
    with rollserve.connect(server.address) as sampler:
        sampler.update_env(env, kwargs={"max_episode_steps": 50})
        names: dict[str, Any] = {"sampler": sampler, "__name__": "recipe"}
        for recipe in (name, *others):
            exec(RECIPES[recipe], names)
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


def test_rows_recipe_equals_estimates_of_each_segment(sampler: rollserve.Sampler) -> None:
    sampler.update_env("CartPole-v1", kwargs={"max_episode_steps": 30})
    names: dict[str, Any] = {"sampler": sampler, "np": np, "critic": lambda observations: observations.sum(axis=-1)}
    exec(RECIPES["rows"], names)
    account = sampler.obtain_fragments(1_280).account
    assert account.row_step_count == 160
    batch = sampler.obtain_fragments(1_280, seed=account.seed)
    assert batch.row_indices is not None
    assert batch.truncated.any()
    assert batch.terminated.any()
    for row in range(names["advantages"].shape[1]):
        expected = [advantages(batch, i) for i in np.flatnonzero(batch.row_indices == row)]
        assert np.allclose(names["advantages"][:, row], np.concatenate(expected))


def advantages(batch: rollserve.EpisodeBatch, segment: int) -> np.ndarray:
    """Return the generalized advantage estimates of a segment, by their definition as a sum."""
    part = batch.split()[segment]
    values, last = part.observations.sum(axis=-1), part.last_observations.sum(axis=-1)  # type: ignore[union-attr]
    last = last * ~part.terminated
    deltas = part.rewards + 0.99 * np.append(values[1:], last) - values
    decay = 0.99 * 0.95
    return np.array([np.sum(deltas[t:] * decay ** np.arange(len(deltas) - t)) for t in range(len(deltas))])


def test_complete_recipe_bootstraps_with_the_values_of_the_agent(
    sampler: rollserve.Sampler, capsys: pytest.CaptureFixture[str]
) -> None:
    updated = sampler.update_env("CartPole-v1", kwargs={"max_episode_steps": 30})
    spaces = updated.observation_space, updated.action_space
    sampler.update_agent(rollserve.MlpAgent.initial(*spaces, core="gru", value="shared", seed=0))
    names: dict[str, Any] = {"sampler": sampler}
    exec(RECIPES["complete"], names)
    batch = names["batch"]
    expected = batch.advantages(0.99, 0.95, batch.agent_infos["value"], batch.last_values).advantages
    assert np.array_equal(names["advantages"], expected)
    assert batch.last_states["h"].any()
    assert str(batch.episode_returns[batch.terminated | batch.truncated]) in capsys.readouterr().out


def learn(sampler: rollserve.Sampler, recipe: str) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
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
    }
    exec(RECIPES[recipe], names)
    return names, updates


def test_ppo_recipe_learns_from_each_step_four_times(sampler: rollserve.Sampler) -> None:
    names, updates = learn(sampler, "ppo")
    batch, last_values = names["batch"], names["last_values"]
    expected = np.concatenate([advantages(batch, i) for i in range(len(batch))])
    assert np.allclose(batch.advantages(0.99, 0.95, batch.observations.sum(axis=-1), last_values).advantages, expected)
    assert len(updates) == 4 * 5
    learned = np.concatenate([update[3] for update in updates])
    assert np.allclose(np.sort(learned), np.repeat(np.sort(names["advantages"]), 4))


def test_impala_recipe_weights_actions_by_both_policies(sampler: rollserve.Sampler) -> None:
    names, _ = learn(sampler, "impala")
    batch, ends = names["batch"], np.cumsum(names["batch"].lengths) - 1
    ratios = np.minimum(1, 0.5 / np.exp(batch.agent_infos["log_prob"][ends]))
    after = names["last_values"] * ~batch.terminated
    errors = batch.rewards[ends] + 0.99 * after - names["values"][ends]
    assert np.allclose(names["advantages"][ends], ratios * errors, rtol=1e-4)


@pytest.mark.parametrize("recipe", ["normalization", "stream_moments"])
def test_normalization_recipe_learns_from_what_acted(sampler: rollserve.Sampler, recipe: str) -> None:
    learned = []

    def learn(parameters: dict[str, np.ndarray], observations: np.ndarray, batch: Any, *targets: Any) -> Any:
        hidden = np.tanh(observations @ parameters["0/weight"].T + parameters["0/bias"])
        hidden = np.tanh(hidden @ parameters["1/weight"].T + parameters["1/bias"])
        logits = hidden @ parameters["2/weight"].T + parameters["2/bias"]
        assert np.allclose(batch.agent_infos["logits"], logits, atol=1e-5)
        learned.append(batch)
        return {name: value + np.float32(0.1) if name == "2/weight" else value for name, value in parameters.items()}

    names = {"sampler": sampler, "learn": learn, "critic": lambda observations: observations.sum(axis=-1)}
    exec(RECIPES[recipe], names)
    rows = np.concatenate([batch.observations for batch in learned]).astype(np.float64)
    held = sampler.agent_parameters()
    assert np.allclose(held["observation/mean"], rows.mean(axis=0), rtol=1e-12)
    assert np.allclose(held["observation/variance"], rows.var(axis=0), rtol=1e-12)
    assert names["returns"].count == len(rows) == {"normalization": 6_400, "stream_moments": 4_000}[recipe]
    client = rollserve.RunningReturns(0.99)
    for batch in learned:
        client.add(batch)
    assert client.num_unknown_episodes == 0
    assert names["returns"] == client.moments


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


@pytest.mark.filterwarnings("default")
def test_recipe_of_the_older_exporter_acts_as_the_module(server: LocalServer) -> None:
    """Skipped where PyTorch is not installed: `pip install torch onnxscript`."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    names, batch = follow("torch", server, "HalfCheetah-v5", "torch_older")
    check_gaussian(names["policy"], batch)
    changed = {name: (value + 0.1).numpy() for name, value in names["policy"].state_dict().items()}
    names["policy"].load_state_dict({name: torch.as_tensor(value) for name, value in changed.items()})
    with rollserve.connect(server.address) as sampler:
        sampler.update_agent(changed)
        check_gaussian(names["policy"], sampler.obtain_samples(100))


def check_gaussian(policy: Any, batch: rollserve.EpisodeBatch) -> None:
    """Check that a batch has the outputs of a PyTorch module of two recipes."""
    torch = pytest.importorskip("torch")
    outputs = policy(torch.as_tensor(batch.observations, dtype=torch.float32))
    mean, log_std, value = (output.detach() for output in outputs)
    assert np.allclose(batch.agent_infos["mean"], mean.numpy(), rtol=0, atol=1e-5)
    assert np.allclose(batch.agent_infos["log_std"], log_std.numpy(), rtol=0, atol=1e-5)
    assert np.allclose(batch.agent_infos["value"], value.numpy()[:, 0], rtol=0, atol=1e-5)
    log_prob = torch.distributions.Normal(mean, log_std.exp()).log_prob(torch.as_tensor(batch.actions)).sum(1)
    assert np.allclose(batch.agent_infos["log_prob"], log_prob.numpy(), atol=1e-4)


@pytest.mark.filterwarnings("default")
def test_recurrent_torch_recipe_acts_as_the_module(server: LocalServer) -> None:
    """Skipped where PyTorch is not installed: `pip install torch onnxscript`."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    names, _ = follow("torch_recurrent", server, "CartPole-v1")
    with rollserve.connect(server.address) as sampler:
        for batch in [sampler.obtain_fragments(160, return_states=True) for _ in range(2)]:
            for fragment in batch.split():
                memory = torch.as_tensor(fragment.initial_states["memory"])
                assert memory.any() or fragment.first_steps[0] == 0
                for step, observation in enumerate(fragment.observations):
                    assert np.allclose(fragment.agent_infos["state/memory"][step], memory[0], atol=1e-5)
                    with torch.no_grad():
                        logits, value, memory = names["policy"](torch.as_tensor(observation)[None], memory)
                    assert np.allclose(fragment.agent_infos["logits"][step], logits[0], atol=1e-5)
                    assert np.allclose(fragment.agent_infos["value"][step], value[0, 0], atol=1e-5)


@pytest.mark.filterwarnings("default")  # warnings of JAX and its exporter
def test_jax_recipe_acts_as_the_function(server: LocalServer) -> None:
    """Skipped where the exporter is not installed: `pip install jax2onnx`."""
    pytest.importorskip("jax2onnx")
    names, batch = follow("jax", server, "CartPole-v1")
    logits, value = map(np.asarray, names["policy"](names["parameters"], batch.observations))
    assert np.allclose(batch.agent_infos["logits"], logits, rtol=0, atol=1e-5)
    assert np.allclose(batch.agent_infos["value"], value[:, 0], rtol=0, atol=1e-5)
