"""Agents beside plain formulas: distributions, infos, and the independence of rows."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gym_spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from support import raises

import rollserve
from rollserve_server.agents import Agent, AgentSpec, MlpSpec, RandomSpec, build_agent
from rollserve_server.agents.mlp.network import tile_rows
from rollserve_server.envs import describe_space, leaves_of_space


def mlp_spec(
    observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], hidden: tuple[int, ...], seed: int = 0
) -> MlpSpec:
    agent = rollserve.MlpAgent.initial(
        describe_space(observation_space), describe_space(action_space), hidden_sizes=hidden, seed=seed
    )
    generator = np.random.default_rng(seed)
    parameters = {
        name: generator.normal(scale=0.7, size=value.shape).astype(np.float32)
        for name, value in agent.parameters.items()
    }
    return MlpSpec(agent.layer_sizes, agent.activation, agent.head, parameters)


def plain_forward(spec: MlpSpec, x: np.ndarray) -> np.ndarray:
    """Return the network's output, computed layer by layer in float64."""
    num_layers = len(spec.layer_sizes) - 1
    for layer in range(num_layers):
        x = x @ spec.parameters[f"{layer}/weight"].T.astype(np.float64) + spec.parameters[f"{layer}/bias"]
        if layer < num_layers - 1:
            x = np.tanh(x) if spec.activation == "tanh" else np.maximum(x, 0)
    return x


BOX = gym_spaces.Box(-1, 1, (5,), np.float32)
NESTED = gym_spaces.Dict(
    {
        "a": gym_spaces.Box(0, 255, (2, 2), np.uint8),
        "b": gym_spaces.Tuple((gym_spaces.Discrete(3, start=-1), gym_spaces.MultiDiscrete([2, 4]))),
        "c": gym_spaces.MultiBinary(3),
    }
)


def observe(space: gymnasium.Space[Any], num_rows: int, seed: int = 0) -> tuple[list[Any], list[np.ndarray]]:
    """Return samples of a space, and the columns of their leaves."""
    space.seed(seed)
    values = [space.sample() for _ in range(num_rows)]
    columns = []
    for leaf in leaves_of_space(space):
        parts = values
        for key in leaf.path:
            parts = [part[key] for part in parts]
        columns.append(np.array(parts, leaf.dtype))
    return values, columns


def noise_for(agent: Agent, num_rows: int, seed: int = 0) -> np.ndarray:
    noise = np.zeros((num_rows, agent.noise_width))
    agent.draw_noise(np.random.default_rng(seed), noise)
    return noise


@pytest.mark.parametrize("space", [BOX, NESTED, gym_spaces.Discrete(4)], ids=["Box", "Dict", "Discrete"])
@pytest.mark.parametrize("hidden", [(), (8,), (16, 7)])
def test_categorical_mlp_samples_its_distribution(space: gymnasium.Space[Any], hidden: tuple[int, ...]) -> None:
    actions_space = gym_spaces.Discrete(3, start=2)
    spec = mlp_spec(space, actions_space, hidden)
    num_rows = 4000
    agent = build_agent(spec, space, actions_space, num_rows)
    values, columns = observe(space, 1)
    columns = [np.repeat(column, num_rows, axis=0) for column in columns]
    (actions,), infos = agent.act(columns, noise_for(agent, num_rows))

    logits = plain_forward(spec, gym_spaces.flatten(space, values[0]).astype(np.float64))
    probs = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    assert np.allclose(infos["logits"], logits, rtol=1e-5, atol=1e-4)
    assert np.allclose(infos["log_prob"], np.log(probs)[actions - 2], rtol=1e-4, atol=1e-4)
    assert actions.dtype == np.int64
    # Counts are within five standard deviations of their expectation.
    counts = np.bincount(actions - 2, minlength=3)
    assert np.all(np.abs(counts - num_rows * probs) <= 5 * np.sqrt(num_rows * probs * (1 - probs)) + 1)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_gaussian_mlp_samples_its_distribution(activation: Any) -> None:
    actions_space = gym_spaces.Box(-1, 1, (2, 2), np.float32)
    spec = mlp_spec(BOX, actions_space, (16, 16))
    spec = MlpSpec(spec.layer_sizes, activation, spec.head, spec.parameters)
    agent = build_agent(spec, BOX, actions_space, 5000)
    values, columns = observe(BOX, 1)
    noise = noise_for(agent, 5000)
    (actions,), infos = agent.act([np.repeat(columns[0], 5000, axis=0)], noise)

    mean = plain_forward(spec, values[0].astype(np.float64)).reshape(2, 2)
    log_std = spec.parameters["log_std"].reshape(2, 2)
    assert actions.shape == (5000, 2, 2)
    assert actions.dtype == np.float32
    assert np.allclose(infos["mean"], mean, rtol=1e-4, atol=1e-4)
    assert np.array_equal(infos["log_std"], np.broadcast_to(log_std, actions.shape))
    z = (actions - infos["mean"]) / np.exp(log_std)
    expected = (-0.5 * z.astype(np.float64) ** 2 - log_std - 0.5 * np.log(2 * np.pi)).sum(axis=(1, 2))
    assert np.allclose(infos["log_prob"], expected, rtol=1e-3, atol=1e-3)
    assert np.all(np.abs(z.mean(axis=0)) < 5 / np.sqrt(5000))
    assert np.all(np.abs(z.std(axis=0) - 1) < 5 / np.sqrt(2 * 5000))


