"""MLP agents: networks and distributions beside plain formulas in float64, and exploration options of calls."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from mlp_agents import (
    ACTION_SPACES,
    ACTIVATIONS,
    BOX,
    DISCRETE,
    MULTI_DISCRETE,
    OBSERVATIONS,
    act,
    agent_of,
    network,
    observe,
    spec_of,
)

import rollserve
from rollserve_server.agents import Exploration, MlpSpec, build_agent


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("value", [None, "shared", "separate"])
def test_network_equals_plain_formulas(activation: Any, layer_norm: bool, value: Any) -> None:
    settings = {"layer_norm_epsilon": 1e-3} if value else {}
    agent = agent_of("categorical", activation=activation, layer_norm=layer_norm, value=value, settings=settings)
    observations = observe(33)
    _, infos = act(agent, observations)
    hidden, logits = network(agent, observations.astype(np.float64))
    assert np.allclose(infos["logits"], logits, rtol=1e-5, atol=1e-5)
    if value == "shared":
        expected = hidden @ agent.parameters["value/weight"].T + agent.parameters["value/bias"]
    elif value == "separate":
        _, expected = network(agent, observations.astype(np.float64), "value/")
    if value:
        assert np.allclose(infos["value"], expected[:, 0], rtol=1e-5, atol=1e-5)
        assert np.ptp(infos["value"]) > 0.1
    else:
        assert "value" not in infos


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activation_is_accurate_far_from_zero(activation: Any) -> None:
    x = np.concatenate([np.linspace(-12, 12, 997), [-1e4, -100, 100, 1e4]]).astype(np.float32)[:, np.newaxis]
    space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    ones = {"0/weight": np.ones((1, 1)), "1/weight": np.ones((1, 1)), "0/bias": [0], "1/bias": [0], "log_std": [0]}
    parameters = {name: np.asarray(value, np.float32) for name, value in ones.items()}
    spec = MlpSpec((1, 1, 1), activation, "diagonal_gaussian", parameters)
    _, infos = build_agent(spec, space, space, len(x)).act([x], np.zeros((len(x), 1)))
    with np.errstate(over="ignore"):
        expected = ACTIVATIONS[activation](x.astype(np.float64))
    assert np.allclose(infos["mean"], expected, rtol=1e-5, atol=3e-6)


def softmax(x: np.ndarray) -> np.ndarray:
    odds = np.exp(x - x.max())
    return np.asarray(odds / odds.sum())


def epsilon_greedy(q_values: np.ndarray, epsilon: float) -> np.ndarray:
    return np.full(len(q_values), epsilon / len(q_values)) + (1 - epsilon) * (np.arange(4) == q_values.argmax())


CHOICES: dict[str, tuple[str, dict[str, float], Exploration, Callable[[np.ndarray], np.ndarray]]] = {
    "categorical": ("categorical", {}, Exploration(), softmax),
    "categorical, hot": ("categorical", {}, Exploration(temperature=(3,)), lambda x: softmax(x / 3)),
    "categorical, best": ("categorical", {}, Exploration(deterministic=True), lambda x: epsilon_greedy(x, 0)),
    "boltzmann": ("boltzmann", {"temperature": 0.5}, Exploration(), lambda x: softmax(x / 0.5)),
    "boltzmann, hot": ("boltzmann", {"temperature": 0.5}, Exploration(temperature=(4,)), lambda x: softmax(x / 2)),
    "boltzmann, best": ("boltzmann", {}, Exploration(deterministic=True), lambda x: epsilon_greedy(x, 0)),
    "epsilon_greedy": ("epsilon_greedy", {"epsilon": 0.3}, Exploration(), lambda x: epsilon_greedy(x, 0.3)),
    "epsilon_greedy, 0": ("epsilon_greedy", {}, Exploration(), lambda x: epsilon_greedy(x, 0)),
    "epsilon_greedy, 1": ("epsilon_greedy", {}, Exploration(epsilon=(1,)), lambda x: epsilon_greedy(x, 1)),
    "epsilon_greedy, other": (
        "epsilon_greedy",
        {"epsilon": 0.3},
        Exploration(epsilon=(0.05,)),
        lambda x: epsilon_greedy(x, 0.05),
    ),
    "epsilon_greedy, best": (
        "epsilon_greedy",
        {"epsilon": 0.3},
        Exploration(deterministic=True),
        lambda x: epsilon_greedy(x, 0),
    ),
}


@pytest.mark.parametrize("case", CHOICES)
def test_discrete_head_samples_its_distribution(case: str) -> None:
    head, settings, exploration, distribution = CHOICES[case]
    agent, num_rows = agent_of(head, settings=settings), 20_000
    actions, infos = act(agent, observe(num_rows, same=True), exploration)
    _, (scores,) = network(agent, observe(1).astype(np.float64))
    probs = distribution(scores)
    assert np.allclose(infos["logits" if head == "categorical" else "q_values"], scores, atol=1e-5)
    assert_frequencies(actions - DISCRETE.start, probs)
    assert np.allclose(infos["log_prob"], np.log(probs[actions - DISCRETE.start]), atol=2e-5)


def assert_frequencies(choices: np.ndarray, probs: np.ndarray) -> None:
    """Check that each count is within five standard deviations of its expectation."""
    counts, num_rows = np.bincount(choices, minlength=len(probs)), len(choices)
    assert np.all(np.abs(counts - num_rows * probs) <= 5 * np.sqrt(num_rows * probs * (1 - probs)) + 1e-6)


@pytest.mark.parametrize("temperature", [1, 2.5])
def test_multi_categorical_head_samples_its_distribution(temperature: float) -> None:
    agent, num_rows = agent_of("multi_categorical"), 20_000
    actions, infos = act(agent, observe(num_rows, same=True), Exploration(temperature=(temperature,)))
    _, (logits,) = network(agent, observe(1).astype(np.float64))
    assert np.allclose(infos["logits"], logits, atol=1e-5)
    choices = (actions - MULTI_DISCRETE.start).reshape(num_rows, 4)
    log_prob = np.zeros(num_rows)
    for element, part in enumerate(np.split(logits, np.cumsum([2, 5, 3]))):
        probs = softmax(part / temperature)
        assert_frequencies(choices[:, element], probs)
        log_prob += np.log(probs[choices[:, element]])
    assert np.allclose(infos["log_prob"], log_prob, atol=2e-5)
    assert_independent(choices[:, 0], choices[:, 1])


def assert_independent(ones: np.ndarray, others: np.ndarray) -> None:
    assert abs(np.corrcoef(ones, others)[0, 1]) < 5 / np.sqrt(len(ones))


@pytest.mark.parametrize("temperature", [1, 2.5])
def test_bernoulli_head_samples_its_distribution(temperature: float) -> None:
    agent, num_rows = agent_of("bernoulli"), 20_000
    actions, infos = act(agent, observe(num_rows, same=True), Exploration(temperature=(temperature,)))
    _, (logits,) = network(agent, observe(1).astype(np.float64))
    assert np.allclose(infos["logits"], logits.reshape(2, 3), atol=1e-5)
    probs, ones = 1 / (1 + np.exp(-logits / temperature)), actions.reshape(num_rows, 6)
    for element, prob in enumerate(probs):
        assert_frequencies(ones[:, element], np.array([1 - prob, prob]))
    assert np.allclose(infos["log_prob"], np.log(np.where(ones, probs, 1 - probs)).sum(axis=1), atol=2e-5)
    assert_independent(ones[:, 0], ones[:, 1])


def normal_parameters(agent: rollserve.MlpAgent, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and log_std, both (M, 2)."""
    _, output = network(agent, observations.astype(np.float64))
    mean, log_std = output[:, :2], output[:, 2:] if output.shape[1] == 4 else agent.parameters["log_std"]
    low, high = agent.min_log_std, agent.max_log_std
    log_std = np.clip(log_std, -np.inf if low is None else low, np.inf if high is None else high)
    return mean, np.broadcast_to(log_std, mean.shape)


