"""The action and the reward of the step before, as inputs of agents of all kinds, in rows and calls of all kinds."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from typing import Any

import numpy as np
import onnx_models as models
import pytest
from fragment_calls import fragments, in_calls, of_episodes
from gymnasium import spaces as gym_spaces
from mlp_agents import network, spec_of
from pools import lose_worker, pool_of, sample
from python_agents import prepared as prepared_python
from sample_envs import Masked
from support import equal, raises

import rollserve
from rollserve_server.agents import RandomSpec
from rollserve_server.errors import InvalidValueError
from rollserve_server.pool import AtLeast, InProcessBackend
from rollserve_server.sampling import ColumnFormat

ALL_STATES = ColumnFormat(all_states=True)
ROWS = rollserve.EnvSpec("Masked-v0", {"free": True}, vectorization="rows")
NATIVE = rollserve.EnvSpec("Masked-v0", {"free": True}, vectorization="native", num_rows=3)
BOTH = {"previous_action": True, "previous_reward": True}


def random_agent(observation_space: Any, action_space: Any, seed: int = 0, **options: Any) -> rollserve.MlpAgent:
    """Return an agent with random parameters, none of them 0."""
    agent = rollserve.MlpAgent.initial(observation_space, action_space, hidden_sizes=(8,), seed=seed, **options)
    generator = np.random.default_rng(seed + 1)
    parameters = {
        name: (value + generator.normal(scale=0.4, size=value.shape)).astype(np.float32)
        for name, value in agent.parameters.items()
    }
    return dataclasses.replace(agent, parameters=parameters)


def spec_for_masked(seed: int = 0, **options: Any) -> Any:
    board = rollserve.spaces.Box(np.float32(-1), np.float32(1), (3,), np.dtype(np.float32))
    return spec_of(random_agent(board, rollserve.spaces.Discrete(5, 2), seed, **{**BOTH, **options}))


def flat(space: gym_spaces.Space[Any], actions: Any) -> np.ndarray:
    return np.stack([gym_spaces.flatten(space, action) for action in actions]).astype(np.float32)


def check_previous(batch: rollserve.EpisodeBatch, space: gym_spaces.Space[Any]) -> int:
    """Check the states of all steps and of each segment's first one; return how many segments continue an episode."""
    infos = batch.agent_infos
    chosen, rewards = flat(space, batch.actions), batch.rewards.astype(np.float64)
    start = num_going_on = 0
    for segment, length in enumerate(batch.lengths.tolist()):
        steps = slice(start, start + length)
        action, reward = infos["state/previous_action"][steps], infos["state/previous_reward"][steps]
        assert np.array_equal(action[1:], chosen[steps][:-1])
        assert np.array_equal(reward[1:], rewards[steps][:-1])
        assert np.array_equal(batch.initial_states["previous_action"][segment], action[0])
        assert batch.initial_states["previous_reward"][segment] == reward[0]
        if batch.first_steps[segment] == 0:
            assert not action[0].any()
            assert reward[0] == 0
        else:
            num_going_on += 1
        start += length
    return num_going_on


def check_network(agent: rollserve.MlpAgent, batch: rollserve.EpisodeBatch, name: str) -> None:
    """Check an info against the network in float64, for its documented input."""
    infos = batch.agent_infos
    previous = infos["state/previous_action"], infos["state/previous_reward"][:, np.newaxis]
    _, expected = network(agent, np.concatenate([batch.observations, *previous], axis=1))
    assert np.allclose(infos[name].reshape(batch.num_steps, -1), expected, atol=1e-4)


@pytest.mark.parametrize("kind", ["discrete", "multi"])
def test_mlp_gets_the_step_before(fed: rollserve.Sampler, kind: str) -> None:
    updated = fed.update_env("sample_envs:Masked", kwargs={"kind": kind, "free": True})
    agent = random_agent(updated.observation_space, updated.action_space, **BOTH)
    assert agent.layer_sizes[0] == 3 + (5 if kind == "discrete" else 10) + 1
    fed.update_agent(agent)
    batch = fed.obtain_samples(100, return_states=True)
    check_previous(batch, Masked(kind).action_space)
    check_network(agent, batch, "logits")
    masked = rollserve.ActionMask(info="action_mask")
    fed.update_agent(dataclasses.replace(agent, action_mask=masked))
    batch = fed.obtain_samples(100, return_states=True, deterministic=True)
    check_previous(batch, Masked(kind).action_space)
    check_network(agent, batch, "logits")


