"""Off-policy estimates, against values that follow from enumerating all episodes, and against plain loops."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from learner_batches import random_batch

import rollserve
from rollserve import EpisodeBatch

GAMMA = 0.9
BEHAVIOR, TARGET = (0.75, 0.25), (0.5, 0.5)
"""Probabilities of both actions; quarters, so that a batch can hold each episode as often as it is probable."""


def reward(actions: tuple[int, ...], step: int) -> float:
    """Return a reward that depends on all actions so far."""
    return float(sum(actions[: step + 1]) - 0.5 * actions[step] + step)


def value_of(prefix: tuple[int, ...], horizon: int) -> float:
    """Return the true value for the target policy after some actions."""
    if len(prefix) == horizon:
        return 0.0
    return sum(p * q_value_of((*prefix, action), horizon) for action, p in enumerate(TARGET))


def q_value_of(actions: tuple[int, ...], horizon: int) -> float:
    return reward(actions, len(actions) - 1) + GAMMA * value_of(actions, horizon)


def enumerated(horizon: int) -> tuple[EpisodeBatch, np.ndarray, np.ndarray, np.ndarray]:
    """Return each episode as often as it is probable, with the target's log-probabilities, Q-values and values."""
    episodes = []
    for actions in itertools.product((0, 1), repeat=horizon):
        episodes += [actions] * round(math.prod(BEHAVIOR[a] for a in actions) * 4**horizon)
    flat = np.array(episodes).reshape(-1)
    prefixes = [actions[: step + 1] for actions in episodes for step in range(horizon)]
    batch = random_batch(
        [horizon] * len(episodes),
        0,
        actions=flat,
        rewards=np.array([reward(prefix, len(prefix) - 1) for prefix in prefixes]),
        agent_infos={"log_prob": np.log(np.array(BEHAVIOR))[flat]},
        first_steps=np.zeros(len(episodes), np.int64),
        terminated=np.ones(len(episodes), np.bool_),
    )
    q_values = np.array([q_value_of(prefix, horizon) for prefix in prefixes])
    values = np.array([value_of(prefix[:-1], horizon) for prefix in prefixes])
    return batch, np.log(np.array(TARGET))[flat], q_values, values


@pytest.mark.parametrize("horizon", [1, 2, 4])
def test_estimates_without_bias_equal_the_true_value_of_all_episodes(horizon: int) -> None:
    batch, log_probs, q_values, values = enumerated(horizon)
    truth = value_of((), horizon)
    wrong = np.random.default_rng(0).normal(size=len(values))
    found = batch.policy_estimates(log_probs, GAMMA)
    assert found.importance.value == pytest.approx(truth)
    assert found.per_decision.value == pytest.approx(truth)
    # The weights of all episodes have the mean 1 in each step, so normalizing changes nothing.
    assert found.weighted_importance.value == pytest.approx(truth)
    assert found.weighted_per_decision.value == pytest.approx(truth)
    assert found.doubly_robust is None
    exact = batch.policy_estimates(log_probs, GAMMA, q_values, values).doubly_robust
    assert exact is not None
    assert exact.value == pytest.approx(truth)
    assert exact.standard_error < 1e-12  # with the true values, each episode gives the true value
    # A model that is wrong, but whose value is the mean of its Q-values, leaves no bias.
    biased = {prefix: number for number, prefix in enumerate(sorted({*_prefixes(batch, horizon)}))}
    q_wrong = np.array([wrong[biased[prefix]] for prefix in _prefixes(batch, horizon)])
    v_wrong = np.array(
        [
            sum(p * wrong[biased[(*prefix[:-1], a)]] for a, p in enumerate(TARGET))
            for prefix in _prefixes(batch, horizon)
        ]
    )
    robust = batch.policy_estimates(log_probs, GAMMA, q_wrong, v_wrong).doubly_robust
    assert robust is not None
    assert robust.value == pytest.approx(truth)


def _prefixes(batch: EpisodeBatch, horizon: int) -> list[tuple[int, ...]]:
    rows = np.asarray(batch.actions).reshape(-1, horizon).tolist()
    return [tuple(row[: step + 1]) for row in rows for step in range(horizon)]


