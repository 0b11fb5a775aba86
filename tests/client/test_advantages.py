"""Advantages and returns of batches, against their definitions as sums and as plain loops."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learner_batches import last_values_of, learner_batches, random_batch, values_after
from support import raises

import rollserve

FRACTIONS = st.floats(0, 1)


def close(actual: np.ndarray, expected: list[float], dtype: Any) -> bool:
    """Whether numbers are as close as the dtype lets expect for sums of a few hundred numbers of about 1."""
    assert actual.dtype == dtype
    return np.allclose(actual, expected, rtol=0, atol=1e-3 if dtype == np.float32 else 1e-10)


def gae_sums(batch: rollserve.EpisodeBatch, gamma: float, lam: float, last_values: np.ndarray) -> list[float]:
    """Return the estimates by equation 16 of Schulman et al. 2016: sums over k of (gamma lam)^k delta[t + k]."""
    found = []
    for segment, part in enumerate(batch.split()):
        values = values_after(batch, segment, batch.agent_infos["value"], last_values)
        rewards = part.rewards.tolist()
        deltas = [reward + gamma * values[t + 1] - values[t] for t, reward in enumerate(rewards)]
        found += [sum((gamma * lam) ** k * delta for k, delta in enumerate(deltas[t:])) for t in range(len(deltas))]
    return found


@given(learner_batches(), FRACTIONS, FRACTIONS)
def test_advantages_equal_the_sums_of_their_definition(batch: rollserve.EpisodeBatch, gamma: float, lam: float) -> None:
    last_values = last_values_of(batch)
    advantages, targets = batch.advantages(gamma, lam, last_values=last_values)
    expected = gae_sums(batch, gamma, lam, last_values)
    assert close(advantages, expected, batch.rewards.dtype)
    assert close(targets, expected + batch.agent_infos["value"], batch.rewards.dtype)


@pytest.mark.parametrize("lengths", [[256], [257], [1000, 3, 256, 513], [70_000, 1]], ids=str)
def test_advantages_of_long_segments_equal_a_plain_loop(lengths: list[int]) -> None:
    batch = random_batch(lengths, 5)
    last_values = last_values_of(batch)
    advantages = batch.advantages(0.999, 0.98, last_values=last_values).advantages
    expected = []
    for segment, part in enumerate(batch.split()):
        values = values_after(batch, segment, batch.agent_infos["value"], last_values)
        following, backwards = 0.0, []
        for t in reversed(range(part.num_steps)):
            following = float(part.rewards[t]) + 0.999 * values[t + 1] - values[t] + 0.999 * 0.98 * following
            backwards.append(following)
        expected += backwards[::-1]
    assert close(advantages, expected, np.float64)


def test_advantages_of_a_segment_do_not_depend_on_the_others() -> None:
    batch = random_batch([1000, 3, 300, 256], 6)
    last_values = last_values_of(batch)
    whole = batch.advantages(0.99, 0.95, last_values=last_values).advantages
    alone = [
        part.advantages(0.99, 0.95, last_values=last_values[i : i + 1]).advantages
        for i, part in enumerate(batch.split())
    ]
    assert whole.tobytes() == np.concatenate(alone).tobytes()


def test_advantages_equal_a_rollout_buffer_over_rows(sampler: rollserve.Sampler) -> None:
    """The loop over rows (T, R) with flags of episodes' starts, and rewards that hold the value at truncation.

    That is how Stable-Baselines3 defines its rollout buffer: the value of a truncated episode's last observation is
    added to the last reward, and what follows a done step counts nothing.
    """
    sampler.update_env("CartPole-v1", kwargs={"max_episode_steps": 30})
    batch = sampler.obtain_fragments(800)
    assert batch.truncated.any()
    assert batch.terminated.any()

    def critic(observations: Any) -> np.ndarray:
        return observations.sum(axis=-1).astype(np.float64)

    assert batch.row_indices is not None
    found = batch.advantages(0.99, 0.95, critic(batch.observations), critic(batch.last_observations)).advantages
    rows = batch.as_rows()
    values, nexts = critic(rows["observations"]), critic(rows["next_observations"])
    truncated = rows["truncated"] & ~rows["terminated"]  # type: ignore[operator]
    dones = rows["truncated"] | rows["terminated"]  # type: ignore[operator]
    rewards = rows["rewards"] + 0.99 * nexts * truncated
    expected, following = np.zeros_like(values), np.zeros(values.shape[1])
    for step in reversed(range(len(values))):
        non_terminal = 1.0 - dones[step]
        next_values = values[step + 1] if step + 1 < len(values) else nexts[step]
        delta = rewards[step] + 0.99 * next_values * non_terminal - values[step]
        following = delta + 0.99 * 0.95 * non_terminal * following
        expected[step] = following
    for row in range(values.shape[1]):
        parts = [
            part
            for part, of in zip(np.split(found, np.cumsum(batch.lengths)), batch.row_indices, strict=False)
            if of == row
        ]
        assert np.allclose(np.concatenate(parts), expected[:, row], rtol=0, atol=1e-10)


@given(learner_batches(), FRACTIONS, st.booleans())
def test_discounted_returns_equal_the_sums_of_their_definition(
    batch: rollserve.EpisodeBatch, gamma: float, bootstraps: bool
) -> None:
    last_values = last_values_of(batch) if bootstraps else None
    expected = []
    for segment, part in enumerate(batch.split()):
        bootstrap = 0.0 if last_values is None or batch.terminated[segment] else float(last_values[segment])
        rewards = [*part.rewards.tolist(), bootstrap]
        expected += [sum(gamma**k * reward for k, reward in enumerate(rewards[t:])) for t in range(part.num_steps)]
    assert close(batch.discounted_returns(gamma, last_values), expected, batch.rewards.dtype)


@given(learner_batches(20), st.integers(1, 25), FRACTIONS)
def test_n_step_returns_equal_the_sums_of_their_definition(batch: rollserve.EpisodeBatch, n: int, gamma: float) -> None:
    last_values = last_values_of(batch)
    expected = []
    for segment, part in enumerate(batch.split()):
        values = values_after(batch, segment, batch.agent_infos["value"], last_values)
        rewards = part.rewards.tolist()
        for t in range(len(rewards)):
            stop = min(t + n, len(rewards))
            sums = sum(gamma ** (k - t) * rewards[k] for k in range(t, stop))
            expected.append(sums + gamma ** (stop - t) * values[stop])
    found = batch.n_step_returns(n, gamma, last_values=last_values)
    assert close(found, expected, batch.rewards.dtype)


def test_integer_rewards_count_as_float64() -> None:
    batch = random_batch([3], 0, rewards=np.array([1, 2, 3]), agent_infos={}, terminated=np.array([True]))
    assert batch.discounted_returns(0.5).tolist() == [1 + 1 + 0.75, 2 + 1.5, 3]
    advantages, targets = batch.advantages(1, 1, np.zeros(3, np.float32))
    assert advantages.dtype == targets.dtype == np.float64
    assert advantages.tolist() == targets.tolist() == [6, 5, 3]


def test_advantages_of_no_segments_are_empty() -> None:
    batch = random_batch([], 0)
    assert batch.advantages(0.99, 0.95).advantages.shape == (0,)
    assert batch.n_step_returns(3, 0.99).shape == batch.discounted_returns(0.99).shape == (0,)


def test_last_values_are_needed_unless_all_segments_terminated() -> None:
    batch = random_batch([2, 3], 0, terminated=np.array([True, False]), truncated=np.array([False, True]))
    with raises(ValueError, field="last_values"):
        batch.advantages(0.99, 0.95)
    with raises(ValueError, field="last_values"):
        batch.n_step_returns(2, 0.99)
    ended = random_batch([2, 3], 0, terminated=np.array([True, True]))
    assert ended.advantages(0.99, 0.95).advantages.shape == (5,)


def test_advantages_reject_invalid_arguments() -> None:
    batch = random_batch([2, 3], 0)
    last_values = np.zeros(2)
    for gamma in (-0.1, 1.1, float("nan")):
        with raises(ValueError, field="gamma"):
            batch.advantages(gamma, 0.95, last_values=last_values)
    with raises(ValueError, field="lam"):
        batch.advantages(0.99, 2, last_values=last_values)
    with raises(TypeError, field="gamma"):
        batch.advantages("0.99", 0.95, last_values=last_values)  # type: ignore[arg-type]
    with raises(ValueError, field="values", quotes="(5, 1)"):
        batch.advantages(0.99, 0.95, np.zeros((5, 1)), last_values)
    with raises(ValueError, field="last_values", quotes="(5,)"):
        batch.advantages(0.99, 0.95, last_values=np.zeros(5))
    with raises(ValueError, field="n"):
        batch.n_step_returns(0, 0.99, last_values=last_values)
    without = random_batch([2, 3], 0, agent_infos={})
    with raises(ValueError, field="values", quotes="agent_infos['value']"):
        without.advantages(0.99, 0.95, last_values=last_values)
    gaps = random_batch([2], 0, agent_infos={"value": np.zeros(2), "_value": np.array([True, False])})
    with raises(ValueError, field="values"):
        gaps.advantages(0.99, 0.95, last_values=np.zeros(1))


@given(learner_batches(), st.floats(0, 1), st.floats(0, 1))
def test_every_value_continues_without_terminations(batch: rollserve.EpisodeBatch, gamma: float, lam: float) -> None:
    ended = batch.terminated | batch.truncated
    endless = batch.without_terminations()
    assert not endless.terminated.any()
    assert np.array_equal(endless.truncated, ended)
    assert (endless.step_types != rollserve.StepType.TERMINAL).all()
    last_values = np.random.default_rng(len(batch)).normal(size=len(batch)).astype(batch.rewards.dtype)
    advantages, _ = endless.advantages(gamma, lam, last_values=last_values)
    assert close(advantages, gae_sums(endless, gamma, lam, last_values), batch.rewards.dtype)
    # The same as if no segment had ended with a flag at all.
    cut = dataclasses.replace(batch, terminated=np.zeros_like(ended), truncated=np.zeros_like(ended))
    assert np.array_equal(advantages, cut.advantages(gamma, lam, last_values=last_values).advantages)


def test_batch_without_terminations_shares_its_columns() -> None:
    batch = random_batch([3, 1, 4], 0, terminated=np.array([True, False, True]))
    before = batch.terminated.copy()
    endless = batch.without_terminations()
    assert np.shares_memory(endless.rewards, batch.rewards)
    assert np.shares_memory(endless.observations, batch.observations)
    assert before.any()
    assert np.array_equal(batch.terminated, before)