def test_mlp_gets_one_of_both(fed: rollserve.Sampler) -> None:
    updated = fed.update_env("sample_envs:Masked", kwargs={"free": True})
    for name, size in (("previous_action", 5), ("previous_reward", 1)):
        agent = random_agent(updated.observation_space, updated.action_space, **{name: True})
        assert agent.layer_sizes[0] == 3 + size
        fed.update_agent(agent)
        batch = fed.obtain_samples(50, return_states=True)
        state = batch.agent_infos[f"state/{name}"].reshape(-1, size)
        assert set(batch.initial_states) == {name}
        _, expected = network(agent, np.concatenate([batch.observations, state], axis=1))
        assert np.allclose(batch.agent_infos["logits"], expected, atol=1e-4)


def test_mlp_gets_the_action_that_it_chose(fed: rollserve.Sampler) -> None:
    """The environment clips actions of more than 2; the agent's own are recorded, and come back."""
    updated = fed.update_env("Pendulum-v1", kwargs={"max_episode_steps": 20})
    agent = random_agent(updated.observation_space, updated.action_space, **BOTH)
    agent = dataclasses.replace(agent, parameters={**agent.parameters, "log_std": np.full(1, 1.5, np.float32)})
    fed.update_agent(agent)
    space = gym_spaces.Box(-2, 2, (1,), np.float32)
    batch = fed.obtain_samples(60, return_states=True)
    assert (np.abs(batch.actions) > 2).any()
    check_previous(batch, space)
    check_network(agent, batch, "mean")
    calls = [fed.obtain_fragments(6 * num_steps, return_states=True) for num_steps in (3, 10, 25)]
    assert sum(check_previous(each, space) for each in calls) >= 12
    for each in calls:
        check_network(agent, each, "mean")


def test_normalization_and_last_values_heed_the_step_before(fed: rollserve.Sampler) -> None:
    """Only the observation is normalized. The value after a segment has the last action and reward as inputs."""
    updated = fed.update_env("sample_envs:Masked", kwargs={"free": True})
    agent = random_agent(updated.observation_space, updated.action_space, normalization=True, value="shared", **BOTH)
    mean, variance = np.array([1.0, 2.0, 0.5]), np.array([4.0, 1.0, 0.25])
    parameters = {**agent.parameters, "observation/mean": mean, "observation/variance": variance}
    agent = dataclasses.replace(agent, parameters=parameters)
    fed.update_agent(agent)
    space = Masked().action_space
    for batch in (
        fed.obtain_samples(60, return_states=True, return_last_values=True),
        fed.obtain_fragments(60, return_states=True, return_last_values=True),
        fed.obtain_fragments(60, return_states=True, return_last_values=True),
    ):
        check_previous(batch, space)
        infos, ends = batch.agent_infos, np.cumsum(batch.lengths) - 1
        previous = infos["state/previous_action"], infos["state/previous_reward"][:, np.newaxis]
        normal = (batch.observations - mean) / np.sqrt(variance + 1e-8)
        hidden, expected = network(agent, np.concatenate([normal, *previous], axis=1))
        assert np.allclose(infos["logits"], expected, atol=1e-3)
        last = (batch.last_observations - mean) / np.sqrt(variance + 1e-8)
        after = flat(space, batch.actions)[ends], batch.rewards[ends, np.newaxis]
        hidden, _ = network(agent, np.concatenate([last, *after], axis=1))
        values = hidden @ agent.parameters["value/weight"][0] + agent.parameters["value/bias"]
        assert batch.last_values is not None
        going_on = ~batch.terminated
        assert np.allclose(batch.last_values[going_on], values[going_on], atol=1e-3)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_native_rows_begin_episodes_without_a_step_before(fed: rollserve.Sampler, mode: str) -> None:
    updated = fed.update_env(dataclasses.replace(NATIVE, kwargs={"free": True, "mode": mode}))
    fed.update_agent(random_agent(updated.observation_space, updated.action_space, core="gru", core_size=4, **BOTH))
    space = Masked().action_space
    check_previous(fed.obtain_samples(200, return_states=True), space)
    if mode == "SameStep":
        calls = [fed.obtain_fragments(6 * num_steps, return_states=True) for num_steps in (1, 7, 40)]
        assert sum(check_previous(batch, space) for batch in calls) >= 6


def test_soft_horizon_begins_without_a_step_before(fed: rollserve.Sampler) -> None:
    updated = fed.update_env("sample_envs:Ends", kwargs={"length": 50})
    fed.update_agent(random_agent(updated.observation_space, updated.action_space, **BOTH))
    options = {"max_episode_length": 6, "soft_horizon": True, "return_states": True}
    for _ in range(3):
        batch = fed.obtain_fragments(6 * 9, **options)
        check_previous(batch, gym_spaces.Discrete(updated.action_space.flat_size))
        assert (batch.first_steps == 0).sum() >= 6


