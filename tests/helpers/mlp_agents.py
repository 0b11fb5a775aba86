"""MLP agents with random parameters, and their networks in float64."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

import rollserve
from rollserve.mlp_agent import mlp_to_proto
from rollserve_server.agents import Exploration, MlpSpec, build_agent, check_exploration, mlp_from_proto
from rollserve_server.envs import describe_space

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


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    inner: np.ndarray = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)  # as one expression, mypy takes 10 s
    return np.asarray(0.5 * x * (1 + np.tanh(inner)))


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_tanh": _gelu_tanh,
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def agent_of(head: str, *, settings: Any = None, **options: Any) -> rollserve.MlpAgent:
    """Return an agent whose parameters are random, none of them 0 or 1."""
    spaces_ = describe_space(OBSERVATIONS), describe_space(ACTION_SPACES[head])
    agent = rollserve.MlpAgent.initial(*spaces_, head=head, hidden_sizes=(16, 9), seed=0, **options)  # type: ignore[arg-type]
    generator = np.random.default_rng(1)
    parameters = {
        name: (value + generator.normal(scale=0.4, size=value.shape)).astype(np.float32)
        for name, value in agent.parameters.items()
    }
    return dataclasses.replace(agent, parameters=parameters, **(settings or {}))


def cartpole_agent(seed: int = 0) -> rollserve.MlpAgent:
    """Return an untrained agent with a hidden layer of four units for CartPole-v1."""
    observations = rollserve.spaces.Box(np.float32(-1), np.float32(1), (4,), np.dtype(np.float32))
    return rollserve.MlpAgent.initial(observations, rollserve.spaces.Discrete(2), hidden_sizes=(4,), seed=seed)


def spec_of(agent: rollserve.MlpAgent) -> MlpSpec:
    """Return the agent as the gateway reads it from a message."""
    mlp = mlp_to_proto(agent)
    return mlp_from_proto(type(mlp).FromString(mlp.SerializeToString()), agent.parameters)


def network(agent: rollserve.MlpAgent, x: np.ndarray, prefix: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Return the last hidden layer and the output, computed in float64."""
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
