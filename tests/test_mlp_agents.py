"""MLP agents: networks and distributions beside plain formulas in float64, and how freely a call has them act."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from pools import pool_of, sample
from support import equal, raises

import rollserve
from rollserve import Reason
from rollserve.mlp_agent import mlp_to_proto
from rollserve_server.agents import Exploration, MlpSpec, build_agent, check_exploration
from rollserve_server.envs import describe_space
from rollserve_server.errors import InvalidValueError
from rollserve_server.gateway.messages.agents import mlp_from_proto
from rollserve_server.pool import AtLeast, Fragments, InProcessBackend

OBSERVATIONS = spaces.Box(-1, 1, (7,), np.float32)
DISCRETE = spaces.Discrete(4, start=3)
BOX = spaces.Box(np.array([-2, 0], np.float32), np.array([2, 1], np.float32))
MULTI_DISCRETE = spaces.MultiDiscrete([[2, 5], [3, 1]], start=[[0, -1], [7, 2]])
MULTI_BINARY = spaces.MultiBinary((2, 3))
ACTION_SPACES: dict[str, spaces.Space[Any]] = {
    "categorical": DISCRETE,
    "epsilon_greedy": DISCRETE,
    "boltzmann": DISCRETE,
    "diagonal_gaussian": BOX,
    "squashed_gaussian": BOX,
    "multi_categorical": MULTI_DISCRETE,
    "bernoulli": MULTI_BINARY,
}
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def agent_of(head: str, *, settings: Any = None, **options: Any) -> rollserve.MlpAgent:
    """An agent with parameters that are nowhere 0 or 1."""
    spaces_ = describe_space(OBSERVATIONS), describe_space(ACTION_SPACES[head])
    agent = rollserve.MlpAgent.initial(*spaces_, head=head, hidden_sizes=(16, 9), seed=0, **options)  # type: ignore[arg-type]
    generator = np.random.default_rng(1)
    parameters = {
        name: (value + generator.normal(scale=0.4, size=value.shape)).astype(np.float32)
        for name, value in agent.parameters.items()
    }
    return dataclasses.replace(agent, parameters=parameters, **(settings or {}))


def spec_of(agent: rollserve.MlpAgent) -> MlpSpec:
    """What comes of it on the way to the server."""
    mlp = mlp_to_proto(agent)
    return mlp_from_proto(type(mlp).FromString(mlp.SerializeToString()), agent.parameters)


def network(agent: rollserve.MlpAgent, x: np.ndarray, prefix: str = "") -> tuple[np.ndarray, np.ndarray]:
    """The last hidden layer and the output in float64, as anyone would write them."""
    parameters = {name: value.astype(np.float64) for name, value in agent.parameters.items()}
    for layer in itertools.count():
        name = f"{prefix}{layer}"
        y = x @ parameters[f"{name}/weight"].T + parameters[f"{name}/bias"]
        if f"{prefix}{layer + 1}/weight" not in parameters:
            return x, y
        if f"{name}/norm/weight" in parameters:
            y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + agent.layer_norm_epsilon)
            y = y * parameters[f"{name}/norm/weight"] + parameters[f"{name}/norm/bias"]
        x = ACTIVATIONS[agent.activation](y)
    raise AssertionError


def act(
    agent: rollserve.MlpAgent, observations: np.ndarray, exploration: Exploration | None = None, seed: int = 0
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    spec, exploration = spec_of(agent), exploration or Exploration()
    check_exploration(spec, exploration)
    num_rows, space = len(observations), ACTION_SPACES[agent.head]
    built = build_agent(spec, OBSERVATIONS, space, num_rows, exploration=exploration)
    noise = np.zeros((num_rows, built.noise_width))
    built.draw_noise(np.random.default_rng(seed), noise)
    if built.factors is not None:
        noise[:, 0] = built.factors[np.arange(num_rows) % len(built.factors)]
    (actions,), infos = built.act([observations], noise)
    assert [info.name for info in built.infos] == list(infos)
    for info in built.infos:
        assert (infos[info.name].dtype, infos[info.name].shape) == (info.dtype, (num_rows, *info.shape))
    assert actions.dtype == space.dtype
    assert actions.shape == (num_rows, *space.shape)
    return actions, dict(infos)


def observe(num_rows: int, *, same: bool = False) -> np.ndarray:
    generator = np.random.default_rng(5)
    return np.repeat(
        generator.uniform(-1, 1, (1 if same else num_rows, 7)).astype(np.float32), num_rows if same else 1, 0
    )


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("value", [None, "shared", "separate"])
def test_networks(activation: Any, layer_norm: bool, value: Any) -> None:
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
def test_activations_far_from_zero(activation: Any) -> None:
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
def test_choices_among_a_few_actions(case: str) -> None:
    head, settings, exploration, distribution = CHOICES[case]
    agent, num_rows = agent_of(head, settings=settings), 20_000
    actions, infos = act(agent, observe(num_rows, same=True), exploration)
    _, (scores,) = network(agent, observe(1).astype(np.float64))
    probs = distribution(scores)
    assert np.allclose(infos["logits" if head == "categorical" else "q_values"], scores, atol=1e-5)
    assert_frequencies(actions - DISCRETE.start, probs)
    assert np.allclose(infos["log_prob"], np.log(probs[actions - DISCRETE.start]), atol=2e-5)


def assert_frequencies(choices: np.ndarray, probs: np.ndarray) -> None:
    """Within five standard deviations of what the distribution says."""
    counts, num_rows = np.bincount(choices, minlength=len(probs)), len(choices)
    assert np.all(np.abs(counts - num_rows * probs) <= 5 * np.sqrt(num_rows * probs * (1 - probs)) + 1e-6)


@pytest.mark.parametrize("temperature", [1, 2.5])
def test_choices_of_several_elements(temperature: float) -> None:
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
def test_zeros_and_ones(temperature: float) -> None:
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
    """Mean and log_std, (M, 2)."""
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
def test_normal_distributions(head: Any, predicted: bool, settings: Any, noise_scale: float) -> None:
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
        """Each element's probability to be less."""
        x = action
        if head == "squashed_gaussian":
            x = np.arctanh((action - (BOX.high + BOX.low) / 2) / ((BOX.high - BOX.low) / 2))
        return normal_cdf((x - mean) / std)

    # The density is the derivative of that, where it can be told from an action: not at the bounds.
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
    # Each action's probability to be less is uniform.
    places = np.sort(cdf(values)[inside][:, 0])
    if inside.all():
        assert np.abs(places - np.linspace(0, 1, len(places))).max() < 1.95 / np.sqrt(len(places))


