"""Checkpoints of row sequences, also when a call is repeated and takes other actions."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rollserve_server.pool.state.checkpoints import ActionLog, Checkpoint
from rollserve_server.sampling import RowProgress


@given(data=st.data())
def test_action_log_continues_from_any_step(data: st.DataObject) -> None:
    actions: list[int] = data.draw(st.lists(st.integers(0, 99), max_size=5))
    log = ActionLog([np.array(actions, np.int64)])
    for _ in range(data.draw(st.integers(0, 8))):
        start = data.draw(st.integers(0, len(actions)))
        new = data.draw(st.lists(st.integers(0, 99), max_size=20))
        copied, before = log.copy(), list(actions)
        log.go_on(start, [np.array(new, np.int64)])
        actions = actions[:start] + new
        assert log.first(len(actions))[0].tolist() == actions
        assert copied.first(len(before))[0].tolist() == before


def progress(index: int, num_steps: int, new: list[int]) -> RowProgress:
    return RowProgress(index, index, 0, num_steps, [np.array(new)])


def test_checkpoint_keeps_the_actions_of_open_episodes() -> None:
    start = Checkpoint.initial(2, 1)
    first = start.after(3, [[progress(0, 3, [1, 2, 3])], [progress(3, 1, [4])]])
    second = first.after(2, [[progress(0, 5, [5, 6])], [progress(5, 0, [])]])
    assert (second.clock, second.stride) == (5, 2)
    (state,), broken_off = second.states(0)
    assert (state.actions[0].tolist(), broken_off) == ([1, 2, 3, 5, 6], 0)
    (state,), _ = second.states(1)
    assert (state.reset_index, state.num_steps) == (5, 0)
    (state,), _ = first.states(0)
    assert state.actions[0].tolist() == [1, 2, 3]
    # The second call is repeated with another policy.
    other = first.after(1, [[progress(0, 4, [9])], [progress(3, 2, [8])]])
    (state,), _ = other.states(0)
    assert state.actions[0].tolist() == [1, 2, 3, 9]


def test_rows_without_actions_begin_their_next_episodes() -> None:
    point = RowProgress(1, 1, 0, 3, None)
    checkpoint = Checkpoint.initial(1, 1).after(3, [[point]])
    assert not checkpoint.is_restorable
    (state,), broken_off = checkpoint.states(0)
    assert (state.reset_index, state.episode_index, state.num_steps, broken_off) == (2, 2, 0, 1)