def normal_cdf(x: np.ndarray) -> np.ndarray:
    return np.asarray(0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))))


@pytest.mark.parametrize("predicted", [False, True])
@pytest.mark.parametrize("settings", [{}, {"min_log_std": -0.15, "max_log_std": -0.1}])
@pytest.mark.parametrize("noise_scale", [1, 0.25])
@pytest.mark.parametrize("head", ["diagonal_gaussian", "squashed_gaussian"])
def test_gaussian_head_samples_its_distribution(head: Any, predicted: bool, settings: Any, noise_scale: float) -> None:
    agent = agent_of(head, predicted_log_std=predicted, settings=settings)
    observations = observe(400)
    actions, infos = act(agent, observations, Exploration(noise_scale=(noise_scale,)))
    mean, log_std = normal_parameters(agent, observations)
    assert np.allclose(infos["mean"], mean, atol=1e-5)
    assert np.allclose(infos["log_std"], log_std, atol=1e-5)
    if settings:
        assert (infos["log_std"].min(), infos["log_std"].max()) == pytest.approx((-0.15, -0.1))
    std = noise_scale * np.exp(log_std)

    def cdf(action: np.ndarray) -> np.ndarray:
        """Return each element's cumulative probability."""
        x = action
        if head == "squashed_gaussian":
            x = np.arctanh((action - (BOX.high + BOX.low) / 2) / ((BOX.high - BOX.low) / 2))
        return normal_cdf((x - mean) / std)

    # The density is the derivative of the cumulative probability; it is compared away from the bounds.
    width = 1e-6 * (BOX.high - BOX.low)
    inside = np.ones(len(actions), np.bool_)
    if head == "squashed_gaussian":
        assert BOX.low.min() <= actions.min()
        assert np.all((BOX.low <= actions) & (actions <= BOX.high))
        inside = np.all(np.abs(actions - (BOX.high + BOX.low) / 2) < 0.49 * (BOX.high - BOX.low), axis=1)
    values = np.where(inside[:, np.newaxis], actions, BOX.low + 0.5).astype(np.float64)
    density = ((cdf(values + width) - cdf(values - width)) / (2 * width)).prod(axis=1)
    assert inside.sum() > 250
    assert np.allclose(infos["log_prob"][inside], np.log(density[inside]), atol=2e-3)
    # The cumulative probability of an action is uniformly distributed.
    places = np.sort(cdf(values)[inside][:, 0])
    if inside.all():
        assert np.abs(places - np.linspace(0, 1, len(places))).max() < 1.95 / np.sqrt(len(places))