def test_model_gets_the_step_before(fed: rollserve.Sampler) -> None:
    """Models name their inputs by roles; they may have their own states, too."""
    nodes = [
        models.node("Cast", "previous_action", "action", to=models.FLOAT),
        models.node("Unsqueeze", "action axes", "action_column"),
        models.node("Unsqueeze", "bonus axes", "reward_column"),
        models.node("Concat", "observation action_column reward_column state/sum", "all", axis=1),
        models.node("Gemm", "all w", "logits"),
        models.node("Add", "state/sum reward_column", "next_state/sum"),
    ]
    inputs: dict[str, list[int | str | None]] = {
        "observation": ["N", 3],
        "previous_action": ["N"],
        "bonus": ["N"],
        "state/sum": ["N", 1],
    }
    weight = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    constants = {"w": weight, "axes": np.array([1])}
    outputs: dict[str, list[int | str | None]] = {"logits": ["N", 5], "next_state/sum": ["N", 1]}
    model = models.model(nodes, inputs, outputs, constants, types={"previous_action": models.INT64})
    fed.update_env("sample_envs:Masked", kwargs={"free": True})
    fed.update_agent(models.agent_of(model, inputs={"previous_reward": "bonus"}))
    batch = fed.obtain_samples(60, return_states=True)
    infos = batch.agent_infos
    for episode in batch.split():
        previous = np.concatenate([[0], episode.actions[:-1]])
        rewards = np.concatenate([[0.0], episode.rewards[:-1]])
        assert np.array_equal(episode.agent_infos["state/previous_action"], previous)
        assert np.array_equal(episode.agent_infos["state/previous_reward"], rewards)
        sums = np.cumsum(np.concatenate([[0.0], rewards[:-1]]))
        columns = [episode.observations, *(each[:, np.newaxis] for each in (previous, rewards, sums))]
        assert np.allclose(episode.agent_infos["logits"], np.concatenate(columns, axis=1) @ weight, atol=1e-3)
    assert infos["state/previous_action"].dtype == np.int64
    calls = [fed.obtain_fragments(6 * num_steps, return_states=True) for num_steps in (2, 5, 4)]
    for before, after in itertools.pairwise(calls):
        ends = np.cumsum(before.lengths) - 1
        for segment in np.flatnonzero(after.first_steps > 0):
            (end,) = ends[before.episode_indices == after.episode_indices[segment]]
            assert after.initial_states["previous_action"][segment] == before.actions[end]
            assert after.initial_states["previous_reward"][segment] == before.rewards[end]


def test_python_agent_gets_the_step_before(fed: rollserve.Sampler) -> None:
    """The actions are a Dict, and the policy shows what it gets as infos."""
    fed.update_env("sample_envs:Nested", kwargs={"length": 7})
    fed.update_agent(rollserve.PythonAgent("remembering"))
    for batch in (fed.obtain_samples(40), fed.obtain_fragments(60), fed.obtain_fragments(60)):
        for segment in batch.split():
            assert not isinstance(segment.actions, np.ndarray)
            for name, column in (("turn", segment.actions["turn"]), ("push", segment.actions["push"])):
                assert np.array_equal(segment.agent_infos[f"before_{name}"][1:], column[:-1])
                if segment.first_steps[0] == 0:
                    assert not segment.agent_infos[f"before_{name}"][0].any()
            assert np.array_equal(segment.agent_infos["before_reward"][1:], segment.rewards[:-1])
        assert (batch.agent_infos["count"] > 0).any()


def test_evaluations_and_populations_get_the_step_before(fed: rollserve.Sampler) -> None:
    updated = fed.update_env("sample_envs:Masked", kwargs={"free": True})
    agent = random_agent(updated.observation_space, updated.action_space, **BOTH)
    fed.update_agent(agent)
    expected = fed.evaluate(12, seed=1).returns
    stacked = {name: np.stack([value, value[::-1]]) for name, value in agent.parameters.items()}
    returns = fed.evaluate_population(stacked, 12, seed=1).returns
    assert returns[0].tolist() == expected.tolist()
    blind = dataclasses.replace(
        agent, parameters={**agent.parameters, "0/weight": agent.parameters["0/weight"] * np.array([1] * 3 + [0] * 6)}
    )
    fed.update_agent({name: value.astype(np.float32) for name, value in blind.parameters.items()})
    assert fed.evaluate(12, seed=1).returns.tolist() != expected.tolist()


async def test_episodes_and_fragments_do_not_depend_on_workers() -> None:
    spec, whole, num_compared = spec_for_masked(core="lstm", core_size=4), [], 0
    for num_workers, num_rows in ((1, 6), (2, 3), (3, 2), (5, 1)):
        changes = {"workers": num_workers, "rows": num_rows, "allow_module": ("sample_envs",)}
        async with pool_of(InProcessBackend(), ROWS, **changes) as pool:
            await pool.update_agent([spec])
            whole.append(await sample(pool, AtLeast(200), seed=5, columns=ALL_STATES))
            by_index = await of_episodes([whole[0]])
            parts = await of_episodes(await in_calls(pool, [1, 5, 2, 20], seed=5, columns=ALL_STATES))
        for index, episode in parts.items():
            if (episode.terminated | episode.truncated).all() and index in by_index:
                ones, others = (
                    dataclasses.replace(each, worker_indices=None, row_indices=None)
                    for each in (episode, by_index[index])
                )
                assert equal(ones, others)
                num_compared += 1
    assert all(equal(each, whole[0]) for each in whole[1:])
    check_previous(whole[0], Masked().action_space)
    assert num_compared > 40


