"""Steps of a batch in random order: minibatches and shuffle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learner_batches import learner_batches, random_batch
from support import raises

import rollserve
from rollserve_wire.columns import leaves_of


def check_rows(part: dict[str, Any], batch: rollserve.EpisodeBatch) -> None:
    """Check that the columns of a minibatch are the rows of the batch that it names."""
    steps = part["steps"]
    for name in ("observations", "actions", "rewards", "agent_infos", "env_infos"):
        columns = leaves_of(getattr(batch, name))
        assert part[name].keys() == columns.keys() if isinstance(part[name], dict) else list(columns) == [""]
        for leaf, array in leaves_of(part[name]).items():
            assert array.dtype == columns[leaf].dtype
            assert np.array_equal(array, columns[leaf][steps])


@given(learner_batches(), st.integers(1, 60), st.integers(1, 3), st.integers(0, 9))
def test_minibatches_have_each_step_once_in_an_epoch(
    batch: rollserve.EpisodeBatch, size: int, num_epochs: int, seed: int
) -> None:
    parts = list(batch.minibatches(size, np.random.default_rng(seed), num_epochs, own=-batch.rewards))
    in_epoch = -(-batch.num_steps // size)
    assert len(parts) == num_epochs * in_epoch
    for epoch in range(num_epochs):
        steps = [part["steps"] for part in parts[epoch * in_epoch : (epoch + 1) * in_epoch]]
        assert all(len(some) == size for some in steps[:-1])
        assert sorted(np.concatenate(steps).tolist()) == list(range(batch.num_steps))
    for part in parts:
        check_rows(part, batch)
        assert np.array_equal(part["own"], -part["rewards"])


def test_minibatches_follow_the_generator() -> None:
    batch = random_batch([50, 70], 0)

    def orders(seed: int) -> list[list[int]]:
        return [part["steps"].tolist() for part in batch.minibatches(120, np.random.default_rng(seed), 2)]  # type: ignore[union-attr]

    assert orders(1) == orders(1)
    assert orders(1) != orders(2)
    assert orders(1)[0] != orders(1)[1]


@given(learner_batches(), st.integers(0, 9))
def test_shuffle_returns_all_steps_in_the_order_of_one_minibatch(batch: rollserve.EpisodeBatch, seed: int) -> None:
    shuffled = batch.shuffle(np.random.default_rng(seed), own={"x": batch.rewards, "y": batch.rewards[:, np.newaxis]})
    (part,) = batch.minibatches(batch.num_steps, np.random.default_rng(seed))
    assert np.array_equal(shuffled["steps"], part["steps"])
    check_rows(shuffled, batch)
    assert shuffled["own"]["y"].shape == (batch.num_steps, 1)  # type: ignore[index, union-attr, call-overload]


def test_no_steps_make_no_minibatches() -> None:
    batch = random_batch([], 0)
    assert list(batch.minibatches(5, np.random.default_rng(0))) == []
    assert len(batch.shuffle(np.random.default_rng(0))["rewards"]) == 0


def test_minibatches_reject_invalid_arguments_at_the_call() -> None:
    batch, generator = random_batch([4], 0), np.random.default_rng(0)
    with raises(ValueError, field="size"):
        batch.minibatches(0, generator)
    with raises(TypeError, field="size"):
        batch.minibatches(2.0, generator)  # type: ignore[arg-type]
    with raises(ValueError, field="num_epochs"):
        batch.minibatches(2, generator, 0)
    with raises(TypeError, field="generator"):
        batch.minibatches(2, 0)  # type: ignore[arg-type]
    with raises(ValueError, field="own", quotes="(3,)"):
        batch.minibatches(2, generator, own=np.zeros(3))
    for name in ("rewards", "steps"):
        with raises(ValueError, field=name):
            batch.minibatches(2, generator, **{name: np.zeros(4)})
    with pytest.raises(TypeError):
        batch.shuffle(np.random.RandomState(0))  # type: ignore[arg-type]