@settings(deadline=None, max_examples=60)
@given(
    width=st.sampled_from([3, 16, 64, 100, 256]),
    depth=st.integers(0, 3),
    continuous=st.booleans(),
    num_rows=st.sampled_from([1, 3, 4, 16, 64]),
    seed=st.integers(0, 100),
)
def test_row_has_the_same_bits_beside_any_others(
    width: int, depth: int, continuous: bool, num_rows: int, seed: int
) -> None:
    """The number of rows and the row's position change no bit of its outputs."""
    space = gym_spaces.Box(-1, 1, (17,), np.float32)
    actions_space: Any = gym_spaces.Box(-1, 1, (6,), np.float32) if continuous else gym_spaces.Discrete(6)
    spec = mlp_spec(space, actions_space, (width,) * depth, seed)
    _, (observations,) = observe(space, 64, seed)
    reference = build_agent(spec, space, actions_space, 64)
    noise = noise_for(reference, 64, seed)
    (expected,), expected_infos = reference.act([observations], noise)
    expected, expected_infos = expected.copy(), {name: value.copy() for name, value in expected_infos.items()}

    chosen = np.random.default_rng(seed).permutation(64)[:num_rows]
    agent = build_agent(spec, space, actions_space, num_rows)
    (actions,), infos = agent.act([observations[chosen]], noise[chosen])
    assert actions.tobytes() == expected[chosen].tobytes()
    for name, value in infos.items():
        assert value.tobytes() == expected_infos[name][chosen].tobytes(), name


def test_tile_rows_are_a_power_of_two_up_to_8() -> None:
    sizes = {tile_rows(inputs, outputs) for inputs in (4, 17, 64, 256) for outputs in (2, 6, 64, 256)}
    assert sizes <= {1, 2, 4, 8}


@pytest.mark.parametrize(
    "space",
    [
        gym_spaces.Discrete(5, start=-2),
        gym_spaces.MultiDiscrete([2, 3, 4]),
        gym_spaces.MultiBinary((2, 3)),
        gym_spaces.Box(-2, 3, (3,), np.float32),
        gym_spaces.Box(0, 255, (2, 2), np.uint8),
        gym_spaces.Box(np.array([-np.inf, 0, -np.inf, -1]), np.array([np.inf, np.inf, 5, 1]), dtype=np.float64),
        gym_spaces.Dict({"x": gym_spaces.Discrete(2), "y": gym_spaces.Tuple((gym_spaces.Box(-1, 1),))}),
    ],
    ids=str,
)
def test_random_agent_samples_as_the_space_does(space: gymnasium.Space[Any]) -> None:
    num_rows = 20_000
    agent = build_agent(RandomSpec(), BOX, space, num_rows)
    columns, infos = agent.act([np.zeros((num_rows, 5), np.float32)], noise_for(agent, num_rows))
    assert not infos
    _, sampled = observe(space, num_rows)
    for leaf, column, expected in zip(leaves_of_space(space), columns, sampled, strict=True):
        assert column.dtype == leaf.dtype
        assert column.shape == (num_rows, *leaf.shape)
        assert all(leaf.space.contains(value if leaf.shape else leaf.dtype.type(value)) for value in column[:100])
        quantiles = np.linspace(0.05, 0.95, 10)
        ours, theirs = (np.quantile(each.astype(np.float64), quantiles, axis=0) for each in (column, expected))
        spread = np.ptp(theirs, axis=0)
        if leaf.dtype.kind == "f":
            assert np.all(np.abs(ours - theirs) <= 0.05 * spread + 0.02)
        else:
            assert np.allclose(column.mean(axis=0), expected.mean(axis=0), atol=0.04 * np.maximum(spread, 1).max())
            assert np.array_equal(column.min(axis=0), expected.min(axis=0))
            assert np.array_equal(column.max(axis=0), expected.max(axis=0))


def test_initial_agent_fits_the_spaces_and_starts_near_uniform() -> None:
    spec = rollserve.MlpAgent.initial(describe_space(NESTED), rollserve.spaces.Discrete(4), seed=0)
    assert spec.layer_sizes == (16, 64, 64, 4)
    agent: AgentSpec = MlpSpec(spec.layer_sizes, spec.activation, spec.head, spec.parameters)
    _, columns = observe(NESTED, 50)
    _, infos = build_agent(agent, NESTED, gym_spaces.Discrete(4), 50).act(columns, np.zeros((50, 1)))
    assert np.all(np.abs(infos["log_prob"] - np.log(0.25)) < 0.5)
    with raises(ValueError, match=r"^action.space"):
        rollserve.MlpAgent.initial(describe_space(BOX), describe_space(NESTED))
    with raises(ValueError, field="parameters", quotes="'0/weight'"):
        _ = rollserve.MlpAgent({}, "categorical").layer_sizes
    with raises(ValueError, quotes=("'0/weight'", "(3,)")):
        _ = rollserve.MlpAgent({"0/weight": np.zeros(3)}, "categorical").layer_sizes
