"""Calls with MLP agents: exploration options, infos of heads, and outputs that are no numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from mlp_agents import (
    agent_of,
    spec_of,
)
from pools import pool_of, sample
from support import equal, raises

import rollserve
from rollserve import Reason
from rollserve_server.agents import Exploration, check_exploration
from rollserve_server.errors import InvalidValueError
from rollserve_server.pool import AtLeast, Fragments, InProcessBackend


@pytest.mark.parametrize(
    ("head", "exploration", "field"),
    [
        ("categorical", Exploration(noise_scale=(2,)), "noise_scales"),
        ("categorical", Exploration(noise_scale=(1.0,)), "noise_scales"),
        ("multi_categorical", Exploration(noise_scale=(0.5, 1.0)), "noise_scales"),
        ("diagonal_gaussian", Exploration(temperature=(1.0,)), "temperatures"),
        ("categorical", Exploration(epsilon=(0.0,)), "epsilons"),
        ("squashed_gaussian", Exploration(temperature=(2,)), "temperatures"),
        ("epsilon_greedy", Exploration(temperature=(2,)), "temperatures"),
        ("boltzmann", Exploration(epsilon=(0.5,)), "epsilons"),
    ],
)
def test_exploration_without_meaning_for_the_head_is_rejected(head: str, exploration: Exploration, field: str) -> None:
    with raises(InvalidValueError, field=field, quotes=head):
        check_exploration(spec_of(agent_of(head)), exploration)


@pytest.mark.parametrize("exploration", [Exploration(noise_scale=(0.3, 1, 3)), Exploration(deterministic=True)])
async def test_exploration_does_not_depend_on_workers_or_rows(exploration: Exploration) -> None:
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
            # Episodes kept from calls with other exploration are not reused.
            await sample(pool, AtLeast(150), seed=9, exploration=Exploration(noise_scale=(5,)))
            again = await sample(pool, AtLeast(150), seed=9, exploration=exploration)
            assert equal(again, batches[0]), (num_workers, num_rows)
    assert equal(batches[1], batches[0])
    assert equal(batches[2], batches[0])


@pytest.mark.parametrize("vectorization", ["rows", "native"])
async def test_epsilon_is_chosen_by_episode_index(vectorization: Any) -> None:
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


def test_calls_take_exploration_options(sampler: rollserve.Sampler) -> None:
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
    # Exploration may change between calls for fragments.
    fragments = [sampler.obtain_fragments(64, deterministic=is_best) for is_best in (True, False)]
    assert [fragment.agent_infos["log_prob"].any() for fragment in fragments] == [False, True]
    sampler.update_agent(rollserve.RandomAgent())
    with raises(rollserve.InvalidArgumentError, field="options.exploration.deterministic", quotes="random"):
        sampler.obtain_samples(1, deterministic=True)


@pytest.mark.parametrize("head", ["epsilon_greedy", "boltzmann"])
def test_head_of_q_values_reports_them(sampler: rollserve.Sampler, head: Any) -> None:
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


def test_initial_agents_act_in_spaces_of_several_elements(sampler: rollserve.Sampler) -> None:
    for name in ("MultiDiscrete", "MultiBinary"):
        updated = sampler.update_env("sample_envs:ManyActions", kwargs={"kind": name})
        sampler.update_agent(rollserve.MlpAgent.initial(updated.observation_space, updated.action_space, seed=0))
        batch = sampler.obtain_samples(100, seed=1)
        assert batch.actions.shape == (len(batch.actions), 3)
        assert np.array_equal(batch.rewards, batch.actions.sum(axis=1))
        assert np.all(
            np.abs(batch.agent_infos["log_prob"] - (np.log(1 / 24) if name == "MultiDiscrete" else np.log(1 / 8))) < 0.3
        )


@pytest.mark.parametrize("vectorization", ["rows", "native"])
def test_infinite_output_fails_the_call_with_its_position(sampler: rollserve.Sampler, vectorization: Any) -> None:
    sampler.update_env(rollserve.EnvSpec("CartPole-v1", vectorization=vectorization, num_rows=4))
    # The logits are finite while the absolute values of an observation's elements sum to less than 0.57.
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


def test_nan_observation_fails_the_call_unless_it_is_the_last(sampler: rollserve.Sampler) -> None:
    updated = sampler.update_env("sample_envs:NoNumbers", kwargs={"after": 3})
    sampler.update_agent(rollserve.MlpAgent.initial(updated.observation_space, updated.action_space, seed=0))
    with raises(rollserve.PreconditionError, reason=Reason.AGENT_FAILED, match=r"\b3\b.*\bnan\b"):
        sampler.obtain_samples(1000)
    # The agent does not act on the last observation of an episode.
    assert np.isnan(sampler.obtain_samples(30, max_episode_length=3).last_observations).any(axis=1).all()