def test_squashed_log_probabilities_where_tanh_is_flat() -> None:
    """log(1 - tanh²) as it is, though 1 - tanh² is 0 in float32."""
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
def test_deterministic_actions(head: str) -> None:
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
def test_a_row_does_not_depend_on_its_neighbours(head: Any, activation: Any) -> None:
    """To the last bit: not on how many rows there are, nor on where it stands."""
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
def test_each_episode_as_if_it_were_alone(head: Any) -> None:
    """Rows with factors of their own do what they do when all have that factor."""
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


@pytest.mark.parametrize(
    ("head", "exploration", "field"),
    [
        ("categorical", Exploration(noise_scale=(2,)), "noise_scales"),
        ("categorical", Exploration(epsilon=(0.0,)), "epsilons"),
        ("squashed_gaussian", Exploration(temperature=(2,)), "temperatures"),
        ("epsilon_greedy", Exploration(temperature=(2,)), "temperatures"),
        ("boltzmann", Exploration(epsilon=(0.5,)), "epsilons"),
    ],
)
def test_what_means_nothing_to_a_head(head: str, exploration: Exploration, field: str) -> None:
    with raises(InvalidValueError, field=field, quotes=head):
        check_exploration(spec_of(agent_of(head)), exploration)


@pytest.mark.parametrize("exploration", [Exploration(noise_scale=(0.3, 1, 3)), Exploration(deterministic=True)])
async def test_however_many_workers_and_rows(exploration: Exploration) -> None:
    observations = rollserve.spaces.Box(np.float32(-1), np.float32(1), (3,), np.dtype(np.float32))
    actions = rollserve.spaces.Box(np.float32(-2), np.float32(2), (1,), np.dtype(np.float32))
    agent = rollserve.MlpAgent.initial(
        observations, actions, head="squashed_gaussian", layer_norm=True, value="separate", activation="gelu", seed=1
    )
    env, batches = rollserve.EnvSpec("Pendulum-v1", {"max_episode_steps": 20}), []
    for num_workers, num_rows in ((1, 1), (2, 4), (3, 7)):
        async with pool_of(InProcessBackend(), env, workers=num_workers, rows=num_rows) as pool:
            await pool.update_agent([spec_of(agent)])
            batches.append(await sample(pool, AtLeast(150), seed=9, exploration=exploration))
            # Of other explorations nothing is left over for it.
            await sample(pool, AtLeast(150), seed=9, exploration=Exploration(noise_scale=(5,)))
            again = await sample(pool, AtLeast(150), seed=9, exploration=exploration)
            assert equal(again, batches[0]), (num_workers, num_rows)
    assert equal(batches[1], batches[0])
    assert equal(batches[2], batches[0])