@pytest.mark.parametrize("env", [ROWS, NATIVE], ids=["rows", "native"])
async def test_fragments_are_the_same_when_workers_are_lost(env: rollserve.EnvSpec) -> None:
    """A new agent goes on with the step before if the last agent had it, and else begins without one."""
    agents = [spec_for_masked(), spec_for_masked(1), RandomSpec(), spec_for_masked(2)]
    calls = [3, 4, 2, 20]
    async with pool_of(InProcessBackend(), env, workers=2, rows=3, allow_module=("sample_envs",)) as pool:

        async def act(*, loses: bool) -> list[rollserve.EpisodeBatch]:
            batches, clock = [], 0
            for number, (agent, num_steps) in enumerate(zip(agents, calls, strict=True)):
                await pool.update_agent([agent])
                batches.append(await fragments(pool, 6 * num_steps, clock or None, seed=9, columns=ALL_STATES))
                if loses:
                    lose_worker(pool, number % 2)
                    await asyncio.sleep(0)
                clock += num_steps
            return batches

        expected, batches = await act(loses=False), await act(loses=True)
        for batch, other in zip(batches, expected, strict=True):
            assert batch.account.num_broken_off_episodes == 0
            assert np.array_equal(batch.actions, other.actions)
            assert batch.agent_infos.keys() == other.agent_infos.keys()
            for name, column in batch.agent_infos.items():
                assert np.array_equal(column, other.agent_infos[name])
            for name, column in batch.initial_states.items():
                assert np.array_equal(column, other.initial_states[name])
        assert sum(batch.account.num_lost_steps for batch in batches if batch.account_or_none) > 0
        space = Masked().action_space
        check_previous(expected[0], space)
        assert check_previous(expected[1], space) == 6
        assert expected[1].initial_states["previous_action"][expected[1].first_steps > 0].any(axis=1).all()
        after = expected[3]
        assert not after.initial_states["previous_action"][after.first_steps > 0].any()


# Errors.


def test_input_of_another_size_is_rejected(fed: rollserve.Sampler) -> None:
    updated = fed.update_env("CartPole-v1")
    agent = rollserve.MlpAgent.initial(updated.observation_space, updated.action_space, seed=0)
    version = fed.update_agent(agent)
    for inputs, size in (({"previous_action": True}, "6"), ({"previous_reward": True}, "5"), (BOTH, "7")):
        with raises(
            rollserve.InvalidArgumentError,
            field="all_workers.agent.mlp.layer_sizes[0]",
            quotes=(size, "previous", "4"),
        ):
            fed.update_agent(dataclasses.replace(agent, **inputs))
    assert fed.status().policy_version == version
    with raises(TypeError, field="previous_reward"):
        dataclasses.replace(agent, previous_reward=1)  # type: ignore[arg-type]


def test_misfitting_inputs_of_a_model_are_rejected() -> None:
    board, actions = gym_spaces.Box(-1, 1, (4,), np.float32), gym_spaces.Discrete(2)
    for name, shape, dtype, quotes in (
        ("previous_action", ["N", 2], models.FLOAT, ("previous_action", "('N', 2)")),
        ("previous_reward", ["N", 1], models.FLOAT, ("previous_reward", "('N', 1)")),
        ("previous_reward", ["N"], models.INT64, ("previous_reward", "int64")),
        ("previous_action/turn", ["N"], models.FLOAT, ("previous_action/turn",)),
        ("state/previous_reward", ["N", 1], models.FLOAT, ("state/previous_reward",)),
    ):
        made = models.changed(inputs={"observation": ["N", 4], name: shape}, types={name: dtype})
        with raises(InvalidValueError, quotes=quotes):
            models.prepared(made, board, actions)


def test_misfitting_inputs_of_a_policy_are_rejected(sandboxes_find_test_agents: None) -> None:
    for kwargs, quotes in (
        ({"agent_inputs": ["previous_actions"]}, ("agent_inputs", "previous_actions")),
        ({"agent_inputs": 3}, ("agent_inputs", "3")),
        ({"agent_inputs": ["count"]}, ("agent_inputs", "count")),
    ):
        with raises(InvalidValueError, reason=rollserve.Reason.AGENT_REFUSED, quotes=quotes):
            prepared_python("remembering", kwargs)
