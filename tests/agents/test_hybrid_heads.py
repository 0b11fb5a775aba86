"""Hybrid heads: a head for each leaf of a Dict or Tuple action space."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_models as models
import pytest
from fragment_calls import in_calls, of_episodes
from mlp_agents import network, spec_of
from pools import pool_of, sample
from sample_envs import Hybrid
from support import equal, raises

import rollserve
from rollserve.mlp_agent import mlp_to_proto
from rollserve_server.agents import mlp_from_proto
from rollserve_server.envs import describe_space
from rollserve_server.errors import InvalidValueError
from rollserve_server.pool import AtLeast, InProcessBackend

HEADS: Any = {"0": "categorical", "1": "squashed_gaussian", "2/bits": "bernoulli", "2/counts": "multi_categorical"}
ENV = rollserve.EnvSpec("sample_envs:Hybrid", vectorization="rows")


@pytest.fixture
def hybrid(fed: rollserve.Sampler) -> rollserve.Sampler:
    if [env.id for env in fed.status().envs] != [ENV.id]:
        fed.update_env(ENV)
    return fed


def agent_of(heads: Any = None, seed: int = 0, settings: Any = None, **options: Any) -> rollserve.MlpAgent:
    """Return an agent for `Hybrid` with random parameters, none of them 0."""
    spaces = describe_space(Hybrid.observation_space), describe_space(Hybrid.action_space)
    agent = rollserve.MlpAgent.initial(*spaces, head=heads, seed=seed, hidden_sizes=(8,), **options)
    generator = np.random.default_rng(seed + 1)
    parameters = {
        name: (value + generator.normal(scale=0.4, size=value.shape)).astype(np.float32)
        for name, value in agent.parameters.items()
    }
    return dataclasses.replace(agent, parameters=parameters, **(settings or {}))


def log_probs(actions: Any, infos: Mapping[str, np.ndarray], temperature: Any = 1.0, scale: Any = 1.0) -> np.ndarray:
    """Return the log-probabilities of the default heads, by plain formulas in float64."""

    def columns(name: str) -> np.ndarray:
        return infos[name].astype(np.float64)

    def chosen(logits: np.ndarray, positions: np.ndarray) -> np.ndarray:
        scaled = logits / np.reshape(temperature, (-1, 1))
        return scaled[np.arange(len(scaled)), positions] - np.log(np.exp(scaled).sum(axis=1))

    counts = np.split(columns("logits/2/counts"), [2], axis=1)
    total = chosen(columns("logits/0"), actions["0"] - 1)
    for element, logits in enumerate(counts):
        total += chosen(logits, actions["2/counts"][:, element])
    signs = np.where(actions["2/bits"] == 1, -1, 1) / np.reshape(temperature, (-1, 1))
    total -= np.log1p(np.exp(signs * columns("logits/2/bits"))).sum(axis=1)
    centre, half = np.array([0, 0.5]), np.array([2, 0.5])
    x = np.arctanh((actions["1"].astype(np.float64) - centre) / half)
    std = np.exp(columns("log_std/1")) * np.reshape(scale, (-1, 1))
    density = -0.5 * ((x - columns("mean/1")) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    return total + (density - np.log(half * (1 - np.tanh(x) ** 2))).sum(axis=1)


def check_log_probs(batch: rollserve.EpisodeBatch, *factors: Any) -> None:
    """Check log-probabilities, except near the bounds, where the formula loses digits of actions of float32."""
    assert isinstance(batch.actions, Mapping)
    inner = (np.abs((batch.actions["1"] - [0, 0.5]) / [2, 0.5]) < 0.99).all(axis=1)
    assert inner.mean() > 0.5
    with np.errstate(all="ignore"):  # of actions at the bounds
        expected = log_probs(batch.actions, batch.agent_infos, *factors)
    assert np.allclose(batch.agent_infos["log_prob"][inner], expected[inner], atol=1e-3)


@pytest.mark.parametrize("predicted", [False, True])
def test_log_prob_is_the_sum_over_the_leaves(hybrid: rollserve.Sampler, predicted: bool) -> None:
    agent = agent_of(HEADS, predicted_log_std=predicted, value="shared")
    assert agent.layer_sizes == (2, 8, 3 + (4 if predicted else 2) + 2 + 6)
    assert ("log_std/1" in agent.parameters) is not predicted
    hybrid.update_agent(agent)
    batch = hybrid.obtain_samples(300)
    infos = batch.agent_infos
    names = ["log_prob", "logits/0", "mean/1", "log_std/1", "logits/2/bits", "logits/2/counts", "value"]
    assert sorted(infos) == sorted(names)
    check_log_probs(batch)
    _, outputs = network(agent, batch.observations.astype(np.float64))
    sizes = {
        "logits/0": 3,
        "mean/1": 2,
        **({"log_std/1": 2} if predicted else {}),
        "logits/2/bits": 2,
        "logits/2/counts": 6,
    }
    for (name, _), part in zip(sizes.items(), np.split(outputs, np.cumsum(list(sizes.values()))[:-1], 1), strict=True):
        assert np.allclose(infos[name], part, atol=1e-4), name
    if not predicted:
        assert np.allclose(infos["log_std/1"], agent.parameters["log_std/1"])


def test_default_heads_fit_their_leaves(hybrid: rollserve.Sampler) -> None:
    agent = agent_of()
    assert agent.head == {**HEADS, "1": "diagonal_gaussian"}
    hybrid.update_agent(agent_of({"1": "squashed_gaussian"}))
    assert hybrid.obtain_samples(50).num_steps >= 50
    updated = hybrid.update_env("sample_envs:Nested")  # a Dict
    agent = rollserve.MlpAgent.initial(
        updated.observation_space, updated.action_space, head={"push": "squashed_gaussian"}, seed=0
    )
    hybrid.update_agent(agent)
    assert {"logits/turn", "mean/push"} < hybrid.obtain_samples(50).agent_infos.keys()


def test_deterministic_call_takes_the_best_action_of_each_leaf(hybrid: rollserve.Sampler) -> None:
    hybrid.update_agent(agent_of(HEADS))
    batch = hybrid.obtain_samples(100, deterministic=True)
    infos, actions = batch.agent_infos, batch.actions
    assert isinstance(actions, Mapping)
    assert (actions["0"] - 1 == infos["logits/0"].argmax(axis=1)).all()
    expected = np.array([0, 0.5]) + np.array([2, 0.5]) * np.tanh(infos["mean/1"])
    assert np.allclose(actions["1"], expected, atol=1e-5)
    assert (actions["2/bits"] == (infos["logits/2/bits"] > 0)).all()
    assert (actions["2/counts"][:, 1] == infos["logits/2/counts"][:, 2:].argmax(axis=1)).all()
    assert not infos["log_prob"].any()


def test_exploration_applies_to_the_leaves_that_use_it(hybrid: rollserve.Sampler) -> None:
    """Episode i has number i modulo their count of each option."""
    hybrid.update_agent(agent_of(HEADS))
    for temperature, scale in ((0.5, 0.3), ([0.5, 2.0], 0.3), ([0.5, 2.0], [0.2, 1.0, 0.4]), (1.0, [0.3])):
        batch = hybrid.obtain_samples(200, temperature=temperature, noise_scale=scale)
        indices = np.repeat(batch.episode_indices, batch.lengths)
        by_step = [np.array(each)[indices % np.size(each)] if np.ndim(each) else each for each in (temperature, scale)]
        check_log_probs(batch, *by_step)
    with raises(rollserve.InvalidArgumentError, field="options.exploration.epsilons", quotes="categorical"):
        hybrid.obtain_samples(200, epsilon=0.1)
    agent = agent_of({**HEADS, "0": "epsilon_greedy"}, settings={"epsilon": 0.5})
    hybrid.update_agent(agent)
    for options, expected_share in (({}, 0.5), ({"epsilon": 0.0}, 0.0), ({"epsilon": 1.0, "temperature": 2.0}, 1.0)):
        batch = hybrid.obtain_samples(600, **options)
        assert isinstance(batch.actions, Mapping)
        others = batch.actions["0"] - 1 != batch.agent_infos["q_values/0"].argmax(axis=1)
        assert abs(others.mean() - expected_share * 2 / 3) < 0.08


def test_evaluations_and_populations_act_by_leaf(hybrid: rollserve.Sampler) -> None:
    agent = agent_of(HEADS, previous_action=True, previous_reward=True)
    hybrid.update_agent(agent)
    expected = hybrid.evaluate(8, seed=1).returns
    stacked = {name: np.stack([value, -value]) for name, value in agent.parameters.items()}
    returns = hybrid.evaluate_population(stacked, 8, seed=1).returns
    assert returns[0].tolist() == expected.tolist()
    assert returns[1].tolist() != expected.tolist()
    plain = agent_of(HEADS)
    hybrid.update_agent(plain)
    returns = hybrid.evaluate_population({"log_std/1": np.array([[0, 0], [9, 9]], np.float32)}, 8, seed=1).returns
    assert returns[0].tolist() != returns[1].tolist()


async def test_batches_do_not_depend_on_workers() -> None:
    spec, whole, num_compared = spec_of(agent_of(HEADS)), [], 0
    for num_workers, num_rows in ((1, 6), (2, 3), (3, 2), (5, 1)):
        changes = {"workers": num_workers, "rows": num_rows, "allow_module": ("sample_envs",)}
        async with pool_of(InProcessBackend(), ENV, **changes) as pool:
            await pool.update_agent([spec])
            whole.append(await sample(pool, AtLeast(200), seed=5))
            by_index = await of_episodes([whole[0]])
            parts = await of_episodes(await in_calls(pool, [1, 5, 2, 20], seed=5))
        for index, episode in parts.items():
            if episode.terminated.all() and index in by_index:
                ones, others = (
                    dataclasses.replace(each, worker_indices=None, row_indices=None)
                    for each in (episode, by_index[index])
                )
                assert equal(ones, others)
                num_compared += 1
    assert all(equal(each, whole[0]) for each in whole[1:])
    assert num_compared > 40


def test_model_has_outputs_for_each_leaf(hybrid: rollserve.Sampler) -> None:
    outputs = {"logits/0": 3, "mean/1": 2, "log_std/1": 2, "bits": 2, "logits/2/counts": 6}
    nodes = [models.node("Gemm", f"observation w.{name}", name) for name in outputs]
    generator = np.random.default_rng(0)
    weights = {f"w.{name}": generator.normal(size=(2, size)).astype(np.float32) for name, size in outputs.items()}
    ports: dict[str, list[int | str | None]] = {name: ["N", size] for name, size in outputs.items()}
    model = models.model(nodes, {"observation": ["N", 2]}, ports, weights)
    hybrid.update_agent(models.agent_of(model, HEADS, outputs={"logits/2/bits": "bits"}))
    batch = hybrid.obtain_samples(200)
    check_log_probs(batch)
    for name in outputs:
        expected = batch.observations @ weights[f"w.{name}"]
        assert np.allclose(batch.agent_infos["logits/2/bits" if name == "bits" else name], expected, atol=1e-4)
    assert not hybrid.obtain_samples(50, deterministic=True).agent_infos["log_prob"].any()
    with raises(rollserve.InvalidArgumentError, quotes="'logits/2/bits'"):
        hybrid.update_agent(models.agent_of(model, HEADS))
    with raises(ValueError, field="head['0']", quotes="epsilon_greedy"):
        models.agent_of(model, {**HEADS, "0": "epsilon_greedy"})


# Errors.


def test_misfitting_heads_are_rejected(hybrid: rollserve.Sampler) -> None:
    agent = agent_of(HEADS)
    version, path = hybrid.update_agent(agent), "all_workers.agent.mlp"
    without = {name: head for name, head in HEADS.items() if name != "1"}
    bare = {name: value for name, value in agent.parameters.items() if name != "log_std/1"}
    for changes, field, quotes in (
        ({"head": without}, "hybrid.leaves", "'1'"),
        ({"head": {**HEADS, "3": "categorical"}}, "hybrid.leaves", "'3'"),
        ({"head": {**HEADS, "0": "bernoulli"}}, "hybrid.leaves['0'].head", "bernoulli"),
        ({"head": "categorical"}, "head", "Tuple"),
        ({"min_log_std": 1.0, "max_log_std": 0.0}, "hybrid.leaves['1'].squashed_gaussian.max_log_std", "0.0"),
        ({"parameters": bare}, "layer_sizes[2]", "15"),
        ({"parameters": {**agent.parameters, "log_std/0": np.zeros(3, np.float32)}}, "parameters", "'log_std/0'"),
        ({"action_mask": rollserve.ActionMask(observation="mask")}, "action_mask.observation", "mask"),
    ):
        with raises(rollserve.InvalidArgumentError, field=f"{path}.{field}", quotes=quotes):
            hybrid.update_agent(dataclasses.replace(agent, **changes))
    hybrid.update_env("CartPole-v1")
    with raises(rollserve.InvalidArgumentError, field=f"{path}.head", quotes=("hybrid", "Discrete(2)")):
        hybrid.update_agent(agent)
    assert hybrid.status().policy_version == version


def test_leaf_without_a_head_is_rejected() -> None:
    message = mlp_to_proto(agent_of(HEADS))
    message.hybrid.leaves["0"].Clear()
    with raises(InvalidValueError, field="hybrid.leaves['0']", quotes="none"):
        mlp_from_proto(message, {})


def test_client_rejects_misfitting_heads() -> None:
    spaces = describe_space(Hybrid.observation_space), describe_space(Hybrid.action_space)
    for head, quotes in (("categorical", "'1'"), ({"3": "categorical"}, "'3'"), ({"0": "bernoulli"}, "bernoulli")):
        with raises(ValueError, field="head", quotes=quotes):
            rollserve.MlpAgent.initial(*spaces, head=head)  # type: ignore[arg-type]
    agent = agent_of(HEADS)
    with raises(ValueError, field="head['0']", quotes="gaussian"):
        dataclasses.replace(agent, head={**HEADS, "0": "gaussian"})
    with raises(ValueError, field="epsilon"):
        dataclasses.replace(agent, epsilon=0.1)
