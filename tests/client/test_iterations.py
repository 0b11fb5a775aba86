"""Iterations of an on-policy trainer: what acts, what is learned from, what is kept, and how they end."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support import raises

import rollserve
from rollserve_server.local import LocalServer

NUM_ROWS = 8
OPTIONS: rollserve.SamplingOptions = {"seed": 5, "return_discount": 0.9, "return_last_values": True}


@pytest.fixture
def agent(sampler: rollserve.Sampler) -> rollserve.MlpAgent:
    """An agent for Pendulum, whose episodes end after 20 steps, that normalizes."""
    env = sampler.update_env("Pendulum-v1", kwargs={"max_episode_steps": 20})
    spaces = env.observation_space, env.action_space
    return rollserve.MlpAgent.initial(*spaces, seed=0, value="separate", normalization=True, hidden_sizes=(8,))


def returns_of(batch: rollserve.EpisodeBatch, discount: float) -> np.ndarray:
    """Return the discounted return after each step, from the segments' returns before it."""
    found: list[float] = []
    for segment, before in zip(batch.split(), batch.discounted_returns_before, strict=True):
        for reward in segment.rewards:
            before = discount * before + reward
            found.append(before)
    return np.array(found)


def value(parameters: dict[str, np.ndarray], observations: Any) -> np.ndarray:
    hidden = np.tanh(observations @ parameters["value/0/weight"].T + parameters["value/0/bias"])
    return (hidden @ parameters["value/1/weight"].T + parameters["value/1/bias"])[:, 0]


@pytest.mark.parametrize("lag", [0, 1])
def test_iterations_normalize_by_what_acted(sampler: rollserve.Sampler, agent: rollserve.MlpAgent, lag: int) -> None:
    held: list[dict[str, np.ndarray]] = []
    batches: list[rollserve.EpisodeBatch] = []
    iterations = sampler.iterations(agent, 3, steps_per_row=16, max_policy_lag=lag, **OPTIONS)
    for batch in iterations:
        held.append({name: array.copy() for name, array in agent.parameters.items()})
        batches.append(batch)
        agent.parameters["value/1/bias"] += np.float32(0.5)
    first, *_ = versions = [batch.round.policy_version for batch in batches if batch.round is not None]
    assert [version - first for version in versions] == [max(0, number - lag) for number in range(3)]
    scales, raw = rollserve.RunningMoments(), []
    for number, (batch, version) in enumerate(zip(batches, versions, strict=True)):
        acted = held[version - first]
        assert (batch.policy_versions == version).all()
        assert np.allclose(value(acted, batch.observations), batch.agent_infos["value"], atol=1e-5)
        last_values = np.where(batch.terminated, 0, value(acted, batch.last_observations))
        assert np.allclose(last_values, batch.last_values, atol=1e-5)

        options: Any = {**OPTIONS, "policy_version": version, "row_step_count": 16 * number if number else None}
        same = sampler.obtain_fragments(16 * NUM_ROWS, **options)
        raw.append(same.observations)
        scales.merge(rollserve.RunningMoments.of_segments(returns_of(same, 0.9), same.lengths))
        assert np.array_equal(batch.raw_rewards, same.rewards)
        assert np.allclose(batch.rewards, same.scaled_rewards(scales))
        assert batch.rewards.dtype == batch.observations.dtype == np.float32
    assert iterations.num_steps == 3 * 16 * NUM_ROWS
    last, observations = sampler.agent_parameters(), np.concatenate(raw).astype(np.float64)
    assert all(np.array_equal(last[name], array) for name, array in agent.parameters.items())
    assert np.allclose(last["observation/mean"], observations.mean(axis=0))
    assert np.allclose(last["observation/variance"], observations.var(axis=0))