HALF_BOX = spaces.Box(np.array([-2, 0], np.float16), np.array([2, 1], np.float16), dtype=np.float16)


@pytest.mark.parametrize("scales", [(1.0,), (0.05,), (0.3, 4.0)], ids=str)
@pytest.mark.parametrize("predicted", [False, True])
@pytest.mark.parametrize("head", ["diagonal_gaussian", "squashed_gaussian"])
def test_log_probability_is_that_of_the_float16_action(head: Any, predicted: bool, scales: tuple[float, ...]) -> None:
    spec, observations = spec_of(agent_of(head, predicted_log_std=predicted)), observe(64)
    built = build_agent(spec, OBSERVATIONS, HALF_BOX, 64, exploration=Exploration(noise_scale=scales))
    noise = np.zeros((64, built.noise_width))
    built.draw_noise(np.random.default_rng(3), noise)
    if built.factors is not None:
        noise[:, 0] = np.array(scales)[np.arange(64) % len(scales)]
    (actions,), infos = built.act([observations], noise)
    assert actions.dtype == np.float16
    executed, mean, log_std = (x.astype(np.float64) for x in (actions, infos["mean"], infos["log_std"]))
    low, high = HALF_BOX.low.astype(np.float64), HALF_BOX.high.astype(np.float64)
    slopes = np.ones(2)
    if head == "squashed_gaussian":
        assert np.all((low < executed) & (executed < high))
        squashed = (executed - (high + low) / 2) / ((high - low) / 2)
        executed, slopes = np.arctanh(squashed), (1 - squashed**2) * (high - low) / 2
    std = np.array(scales)[np.arange(64) % len(scales), np.newaxis] * np.exp(log_std)
    log_prob = -0.5 * np.square((executed - mean) / std) - np.log(std * math.sqrt(2 * math.pi)) - np.log(slopes)
    assert infos["log_prob"].dtype == np.float32
    assert np.allclose(infos["log_prob"], log_prob.sum(axis=1), rtol=1e-6, atol=1e-5)
    alone = build_agent(spec, OBSERVATIONS, HALF_BOX, 3, exploration=Exploration(noise_scale=scales))
    (first,), first_infos = alone.act([observations[:3]], noise[:3])
    assert first.tobytes() == actions[:3].tobytes()
    assert all(first_infos[name].tobytes() == column[:3].tobytes() for name, column in infos.items())


