"""Transitions of a batch, against a loop over its steps."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from learner_batches import learner_batches, random_batch
from support import raises

import rollserve
from rollserve_wire.columns import leaves_of


@given(learner_batches(), st.integers(1, 11), st.floats(0, 1))
def test_transitions_equal_a_loop_over_the_steps(batch: rollserve.EpisodeBatch, n: int, gamma: float) -> None:
    found = batch.transitions(n, gamma)
    assert len(found) == batch.num_steps
    position = 0
    for segment, part in enumerate(batch.split()):
        for t in range(part.num_steps):
            stop = min(t + n, part.num_steps)
            ends = stop == part.num_steps
            for leaf, array in leaves_of(part.observations).items():
                after = leaves_of(part.last_observations)[leaf][0] if ends else array[stop]
                assert np.array_equal(leaves_of(found.next_observations)[leaf][position], after)
                assert np.array_equal(leaves_of(found.observations)[leaf][position], array[t])
            for leaf, array in leaves_of(part.actions).items():
                assert np.array_equal(leaves_of(found.actions)[leaf][position], array[t])
            rewards = sum(gamma**k * float(reward) for k, reward in enumerate(part.rewards[t:stop]))
            assert np.isclose(found.rewards[position], rewards, rtol=0, atol=1e-5)
            assert found.terminated[position] == (ends and batch.terminated[segment])
            assert found.truncated[position] == (ends and batch.truncated[segment])
            assert found.lengths[position] == stop - t
            assert found.agent_infos["log_prob"][position] == part.agent_infos["log_prob"][t]
            position += 1
    assert found.rewards.dtype == batch.rewards.dtype
    assert found.indices.tolist() == list(range(batch.num_steps))
    assert found.weights.tolist() == [1] * batch.num_steps


def test_targets_of_transitions_are_n_step_returns() -> None:
    batch = random_batch([9, 4, 300], 2)
    values = batch.observations[:, 0] / 1000  # type: ignore[call-overload, index]
    last_values = batch.last_observations[:, 0] / 1000  # type: ignore[call-overload, index]
    found = batch.transitions(5, 0.9)
    next_values = found.next_observations[:, 0] / 1000  # type: ignore[call-overload, index]
    targets = found.rewards + 0.9**found.lengths * ~found.terminated * next_values
    assert np.allclose(targets, batch.n_step_returns(5, 0.9, values, last_values))


def test_transitions_of_several_steps_need_a_discount() -> None:
    batch = random_batch([4], 0)
    assert batch.transitions().rewards.tolist() == batch.rewards.tolist()
    with raises(ValueError, field="gamma"):
        batch.transitions(2)
    with raises(ValueError, field="n"):
        batch.transitions(0)
    with raises(TypeError, field="n"):
        batch.transitions(True)
    assert len(random_batch([], 0).transitions(3, 0.9)) == 0