def test_estimates_equal_those_of_plain_loops() -> None:
    batch = random_batch([3, 1, 5, 2], 1, first_steps=np.zeros(4, np.int64))
    batch = dataclasses.replace(batch, truncated=batch.truncated | ~batch.terminated)
    generator = np.random.default_rng(2)
    log_probs, q_values, values = (generator.normal(size=batch.num_steps) for _ in range(3))
    log_probs = np.minimum(log_probs, 0)
    found = batch.policy_estimates(log_probs, GAMMA, q_values, values)
    weights, returns, per_decision, robust = [], [], [], []
    by_step: dict[int, list[float]] = {}
    starts = np.cumsum(batch.lengths) - batch.lengths
    for start, length in zip(starts, batch.lengths, strict=True):
        weight, total, decisions = 1.0, 0.0, 0.0
        for t in range(length):
            weight *= math.exp(log_probs[start + t] - batch.agent_infos["log_prob"][start + t])
            by_step.setdefault(t, []).append(weight)
            total += GAMMA**t * batch.rewards[start + t]
            decisions += GAMMA**t * weight * batch.rewards[start + t]
        value = 0.0
        for i in reversed(range(start, start + length)):
            rho = math.exp(log_probs[i] - batch.agent_infos["log_prob"][i])
            value = values[i] + rho * (batch.rewards[i] + GAMMA * value - q_values[i])
        weights.append(weight)
        returns.append(total)
        per_decision.append(decisions)
        robust.append(value)
    assert found.behavior.value == pytest.approx(np.mean(returns))
    assert found.importance.value == pytest.approx(np.mean(np.multiply(weights, returns)))
    assert found.importance.standard_error == pytest.approx(np.std(np.multiply(weights, returns), ddof=1) / 2)
    assert found.weighted_importance.value == pytest.approx(np.dot(weights, returns) / np.sum(weights))
    assert found.per_decision.value == pytest.approx(np.mean(per_decision))
    assert found.doubly_robust is not None
    assert found.doubly_robust.by_episode == pytest.approx(robust)
    weighted = [
        sum(
            GAMMA**t * by_step[t][_rank(batch.lengths, i, t)] / np.mean(by_step[t]) * batch.rewards[start + t]
            for t in range(length)
        )
        for i, (start, length) in enumerate(zip(starts, batch.lengths, strict=True))
    ]
    assert found.weighted_per_decision.by_episode == pytest.approx(weighted)
    assert found.num_effective_episodes == pytest.approx(np.sum(weights) ** 2 / np.sum(np.square(weights)))


def _rank(lengths: np.ndarray, episode: int, step: int) -> int:
    """Return how many episodes before this one have a step."""
    return int((lengths[:episode] > step).sum())


def test_the_policy_that_acted_has_its_own_return() -> None:
    batch = random_batch([3, 4], 1, first_steps=np.zeros(2, np.int64), terminated=np.ones(2, np.bool_))
    found = batch.policy_estimates(batch.agent_infos["log_prob"], 1.0)
    for estimate in (found.importance, found.weighted_importance, found.per_decision, found.weighted_per_decision):
        assert estimate.by_episode == pytest.approx(batch.returns)
    assert found.num_effective_episodes == pytest.approx(2)


def test_improbable_episodes_give_no_errors() -> None:
    batch = random_batch([3], 1, first_steps=np.zeros(1, np.int64), terminated=np.ones(1, np.bool_))
    found = batch.policy_estimates(np.full(3, -np.inf), 1.0)
    assert found.importance.value == found.weighted_per_decision.value == 0
    assert np.isnan(found.weighted_importance.value)
    assert found.num_effective_episodes == 0


def test_fragments_and_half_a_model_are_refused() -> None:
    batch = random_batch([3, 4], 1, first_steps=np.zeros(2, np.int64), terminated=np.array([True, False]))
    batch = dataclasses.replace(batch, truncated=np.zeros(2, np.bool_))
    log_probs = batch.agent_infos["log_prob"]
    with pytest.raises(ValueError, match="first_steps: expected whole episodes, got a fragment in segment 1: `joined`"):
        batch.policy_estimates(log_probs, 1.0)
    whole = batch.take([0])
    with pytest.raises(ValueError, match="values: expected values beside the others"):
        whole.policy_estimates(log_probs[:3], 1.0, q_values=np.zeros(3))
    with pytest.raises(ValueError, match=r"target_log_probs: expected shape \(3,\)"):
        whole.policy_estimates(log_probs, 1.0)
    assert isinstance(whole.policy_estimates(log_probs[:3], 1.0), rollserve.PolicyEstimates)