def test_squashed_log_probability_is_finite_where_tanh_is_flat() -> None:
    """The formula for log(1 - tanh²) holds although 1 - tanh² is 0 in float32."""
    agent = agent_of("squashed_gaussian")
    parameters = {name: np.zeros_like(value) for name, value in agent.parameters.items()}
    parameters["2/bias"], parameters["log_std"] = np.array([-30, 12], np.float32), np.array([-9, -9], np.float32)
    actions, infos = act(dataclasses.replace(agent, parameters=parameters), observe(5))
    assert np.allclose(actions, [BOX.low[0], BOX.high[1]], atol=1e-6)
    # 1 - tanh(x)² is close to 4 exp(-2 |x|); the densities of the normal distributions have this mean.
    log_slopes = (math.log(4) - 60) + (math.log(4) - 24) + math.log(2) + math.log(0.5)
    normal = 2 * 9 - math.log(2 * math.pi)
    assert np.all(infos["log_prob"] <= normal - log_slopes + 0.02)
    assert np.all(infos["log_prob"] >= normal - log_slopes - 12)


BEST: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "diagonal_gaussian": lambda output: output,
    "squashed_gaussian": lambda output: (BOX.high + BOX.low) / 2 + (BOX.high - BOX.low) / 2 * np.tanh(output),
    "multi_categorical": lambda output: (
        np.stack([part.argmax(axis=1) for part in np.split(output, np.cumsum([2, 5, 3]), axis=1)], 1).reshape(-1, 2, 2)
        + MULTI_DISCRETE.start
    ),
    "bernoulli": lambda output: (output > 0).reshape(-1, 2, 3),
    "categorical": lambda output: output.argmax(axis=1) + DISCRETE.start,
    "epsilon_greedy": lambda output: output.argmax(axis=1) + DISCRETE.start,
    "boltzmann": lambda output: output.argmax(axis=1) + DISCRETE.start,
}


@pytest.mark.parametrize("head", BEST)
def test_deterministic_action_is_the_mode(head: str) -> None:
    agent, observations = agent_of(head, value="shared"), observe(200)
    actions, infos = act(agent, observations, Exploration(deterministic=True))
    _, output = network(agent, observations.astype(np.float64))
    assert np.allclose(actions, BEST[head](output), atol=1e-5)
    assert not infos["log_prob"].any()
    _, with_chance = act(agent, observations)
    for name in infos.keys() - {"log_prob"}:
        assert np.array_equal(infos[name], with_chance[name])