def test_iterations_know_the_mean_return_and_go_on(sampler: rollserve.Sampler, agent: rollserve.MlpAgent) -> None:
    returns: list[float] = []
    iterations = sampler.iterations(agent, 8, steps_per_row=40, **OPTIONS)
    assert np.isnan(iterations.mean_return)
    assert "iteration 0 of 8, 0 steps, no episode ended, " in str(iterations)
    for batch in iterations:
        returns += batch.episode_returns[batch.terminated | batch.truncated].tolist()
        assert iterations.mean_return == pytest.approx(np.mean(returns[-100:]))
        assert iterations.num_episodes == len(returns)
    assert len(returns) > 100
    assert f"iteration 8 of 8, 2,560 steps, mean return {iterations.mean_return:.1f}, " in str(iterations)
    more = sampler.iterations(agent, 1, steps_per_row=40, state=iterations.state(), **OPTIONS)
    assert (more.mean_return, more.num_episodes) == (iterations.mean_return, len(returns))
    next(more)
    assert more.num_steps == more.observation_moments.count == more.return_moments.count == 2_880
    held = sampler.agent_parameters()
    assert np.array_equal(held["observation/mean"], iterations.observation_moments.mean)


def test_iterations_send_what_a_function_returns(sampler: rollserve.Sampler, agent: rollserve.MlpAgent) -> None:
    plain = {name: array for name, array in agent.parameters.items() if not name.startswith("observation/")}
    sampler.update_agent(rollserve.MlpAgent(plain, "diagonal_gaussian"))
    updates: Iterator[Any] = iter([{**plain, "log_std": np.full(1, -k, np.float32)} for k in range(4)])
    iterations = sampler.iterations(lambda: next(updates), 3, steps_per_row=8)
    for batch in iterations:
        sampled = batch.round
        assert sampled is not None
        assert batch.raw_rewards is None
        assert sampled.observation_moments is None
    assert iterations.observation_moments.count == 0
    assert sampler.agent_parameters()["log_std"] == -3


def test_iterations_that_are_left_end(sampler: rollserve.Sampler, agent: rollserve.MlpAgent) -> None:
    with sampler.iterations(agent, 100, steps_per_row=8, max_policy_lag=1) as iterations:
        next(iterations)
        agent.parameters["log_std"] += np.float32(1)
    assert sampler.agent_parameters()["log_std"] == agent.parameters["log_std"]
    with raises(rollserve.CancelledError, match="stream was closed"):
        list(iterations)


async def test_async_iterations_return_the_same_batches(
    sampler: rollserve.Sampler, agent: rollserve.MlpAgent, server: LocalServer
) -> None:
    same_agent = copy.deepcopy(agent)
    batches = list(sampler.iterations(agent, 3, steps_per_row=8, **OPTIONS))
    async with rollserve.aconnect(server.address) as asynchronous:
        iterations = asynchronous.iterations(same_agent, 3, steps_per_row=8, **OPTIONS)
        for batch in batches:
            same = await anext(iterations)
            assert np.array_equal(batch.observations, same.observations)
            assert np.array_equal(batch.rewards, same.rewards)
        with pytest.raises(StopAsyncIteration):
            await anext(iterations)


def test_iterations_refuse_other_arguments(sampler: rollserve.Sampler, agent: rollserve.MlpAgent) -> None:
    with raises(TypeError, match="trained_agent: expected an agent with parameters, or a function .*, got RandomAgent"):
        sampler.iterations(rollserve.RandomAgent(), 1, steps_per_row=8)
    with raises(rollserve.InvalidArgumentError, field="num_iterations"):
        sampler.iterations(agent, 0, steps_per_row=8)
    with raises(rollserve.InvalidArgumentError, field="max_policy_lag"):
        sampler.iterations(agent, 1, steps_per_row=8, max_policy_lag=-1)
    with raises(ValueError, match="state: expected an array 'num_steps', got none of that name"):
        sampler.iterations(agent, 1, steps_per_row=8, state={})
    many: Any = sampler.multi_agent
    with raises(TypeError, match="sampler: expected a sampler for one agent, got one for many"):
        many.iterations(agent, 1, steps_per_row=8)