@pytest.mark.parametrize("vectorization", ["rows", "native"])
async def test_each_episode_has_its_own_epsilon(vectorization: Any) -> None:
    observations = rollserve.spaces.Box(np.float32(-1), np.float32(1), (4,), np.dtype(np.float32))
    agent = rollserve.MlpAgent.initial(observations, rollserve.spaces.Discrete(2), head="epsilon_greedy", seed=1)
    env = rollserve.EnvSpec("CartPole-v1", vectorization=vectorization, num_rows=4, num_episodes_per_row=3)
    exploration = Exploration(epsilon=(0.0, 1.0, 0.5))
    async with pool_of(InProcessBackend(), env) as pool:
        await pool.update_agent([spec_of(agent)])
        batches = [await sample(pool, AtLeast(1000), exploration=exploration)]
        batches += [await sample(pool, Fragments(160), exploration=exploration) for _ in range(3)]
    assert {0, 1, 2} == {index % 3 for batch in batches[1:] for index in batch.episode_indices.tolist()}
    for batch in batches:
        kinds = np.repeat(batch.episode_indices % 3, batch.lengths)
        log_prob = batch.agent_infos["log_prob"]
        assert np.all(log_prob[kinds == 0] == 0)
        assert np.allclose(log_prob[kinds == 1], np.log(0.5))
        assert np.all(np.isclose(log_prob[kinds == 2], np.log(0.75)) | np.isclose(log_prob[kinds == 2], np.log(0.25)))


def test_exploration_of_calls(sampler: rollserve.Sampler) -> None:
    updated = sampler.update_env("Pendulum-v1", kwargs={"max_episode_steps": 10})
    with pytest.raises(rollserve.PreconditionError):
        sampler.obtain_samples(1)
    agent = rollserve.MlpAgent.initial(
        updated.observation_space,
        updated.action_space,
        head="squashed_gaussian",
        value="shared",
        layer_norm=True,
        seed=0,
    )
    sampler.update_agent(agent)
    best = sampler.obtain_samples(40, seed=3, deterministic=True)
    assert np.allclose(best.actions, 2 * np.tanh(best.agent_infos["mean"]), atol=1e-6)
    assert not best.agent_infos["log_prob"].any()
    assert best.agent_infos["value"].shape == (40,)
    close, far = (sampler.obtain_samples(40, seed=3, noise_scale=scale) for scale in (1e-3, 3))
    assert np.allclose(close.actions[0], best.actions[0], atol=0.02)
    assert np.ptp(far.actions) > 1
    mixed = sampler.obtain_samples(40, seed=3, noise_scale=[1e-3, 3])
    assert np.allclose(mixed.actions[::20], close.actions[::20], atol=1e-5)
    # Fragments go on with another exploration.
    fragments = [sampler.obtain_fragments(64, deterministic=is_best) for is_best in (True, False)]
    assert [fragment.agent_infos["log_prob"].any() for fragment in fragments] == [False, True]
    sampler.update_agent(rollserve.RandomAgent())
    with raises(rollserve.InvalidArgumentError, field="options.exploration.deterministic", quotes="random"):
        sampler.obtain_samples(1, deterministic=True)