@pytest.mark.parametrize("head", ACTION_SPACES)
@pytest.mark.parametrize("activation", ["gelu", "elu"])
def test_row_has_the_same_bits_beside_any_others(head: Any, activation: Any) -> None:
    """The number of rows and the row's position change no bit of its outputs."""
    value: Any = "separate" if activation == "gelu" else "shared"
    predicted = head in ("diagonal_gaussian", "squashed_gaussian") and activation == "elu"
    settings = {"epsilon": 0.5} if head == "epsilon_greedy" else {}
    options = {"layer_norm": True, "value": value, "activation": activation, "predicted_log_std": predicted}
    spec = spec_of(agent_of(head, settings=settings, **options))
    observations, generator, results = observe(64), np.random.default_rng(2), []
    for num_rows in (64, 1, 3, 16, 33):
        built = build_agent(spec, OBSERVATIONS, ACTION_SPACES[head], num_rows)
        noise = np.zeros((64, built.noise_width))
        built.draw_noise(np.random.default_rng(3), noise)
        chosen = generator.permutation(64)[:num_rows] if num_rows < 64 else np.arange(64)
        (actions,), infos = built.act([observations[chosen]], noise[chosen])
        columns = [column.copy() for column in (actions, *infos.values())]
        results.append(columns)
        for column, expected in zip(columns, results[0], strict=True):
            assert column.tobytes() == expected[chosen].tobytes()


@pytest.mark.parametrize("head", ACTION_SPACES)
def test_row_with_a_factor_acts_as_if_all_had_it(head: Any) -> None:
    name, factors = "temperature", (1.0, 0.25, 6.0)
    if head == "epsilon_greedy":
        name, factors = "epsilon", (0.0, 0.25, 1.0)
    elif head.endswith("gaussian"):
        name = "noise_scale"
    agent, observations = agent_of(head), observe(300)
    actions, infos = act(agent, observations, Exploration(**{name: factors}))
    for number, factor in enumerate(factors):
        rows = np.arange(300) % 3 == number
        expected, expected_infos = act(agent, observations, Exploration(**{name: (factor,)}))
        assert np.array_equal(actions[rows], expected[rows])
        for key, column in infos.items():
            assert np.allclose(column[rows], expected_infos[key][rows], atol=2e-6)


@pytest.mark.parametrize("name", ["1/weight", "value/1/weight"])
def test_rows_with_infinite_or_nan_outputs_fail(name: str) -> None:
    agent = agent_of("categorical", activation="relu", value="separate")
    huge = {
        key: np.zeros_like(value) if key.endswith("bias") else value * np.float32(1e25 if key == name else 1)
        for key, value in agent.parameters.items()
    }
    weights = {key: np.abs(value) for key, value in huge.items()}
    built = build_agent(spec_of(dataclasses.replace(agent, parameters=weights)), OBSERVATIONS, DISCRETE, 20)
    observations, noise = np.zeros((20, 7), np.float32), np.zeros((20, 1))
    built.act([observations], noise)
    assert built.failures() == {}
    observations[[3, 11]] = 1e20
    observations[7] = np.nan
    built.act([observations], noise)
    failures = built.failures()
    assert failures.keys() == {3, 7, 11}
    assert failures[3] == failures[11]
    assert "inf" in failures[3]
    assert "nan" in failures[7]


def test_finite_outputs_with_an_infinite_sum_are_valid() -> None:
    parameters = {"0/weight": np.zeros((4, 7), np.float32), "0/bias": np.full(4, 3e38, np.float32)}
    built = build_agent(MlpSpec((7, 4), None, "categorical", parameters), OBSERVATIONS, DISCRETE, 3)
    built.act([observe(3)], np.zeros((3, 1)))
    assert built.failures() == {}


def test_agents_of_one_noise_kind_draw_the_same_numbers() -> None:
    drawn: dict[Any, list[np.ndarray]] = {}
    for head, action_space in ACTION_SPACES.items():
        built = build_agent(spec_of(agent_of(head)), OBSERVATIONS, action_space, 1)
        assert built.noise_kind is not None
        assert built.noise_kind.width == built.noise_width
        noise = np.empty((64, built.noise_width))
        built.draw_noise(np.random.default_rng(0), noise)
        drawn.setdefault(built.noise_kind, []).append(noise)
    assert max(map(len, drawn.values())) == 3
    for first, *others in drawn.values():
        assert all(np.array_equal(first, other) for other in others)
