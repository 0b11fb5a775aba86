"""V-trace and Retrace targets, against the sums of the papers."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from learner_batches import last_values_of, learner_batches, random_batch, values_after
from support import raises

import rollserve

FRACTIONS = st.floats(0, 1)
CLIPS = st.sampled_from([0.5, 1.0, 2.0, math.inf])
RATIO_BOUND = 1.5  # of the logarithm; larger ones make sums of large numbers, which no tolerance fits


def targets_of(batch: rollserve.EpisodeBatch, seed: int) -> np.ndarray:
    """Return log-probabilities of the target policy, near the ones in the batch."""
    changes = np.random.default_rng(seed).uniform(-RATIO_BOUND, RATIO_BOUND, batch.num_steps)
    return np.minimum(batch.agent_infos["log_prob"] + changes.astype(batch.rewards.dtype), 0)


def ratios_of(batch: rollserve.EpisodeBatch, target: np.ndarray, segment: int) -> list[float]:
    start = int(batch.lengths[:segment].sum())
    stop = start + int(batch.lengths[segment])
    behavior = batch.agent_infos["log_prob"][start:stop].tolist()
    return [math.exp(new - old) for new, old in zip(target[start:stop].tolist(), behavior, strict=True)]


def check(actual: np.ndarray, expected: list[float], batch: rollserve.EpisodeBatch) -> None:
    assert actual.dtype == batch.rewards.dtype
    tolerance = 2e-4 if batch.rewards.dtype == np.float32 else 1e-10
    assert np.allclose(actual, expected, rtol=tolerance, atol=tolerance * max(1, *map(abs, expected)))


@given(learner_batches(6), st.integers(0, 99), FRACTIONS, FRACTIONS, CLIPS, CLIPS, CLIPS)
def test_vtrace_equals_the_sums_of_its_definition(
    batch: rollserve.EpisodeBatch,
    seed: int,
    gamma: float,
    lam: float,
    rho_clip: float,
    c_clip: float,
    advantage_rho_clip: float,
) -> None:
    last_values, target = last_values_of(batch), targets_of(batch, seed)
    expected_targets, expected_advantages = [], []
    for segment, part in enumerate(batch.split()):
        values = values_after(batch, segment, batch.agent_infos["value"], last_values)
        ratios, rewards = ratios_of(batch, target, segment), part.rewards.tolist()
        vs = []
        for s in range(len(rewards)):  # equation 1 of Espeholt et al. 2018
            total = values[s]
            for t in range(s, len(rewards)):
                product = math.prod(lam * min(c_clip, ratios[i]) for i in range(s, t))
                delta = min(rho_clip, ratios[t]) * (rewards[t] + gamma * values[t + 1] - values[t])
                total += gamma ** (t - s) * product * delta
            vs.append(total)
        following = [*vs[1:], values[-1]]
        expected_targets += vs
        expected_advantages += [
            min(advantage_rho_clip, ratio) * (reward + gamma * after - value)
            for ratio, reward, after, value in zip(ratios, rewards, following, values[:-1], strict=True)
        ]
    found = batch.vtrace(
        target,
        gamma,
        last_values=last_values,
        lam=lam,
        rho_clip=rho_clip,
        c_clip=c_clip,
        advantage_rho_clip=advantage_rho_clip,
    )
    check(found.value_targets, expected_targets, batch)
    check(found.advantages, expected_advantages, batch)


def test_vtrace_of_the_policy_that_acted_has_the_returns_as_targets() -> None:
    batch = random_batch([300, 5, 40], 3)
    last_values = last_values_of(batch)
    found = batch.vtrace(batch.agent_infos["log_prob"], 0.99, last_values=last_values)
    assert np.allclose(found.value_targets, batch.discounted_returns(0.99, last_values))
    assert np.allclose(found.advantages, found.value_targets - batch.agent_infos["value"])


@given(learner_batches(6), st.integers(0, 99), FRACTIONS, FRACTIONS)
def test_retrace_equals_the_sums_of_its_definition(
    batch: rollserve.EpisodeBatch, seed: int, gamma: float, lam: float
) -> None:
    last_values, target = last_values_of(batch), targets_of(batch, seed)
    generator = np.random.default_rng(seed + 100)
    q_values = generator.normal(size=batch.num_steps).astype(batch.rewards.dtype)
    expected = []
    for segment, part in enumerate(batch.split()):
        values = values_after(batch, segment, batch.agent_infos["value"], last_values)
        start = int(batch.lengths[:segment].sum())
        of_actions = q_values[start : start + part.num_steps].tolist()
        ratios, rewards = ratios_of(batch, target, segment), part.rewards.tolist()
        for t in range(len(rewards)):  # equation 3 of Munos et al. 2016, with the traces of its section 3
            total = of_actions[t]
            for s in range(t, len(rewards)):
                trace = math.prod(lam * min(1.0, ratios[i]) for i in range(t + 1, s + 1))
                total += gamma ** (s - t) * trace * (rewards[s] + gamma * values[s + 1] - of_actions[s])
            expected.append(total)
    found = batch.retrace(target, gamma, q_values, batch.agent_infos["value"], last_values, lam=lam)
    check(found, expected, batch)


def test_ratios_that_overflow_are_clipped() -> None:
    batch = random_batch([4], 0)
    target, behavior = np.array([0.0, -1e4, 0.0, 0.0]), np.array([-1e4, 0.0, 0.0, -1e4])
    found = batch.vtrace(target, 0.9, last_values=np.ones(1), behavior_log_probs=behavior)
    assert np.isfinite(found.value_targets).all()
    assert np.isfinite(found.advantages).all()
    assert found.advantages[1] == 0


def test_unclipped_traces_change_nothing_where_nothing_follows() -> None:
    """The product of 256 ratios overflows; the steps they belong to have neither rewards nor values."""
    rewards = np.append(np.ones(44), np.zeros(256))
    batch = random_batch([300], 0, rewards=rewards, terminated=np.array([True]))
    behavior = np.append(np.zeros(44), np.full(256, -9.0))
    found = batch.vtrace(
        np.zeros(300), 0.9, np.zeros(300), behavior_log_probs=behavior, rho_clip=math.inf, c_clip=math.inf
    )
    assert np.allclose(found.value_targets, batch.discounted_returns(0.9))


def test_vtrace_rejects_invalid_arguments() -> None:
    batch, last_values = random_batch([4], 0), np.ones(1)
    with raises(ValueError, field="target_log_probs"):
        batch.vtrace(np.zeros(3), 0.9, last_values=last_values)
    with raises(ValueError, field="rho_clip"):
        batch.vtrace(np.zeros(4), 0.9, last_values=last_values, rho_clip=0)
    with raises(ValueError, field="c_clip"):
        batch.vtrace(np.zeros(4), 0.9, last_values=last_values, c_clip=math.nan)
    without = random_batch([4], 0, agent_infos={"value": np.zeros(4)})
    with raises(ValueError, field="behavior_log_probs", quotes="agent_infos['log_prob']"):
        without.vtrace(np.zeros(4), 0.9, last_values=last_values)
    with raises(ValueError, field="q_values"):
        batch.retrace(np.zeros(4), 0.9, np.zeros((4, 2)), np.zeros(4), last_values)


def test_probabilities_in_place_of_their_logarithms_are_refused() -> None:
    batch = random_batch([4], 0, terminated=np.array([True]))
    logarithms, probabilities = np.full(4, -0.7), np.full(4, 0.5)
    with raises(ValueError, field="target_log_probs", quotes="0.5"):
        batch.vtrace(probabilities, 0.9, behavior_log_probs=logarithms)
    with raises(ValueError, field="behavior_log_probs", quotes="0.5"):
        batch.vtrace(logarithms, 0.9, behavior_log_probs=probabilities)
    continuous = dataclasses.replace(batch, actions=np.zeros((4, 1)))  # densities may be over 1
    continuous.vtrace(probabilities, 0.9, behavior_log_probs=logarithms)


def test_behavior_log_probs_replace_those_of_the_agent() -> None:
    batch = random_batch([20], 0)
    own = batch.vtrace(np.full(20, -3.0), 0.9, last_values=np.ones(1))
    given_ones = batch.agent_infos["log_prob"]
    same = batch.vtrace(np.full(20, -3.0), 0.9, last_values=np.ones(1), behavior_log_probs=given_ones)
    other = batch.vtrace(np.full(20, -3.0), 0.9, last_values=np.ones(1), behavior_log_probs=-np.ones(20))
    assert own.value_targets.tobytes() == same.value_targets.tobytes()
    assert own.value_targets.tobytes() != other.value_targets.tobytes()
