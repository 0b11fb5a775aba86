"""Segments that are taken out of a batch, or cut into fragments."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learner_batches import learner_batches, random_batch

from rollserve import EpisodeBatch


@given(learner_batches(), st.integers(1, 10))
def test_cut_segments_join_to_the_same_segments(batch: EpisodeBatch, length: int) -> None:
    batch = dataclasses.replace(batch, truncated=batch.truncated | ~batch.terminated)
    cut = batch.cut(length)
    assert (cut.lengths <= length).all()
    joined = cut.joined()
    assert joined.lengths.tolist() == batch.lengths.tolist()
    for name in ("terminated", "truncated", "first_steps", "episode_indices"):
        assert np.array_equal(getattr(joined, name), getattr(batch, name)), name
    assert np.array_equal(cut.episode_lengths[cut.terminated | cut.truncated], batch.episode_lengths)
    known = batch.first_steps == 0
    ends = cut.terminated | cut.truncated
    assert np.allclose(cut.episode_returns[ends][known], batch.episode_returns[known], rtol=1e-4, atol=1e-4)


@given(learner_batches(), st.data())
def test_taken_segments_are_those_of_split(batch: EpisodeBatch, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, len(batch) - 1), max_size=8))
    taken = batch.take(positions)
    assert [part.rewards.tolist() for part in taken.split()] == [batch.split()[i].rewards.tolist() for i in positions]
    assert taken.lengths.tolist() == batch.lengths[positions].tolist()


def test_slice_shares_the_arrays_of_the_batch() -> None:
    batch = random_batch([3, 1, 4, 2], 0)
    part = batch.take(slice(1, 3))
    assert part.lengths.tolist() == [1, 4]
    assert np.shares_memory(part.rewards, batch.rewards)
    assert len(batch.take(slice(3, 1))) == 0
    assert len(batch.take(slice(-2, None))) == 2


def test_states_and_values_at_cuts_are_those_of_the_steps() -> None:
    states, values = np.arange(8.0).reshape(8, 1), np.arange(8.0) * 10
    batch = random_batch(
        [5, 3],
        0,
        agent_infos={"state/h": states, "value": values},
        initial_states={"h": states[[0, 5]]},
        last_states={"h": np.array([[50.0], [80.0]])},
        last_values=np.array([-1.0, -2.0]),
        first_steps=np.zeros(2, np.int64),
    )
    cut = batch.cut(2)
    assert cut.lengths.tolist() == [2, 2, 1, 2, 1]
    assert cut.initial_states["h"][:, 0].tolist() == [0, 2, 4, 5, 7]
    assert cut.last_states["h"][:, 0].tolist() == [2, 4, 50, 7, 80]
    assert cut.last_values is not None
    assert cut.last_values.tolist() == [20, 40, -1, 70, -2]
    sums = np.concatenate([[0], np.cumsum(batch.rewards[:4])])
    assert np.allclose(cut.returns_before[:3], sums[[0, 2, 4]])


def test_states_that_no_info_has_are_gaps() -> None:
    batch = random_batch([3], 0, agent_infos={}, initial_states={"h": np.ones((1, 2))}, last_values=np.ones(1))
    cut = batch.cut(2)
    assert cut.initial_states["_h"].tolist() == [True, False]
    assert cut.last_values is None


@pytest.mark.parametrize(
    ("segments", "text"),
    [
        ([2], "segments: expected positions from 0 to 1, got 2 to 2"),
        ([-1], "segments: expected positions from 0 to 1, got -1 to -1"),
        ([[0]], r"segments: expected integers \(M,\), got int64 of shape \(1, 1\)"),
        ([0.5], "segments: expected integers"),
        (slice(0, 2, 2), "segments: expected a slice without a step"),
    ],
)
def test_take_rejects_positions(segments: object, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        random_batch([3, 1], 0).take(segments)  # type: ignore[arg-type]
