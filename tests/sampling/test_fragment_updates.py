"""Rows of a worker over updates of the agent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from fragment_calls import mlp

from rollserve import EnvSpec
from rollserve_server.agents import AgentSpec, Exploration, RandomSpec
from rollserve_server.sampling import (
    PLAIN,
    FragmentAssignment,
    FragmentOrder,
    RowProgress,
    RowSequenceSpec,
    RowState,
    Worker,
)
from rollserve_server.settings import WorkerSettings

NUM_ROWS = 3
ENVS = (
    EnvSpec("CartPole-v1", vectorization="rows", num_rows=NUM_ROWS),
    EnvSpec("CartPole-v1", vectorization="native", num_rows=NUM_ROWS),
    EnvSpec("HalfCheetah-v5", vectorization="rows", num_rows=NUM_ROWS),
)
USUAL, BEST = Exploration(), Exploration(deterministic=True)
VARIED = Exploration(temperature=(0.5, 2.0), noise_scale=(0.5, 2.0))


class Rows:
    """A worker whose rows make calls."""

    def __init__(self, env: EnvSpec, states: Sequence[RowState]) -> None:
        self.worker = Worker(0, WorkerSettings())
        self.worker.add_env(1, env)
        self._states: Sequence[RowState] | None = states

    def call(
        self, number: int, agent: AgentSpec, exploration: Exploration, num_row_steps: int
    ) -> tuple[bytes, list[RowProgress]]:
        """Make a call with a new version of the agent; return its messages, and where the rows stand then."""
        self.worker.add_agent(number, agent)
        sequence = RowSequenceSpec(1, 5, 1, None, soft_horizon=False, stride=NUM_ROWS)
        assignment = FragmentAssignment(number, number, exploration, num_row_steps, 0, 1 << 22, True, PLAIN)
        states, self._states = self._states, None
        report, buffer = self.worker.work(FragmentOrder(sequence, assignment, states, 1 << 22, seconds=60.0))
        assert report.failure is None
        assert report.rows is not None
        return buffer.tobytes(), list(report.rows)


def state_after(state: RowState, progress: RowProgress) -> RowState:
    """Return the state that restores a row after a call that it began in another state."""
    assert progress.new_actions is not None
    is_reset = progress.num_steps == len(progress.new_actions[0])
    parts = (
        progress.new_actions if is_reset else map(np.concatenate, zip(state.actions, progress.new_actions, strict=True))
    )
    return RowState(progress.reset_index, progress.episode_index, progress.first_step, progress.num_steps, list(parts))


@pytest.mark.parametrize("env", ENVS, ids=lambda env: f"{env.id}-{env.vectorization}")
def test_rows_that_go_on_after_an_update_make_the_steps_of_restored_rows(env: EnvSpec) -> None:
    """The next agent may draw the noise of the agent before or other noise; a draw is for 64 steps."""
    agents: list[tuple[AgentSpec, Exploration]] = [
        (mlp(env, 1), USUAL),
        (mlp(env, 2), USUAL),
        (RandomSpec(), USUAL),
        (mlp(env, 3), USUAL),
        (mlp(env, 3), VARIED),
        (mlp(env, 4), VARIED),
        (mlp(env, 5), BEST),
        (mlp(env, 6), USUAL),
        (mlp(env, 7), USUAL),
    ]
    states = [RowState(row, row, 0, 0, ()) for row in range(NUM_ROWS)]
    going_on = Rows(env, states)
    for number, (agent, exploration) in enumerate(agents, 1):
        call = number, agent, exploration, (7, 64, 90)[number % 3]
        restored = Rows(env, states)
        messages, progress = going_on.call(*call)
        assert messages == restored.call(*call)[0]
        states = [state_after(state, row) for state, row in zip(states, progress, strict=True)]
        restored.worker.close()
    going_on.worker.close()