@pytest.mark.parametrize("head", ["epsilon_greedy", "boltzmann"])
def test_q_values(sampler: rollserve.Sampler, head: Any) -> None:
    status = sampler.status()
    agent = rollserve.MlpAgent.initial(status.observation_space, status.action_space, head=head, seed=0)
    sampler.update_agent(dataclasses.replace(agent, **{"epsilon": 0.5} if head == "epsilon_greedy" else {}))
    batch = sampler.obtain_samples(
        2000, seed=1, **{"epsilon": 0.2} if head == "epsilon_greedy" else {"temperature": 0.01}
    )
    q_values, rows = batch.agent_infos["q_values"].astype(np.float64), np.arange(len(batch.actions))
    best = q_values.argmax(axis=1)
    if head == "epsilon_greedy":
        assert 0.07 < np.mean(batch.actions != best) < 0.13
        expected = np.where(batch.actions == best, np.log(0.9), np.log(0.1))
    else:
        scores = q_values / 0.01
        scores -= scores.max(axis=1, keepdims=True)
        expected = scores[rows, batch.actions] - np.log(np.exp(scores).sum(axis=1))
    assert np.allclose(batch.agent_infos["log_prob"], expected, atol=2e-4)


def test_agents_for_spaces_of_several_elements(sampler: rollserve.Sampler) -> None:
    for name in ("MultiDiscrete", "MultiBinary"):
        updated = sampler.update_env("sample_envs:ManyActions", kwargs={"kind": name})
        sampler.update_agent(rollserve.MlpAgent.initial(updated.observation_space, updated.action_space, seed=0))
        batch = sampler.obtain_samples(100, seed=1)
        assert batch.actions.shape == (len(batch.actions), 3)
        assert np.array_equal(batch.rewards, batch.actions.sum(axis=1))
        assert np.all(
            np.abs(batch.agent_infos["log_prob"] - (np.log(1 / 24) if name == "MultiDiscrete" else np.log(1 / 8))) < 0.3
        )


@pytest.mark.parametrize("name", ["1/weight", "value/1/weight"])
def test_rows_whose_outputs_are_no_numbers(name: str) -> None:
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


def test_numbers_whose_sum_is_none() -> None:
    parameters = {"0/weight": np.zeros((4, 7), np.float32), "0/bias": np.full(4, 3e38, np.float32)}
    built = build_agent(MlpSpec((7, 4), None, "categorical", parameters), OBSERVATIONS, DISCRETE, 3)
    built.act([observe(3)], np.zeros((3, 1)))
    assert built.failures() == {}


@pytest.mark.parametrize("vectorization", ["rows", "native"])
def test_what_is_no_number_ends_the_call_and_tells_where(sampler: rollserve.Sampler, vectorization: Any) -> None:
    sampler.update_env(rollserve.EnvSpec("CartPole-v1", vectorization=vectorization, num_rows=4))
    # Its logits are finite as long as the sizes of an observation's elements add up to less than 0.57.
    eye = np.eye(4, dtype=np.float32)
    parameters = {
        "0/weight": np.concatenate([eye, -eye]) * np.float32(1e37),
        "0/bias": np.zeros(8, np.float32),
        "1/weight": np.full((2, 8), 60, np.float32),
        "1/bias": np.zeros(2, np.float32),
    }
    sampler.update_agent(rollserve.MlpAgent(parameters, "categorical", activation="relu"))
    for obtain in (sampler.obtain_samples, sampler.obtain_fragments):
        with raises(rollserve.PreconditionError, reason=Reason.AGENT_FAILED, match=r"episode \d+.*\binf\b"):
            obtain(4000)
    sampler.update_agent(rollserve.RandomAgent())
    assert sampler.obtain_samples(40).num_steps >= 40


def test_observations_that_are_no_numbers(sampler: rollserve.Sampler) -> None:
    updated = sampler.update_env("sample_envs:NoNumbers", kwargs={"after": 3})
    sampler.update_agent(rollserve.MlpAgent.initial(updated.observation_space, updated.action_space, seed=0))
    with raises(rollserve.PreconditionError, reason=Reason.AGENT_FAILED, match=r"\b3\b.*\bnan\b"):
        sampler.obtain_samples(1000)
    # What it shows at the end of an episode is not acted upon.
    assert np.isnan(sampler.obtain_samples(30, max_episode_length=3).last_observations).any(axis=1).all()
