"""Sequences of steps for recurrent networks, against a loop over segments; and their states, of a real agent."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from learner_batches import learner_batches, random_batch
from support import raises

import rollserve
from rollserve_wire.columns import leaves_of


@given(learner_batches(12), st.integers(1, 14), st.integers(0, 6), st.data())
def test_sequences_equal_a_loop_over_segments(
    batch: rollserve.EpisodeBatch, length: int, burn_in: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, length))
    found: Any = batch.sequences(length, burn_in, stride, own=batch.rewards * 2)
    expected = []
    for segment, part in enumerate(batch.split()):
        first = 0
        while True:
            expected.append((segment, part, max(0, first - burn_in), first, min(first + length, part.num_steps)))
            if first + length >= part.num_steps:
                break
            first += stride
    assert len(found["lengths"]) == len(expected)
    starts = np.cumsum(batch.lengths) - batch.lengths
    for s, (segment, part, begin, first, stop) in enumerate(expected):
        num_steps = stop - begin
        assert found["valids"][s].tolist() == [i < num_steps for i in range(burn_in + length)]
        assert found["learned"][s].tolist() == [first - begin <= i < num_steps for i in range(burn_in + length)]
        assert found["lengths"][s] == num_steps
        assert found["steps"][s] == starts[segment] + begin
        ends = stop == part.num_steps
        assert found["terminated"][s] == (ends and batch.terminated[segment])
        assert found["truncated"][s] == (ends and batch.truncated[segment])
        for name in ("observations", "actions", "rewards", "agent_infos", "env_infos"):
            for leaf, array in leaves_of(found[name]).items():
                column = leaves_of(getattr(part, name))[leaf]
                assert array.dtype == column.dtype
                assert np.array_equal(array[s, :num_steps], column[begin:stop])
                assert not array[s, num_steps:].any()
        assert np.array_equal(found["own"], found["rewards"] * 2)
        for leaf, array in leaves_of(found["last_observations"]).items():
            observations = leaves_of(part.observations)[leaf]
            after = leaves_of(part.last_observations)[leaf][0] if ends else observations[stop]
            assert np.array_equal(array[s], after)


@given(learner_batches(12), st.integers(1, 14), st.integers(0, 6))
def test_sequences_learn_from_each_step_once_by_default(
    batch: rollserve.EpisodeBatch, length: int, burn_in: int
) -> None:
    found: Any = batch.sequences(length, burn_in)
    rows = found["steps"][:, np.newaxis] + np.arange(burn_in + length)
    assert np.sort(rows[found["learned"]]).tolist() == list(range(batch.num_steps))


def with_states(**infos: np.ndarray) -> rollserve.EpisodeBatch:
    return random_batch([5, 3], 0, agent_infos=infos, initial_states={"h": np.array([[10.0], [20.0]])})


def test_states_are_known_where_segments_begin() -> None:
    found: Any = with_states().sequences(2)["initial_states"]
    assert found["h"].ravel().tolist() == [10, 0, 0, 20, 0]
    assert found["_h"].tolist() == [True, False, False, True, False]
    whole: Any = with_states().sequences(5)["initial_states"]
    assert whole.keys() == {"h"}


def test_states_of_all_steps_make_all_states_known() -> None:
    states = np.arange(8.0)[:, np.newaxis]
    found: Any = with_states(**{"state/h": states}).sequences(2, burn_in=1)["initial_states"]
    assert found.keys() == {"h"}
    assert found["h"].ravel().tolist() == [10, 1, 3, 20, 6]


def test_states_with_gaps_stay_gaps() -> None:
    batch = dataclasses.replace(
        with_states(), initial_states={"h": np.array([[0.0], [20.0]]), "_h": np.array([False, True])}
    )
    found: Any = batch.sequences(5)["initial_states"]
    assert found["_h"].tolist() == [False, True]
    mask = np.array([True, True, False, True, True, True, True, True])
    batch = with_states(**{"state/h": np.arange(8.0)[:, np.newaxis], "_state/h": mask})
    found = batch.sequences(2)["initial_states"]
    assert found["_h"].tolist() == [True, False, True, True, True]


def test_states_of_a_recurrent_agent_are_those_of_its_steps(cartpole: rollserve.Sampler) -> None:
    status = cartpole.status()
    agent = rollserve.MlpAgent.initial(status.observation_space, status.action_space, core="gru", core_size=8, seed=0)
    cartpole.update_agent(agent)
    batch = cartpole.obtain_fragments(400, return_states=True)
    found: Any = batch.sequences(10, burn_in=3, stride=7)
    for name, states in found["initial_states"].items():
        assert states.any()
        assert np.array_equal(states, batch.agent_infos[f"state/{name}"][found["steps"]])


def test_sequences_reject_invalid_arguments() -> None:
    batch = random_batch([4], 0)
    with raises(ValueError, field="length"):
        batch.sequences(0)
    with raises(ValueError, field="burn_in"):
        batch.sequences(2, -1)
    for stride in (0, 3):
        with raises(ValueError, field="stride"):
            batch.sequences(2, stride=stride)
    with raises(ValueError, field="valids"):
        batch.sequences(2, valids=np.zeros(4))
    assert len(random_batch([], 0).sequences(3)["rewards"]) == 0
