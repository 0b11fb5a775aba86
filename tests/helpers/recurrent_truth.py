"""Reference for recurrent MLP agents: plain formulas in float64, and checks of batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

import rollserve

NAMES = {"gru": ("h",), "lstm": ("h", "c")}


def agent_for(
    core: Any, num_inputs: int = 4, num_actions: int = 2, *, seed: int = 0, **options: Any
) -> rollserve.MlpAgent:
    """Return an agent for a Box of floats, with random parameters, none of them 0."""
    space = rollserve.spaces.Box(np.float32(-1), np.float32(1), (num_inputs,), np.dtype(np.float32))
    actions = rollserve.spaces.Discrete(num_actions)
    options = {"hidden_sizes": (8,), "core_size": 6, **options}
    agent = rollserve.MlpAgent.initial(space, actions, core=core, seed=seed, **options)
    generator = np.random.default_rng(seed + 1)
    parameters = {
        name: (value + generator.normal(scale=0.3, size=value.shape)).astype(np.float32)
        for name, value in agent.parameters.items()
    }
    return dataclasses.replace(agent, parameters=parameters)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def core_step(
    parameters: Mapping[str, np.ndarray], x: np.ndarray, recurrent_state: list[np.ndarray]
) -> list[np.ndarray]:
    """Return the recurrent state after a step, with the formulas of PyTorch's documentation."""
    h = recurrent_state[0]
    from_input = parameters["core/weight_ih"] @ x + parameters["core/bias_ih"]
    from_state = parameters["core/weight_hh"] @ h + parameters["core/bias_hh"]
    if len(recurrent_state) == 1:
        (ir, iz, i_n), (hr, hz, hn) = np.split(from_input, 3), np.split(from_state, 3)
        r, z = sigmoid(ir + hr), sigmoid(iz + hz)
        n = np.tanh(i_n + r * hn)
        return [(1 - z) * n + z * h]
    i, f, g, o = np.split(from_input + from_state, 4)
    c = sigmoid(f) * recurrent_state[1] + sigmoid(i) * np.tanh(g)
    return [sigmoid(o) * np.tanh(c), c]


def rollout(agent: rollserve.MlpAgent, observations: np.ndarray) -> dict[str, np.ndarray]:
    """Return the states before each step and after the last one, the logits and the values, in float64."""
    parameters = {name: value.astype(np.float64) for name, value in agent.parameters.items()}
    assert agent.core is not None
    last = len(agent.layer_sizes) - 2
    recurrent_state = [np.zeros(parameters["core/weight_hh"].shape[1]) for _ in NAMES[agent.core]]
    columns: dict[str, list[np.ndarray]] = {}
    for x in observations.astype(np.float64):
        for name, state in zip(NAMES[agent.core], recurrent_state, strict=True):
            columns.setdefault(name, []).append(state)
        hidden = x
        for layer in range(last):
            hidden = np.tanh(parameters[f"{layer}/weight"] @ hidden + parameters[f"{layer}/bias"])
        recurrent_state = core_step(parameters, hidden, recurrent_state)
        columns.setdefault("logits", []).append(
            parameters[f"{last}/weight"] @ recurrent_state[0] + parameters[f"{last}/bias"]
        )
        if "value/weight" in parameters:
            columns.setdefault("value", []).append(
                (parameters["value/weight"] @ recurrent_state[0] + parameters["value/bias"])[0]
            )
    for name, state in zip(NAMES[agent.core], recurrent_state, strict=True):
        columns[name].append(state)
    return {name: np.stack(values) for name, values in columns.items()}


def check_episodes(agent: rollserve.MlpAgent, batch: rollserve.EpisodeBatch) -> None:
    """Check that each episode has the states and outputs that the formulas give for its observations."""
    assert agent.core is not None
    assert (batch.first_steps == 0).all()
    for episode in batch.split():
        expected = rollout(agent, episode.observations)
        for name in NAMES[agent.core]:
            assert np.allclose(episode.agent_infos[f"state/{name}"], expected.pop(name)[:-1], rtol=0, atol=1e-5)
            assert not episode.initial_states[name].any()
        for name, column in expected.items():
            assert np.allclose(episode.agent_infos[name], column, rtol=1e-5, atol=1e-5)


def check_beginnings(batch: rollserve.EpisodeBatch) -> int:
    """Check that segments begin with the states of their first steps; return how many continue an episode."""
    starts = np.cumsum(batch.lengths) - batch.lengths
    goes_on = batch.first_steps > 0
    for name, column in batch.initial_states.items():
        assert column.shape == (len(batch), *batch.agent_infos[f"state/{name}"].shape[1:])
        assert np.array_equal(column, batch.agent_infos[f"state/{name}"][starts])
        assert not column[~goes_on].any()
        assert column[goes_on].any(axis=1).all()
    assert batch.initial_states
    return int(goes_on.sum())
