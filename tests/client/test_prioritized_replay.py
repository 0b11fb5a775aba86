"""Prioritized replay: how often steps are drawn, their weights, and updates of priorities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learner_batches import random_batch
from support import raises

from rollserve import ReplayBuffer
from rollserve.replay.replay_buffer import SumTree


def buffer_of(num_steps: int, capacity: int, exponent: float) -> ReplayBuffer:
    buffer = ReplayBuffer(capacity, priority_exponent=exponent)
    buffer.add(random_batch([num_steps], 0))
    return buffer


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("capacity", [20, 37, 64])
def test_steps_are_drawn_as_often_as_by_choice(exponent: float, capacity: int) -> None:
    """4,000 draws of 16 count each step as often as `numpy.random.Generator.choice` does, within their variance."""
    buffer = buffer_of(20, capacity, exponent)
    priorities = np.random.default_rng(1).uniform(0.1, 5, 20)
    buffer.update_priorities(np.arange(20), priorities)
    generator, other = np.random.default_rng(2), np.random.default_rng(3)
    drawn = np.concatenate([buffer.sample(16, generator).indices for _ in range(4_000)])
    probabilities = priorities**exponent / (priorities**exponent).sum()
    chosen = other.choice(20, len(drawn), p=probabilities)
    counts, expected = (np.bincount(indices, minlength=20) for indices in (drawn, chosen))
    # The difference of two counts has at most twice the variance of one; drawing from equal ranges has less.
    deviations = (counts - expected) / np.sqrt(2 * len(drawn) * probabilities)
    assert np.abs(deviations).max() < 4.5


def test_draws_spread_over_equal_ranges_of_the_priorities() -> None:
    buffer = buffer_of(8, 8, 1.0)
    for seed in range(50):
        assert buffer.sample(8, np.random.default_rng(seed)).indices.tolist() == list(range(8))


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=40),
    st.integers(0, 99),
    st.sampled_from([0.3, 1.0]),
    st.sampled_from([0.0, 0.4, 1.0]),
)
def test_weights_equal_their_definition(indices: list[int], seed: int, alpha: float, beta: float) -> None:
    buffer = buffer_of(31, 40, alpha)
    generator = np.random.default_rng(seed)
    truth = np.ones(31)
    for _ in range(3):
        priorities = generator.uniform(1e-3, 10, len(indices))
        buffer.update_priorities(indices, priorities)
        for index, priority in zip(indices, priorities.tolist(), strict=True):
            truth[index] = priority  # the last one of an index counts
    found = buffer.sample(64, generator, weight_exponent=beta)
    probabilities = truth**alpha / (truth**alpha).sum()
    weights = (31 * probabilities[found.indices]) ** -beta
    assert np.allclose(found.weights, weights / weights.max(), rtol=1e-5)
    assert found.weights.dtype == np.float32


def test_new_steps_have_the_highest_priority_of_all() -> None:
    buffer = buffer_of(4, 8, 1.0)
    buffer.update_priorities([0, 1, 2, 3], [1, 1, 1, 7])
    buffer.update_priorities([3], [1])
    buffer.add(random_batch([4], 1))
    found = buffer.sample(32_000, np.random.default_rng(0))
    counts = np.bincount(found.indices, minlength=8)
    assert np.abs(counts - 32_000 / 32 * np.array([1, 1, 1, 1, 7, 7, 7, 7])).max() <= 2


def test_priorities_of_replaced_steps_are_left_out() -> None:
    buffer = buffer_of(6, 6, 1.0)
    stale = buffer.sample(6, np.random.default_rng(0)).indices
    buffer.add(random_batch([3], 1))  # replaces steps 0 to 2 by 6 to 8
    buffer.update_priorities(stale, np.full(6, 3.0))
    counts = np.bincount(buffer.sample(12_000, np.random.default_rng(0)).indices, minlength=9)
    assert np.abs(counts - 1_000 * np.array([0, 0, 0, 3, 3, 3, 1, 1, 1])).max() <= 2


def test_tiny_and_huge_priorities_never_draw_a_step_that_is_not_there() -> None:
    buffer = buffer_of(5, 1_000, 1.0)
    buffer.update_priorities(np.arange(5), [1e-300, 1e100, 1e-5, 1e99, 1e-300])
    found = buffer.sample(10_000, np.random.default_rng(0))
    assert set(found.indices.tolist()) <= {1, 3}
    assert np.isfinite(found.weights).all()


def test_sum_tree_finds_no_empty_leaf_at_places_that_rounding_moved() -> None:
    tree = SumTree(8)
    tree[np.array([1, 2])] = np.array([1.0, 2.0])
    assert tree.total == 3
    assert tree.find(np.array([0, 0.99, 1, 2.99, 3, 4])).tolist() == [1, 1, 2, 2, 2, 2]


def test_update_priorities_rejects_invalid_arguments_and_changes_nothing() -> None:
    buffer = buffer_of(4, 4, 1.0)
    before = buffer.sample(100, np.random.default_rng(0)).indices.tolist()
    for priorities in ([0.0, 1.0], [-1.0, 1.0], [float("nan"), 1.0], [float("inf"), 1.0], [1.0], [[1.0], [1.0]]):
        with raises(ValueError, field="priorities"):
            buffer.update_priorities([0, 1], priorities)
    for indices in ([-1, 0], [0, 4]):
        with raises(ValueError, field="indices"):
            buffer.update_priorities(indices, [2.0, 2.0])
    with raises(ValueError, field="indices"):
        buffer.update_priorities([0.0], [2.0])
    with raises(ValueError, field="weight_exponent"):
        buffer.sample(2, np.random.default_rng(0), weight_exponent=-1)
    assert buffer.sample(100, np.random.default_rng(0)).indices.tolist() == before
