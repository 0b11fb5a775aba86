"""What rows that go on from call to call record, however they are stepped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from gymnasium import spaces

from rollserve_server.sampling.collect.attempts import Attempts
from rollserve_server.sampling.collect.recurrent_state import RowStates
from rollserve_server.sampling.fragments.action_history import ActionHistory
from rollserve_server.sampling.record.infos import InfoReader

if TYPE_CHECKING:
    from collections import Counter

    from rollserve_server.agents import Agent
    from rollserve_server.envs import Leaf, RowEnvs, VectorEnvs
    from rollserve_server.errors import EnvFailedError
    from rollserve_server.sampling.fragments.outbox import Outbox
    from rollserve_server.sampling.protocol.fragments import RowProgress, RowSequenceSpec, RowState

__all__ = ["FragmentRecording"]


class FragmentRecording(ABC):
    """Records the steps of M rows, and for each call the actions that they were given.

    Attributes:
        num_rows: M.
        num_broken_off: how many rows could not be brought to where they stood at the beginning of the call, and begin
            their next episodes.
        num_repeated_steps: of the last `step`, how many more steps it took to bring rows, whose environments failed, to
            where they stood.
        is_stranded: whether a row, whose environment failed in the middle of a call, could not be brought there.
        attempts: which episodes failed, and so go on in other environments, or not.
        outbox: where the fragments go that are whole.
    """

    outbox: Outbox
    _envs: RowEnvs | VectorEnvs

    def __init__(self, sequence: RowSequenceSpec, states: Sequence[RowState], num_retries: int) -> None:
        self.attempts = Attempts(num_retries)
        self.num_repeated_steps = 0
        self.is_stranded = False
        self._history = ActionHistory(states)
        self.num_rows = len(states)
        self.num_broken_off = 0
        self._stream = sequence
        self._infos = InfoReader()
        self._agent: Agent
        # Of each row, what the agent remembers; and before there is an agent, what another one remembered.
        self._recurrent_states = RowStates(len(states), ())
        self._memories = [state.recurrent_state for state in states]
        # Of the call: which step it is, how many it has, and for each leaf the actions (T, M, *A) of all.
        self._step = self._num_steps = 0
        self._tells_actions = False
        self._actions_made: Sequence[np.ndarray] = ()

    @property
    @abstractmethod
    def step_bytes(self) -> int:
        """How many bytes the columns of a row's step take. There has to be an agent."""

    @abstractmethod
    def episode_of(self, row: int) -> int:
        """The index of the episode that a row runs, or begins."""

    @property
    def num_steps(self) -> int:
        """How many steps each row makes in the call."""
        return self._num_steps

    @property
    def dropped_infos(self) -> Counter[str]:
        """By name, how many values of infos had no place in a column. The caller may clear it."""
        return self._infos.dropped

    def set_agent(self, agent: Agent) -> None:
        """Has another agent act from the next call on.

        The episodes go on, and so does what is remembered of them if both have states of the same kind.
        """
        self._agent = agent
        self._recurrent_states = RowStates(
            self.num_rows, agent.states, self._memories or self._recurrent_states.recurrent_states()
        )
        self._memories = []

    def begin_call(self, num_steps: int, *, tell_actions: bool) -> None:
        """Begins a call of so many steps of each row, all of whose fragments are written before the next."""
        self.num_broken_off = 0
        self._step = 0
        self._num_steps = num_steps
        leaves = self._envs.action_leaves if tell_actions else ()
        self._actions_made = [np.empty((num_steps, self.num_rows, *leaf.shape), _log_dtype(leaf)) for leaf in leaves]
        self._tells_actions = tell_actions
        self._history.begin_call(self._actions_made)

    def shorten(self, num_steps: int) -> None:
        """Has the rows make only so many steps in the call, or as many as they have made, if those are more.

        If they have made them, the fragments of episodes that go on end with the last step, and go to the outbox.
        """
        self._num_steps = max(num_steps, self._step)
        # Views would keep what is not needed any more.
        self._actions_made = [column[: self._num_steps].copy() for column in self._actions_made]
        self._history.shorten(self._actions_made)
        if 0 < self._step == self._num_steps:
            self._cut()

    @abstractmethod
    def _cut(self) -> None:
        """Ends the fragments of episodes that go on, with the step before the current one."""

    @abstractmethod
    def restore(self) -> int:
        """Makes steps to bring rows to where they stood; returns how many it made: 0 once all stand there."""

    @abstractmethod
    def step(self) -> None:
        """Steps all rows, which have been restored.

        Fragments of those whose episodes end go to the outbox; with the call's last step, then those of the others. All
        are whole fragments of the call, in the order of the rows.

        Raises:
            EnvFailedError: an environment raised errors again and again; or once, and `is_stranded`.
            AgentFailedError: the agent failed.
        """

    @abstractmethod
    def progress(self) -> list[RowProgress]:
        """Where the rows stand at the end of a call."""

    def _retry(self, error: EnvFailedError, key: int) -> None:
        """Takes in that an attempt has failed; raises the error, which says where, if that has happened too often."""
        if not self.attempts.fail(key, [error.episode_index or 0], error):
            raise error

    def _strand(self, error: EnvFailedError) -> NoReturn:
        """Gives up bringing a row to where it stood, which the error tells of."""
        self.is_stranded = True
        raise error

    def _keep_actions(self, actions: Sequence[np.ndarray]) -> None:
        """Keeps the actions of the current step, if they are to be told."""
        if self._tells_actions:
            for column, action in zip(self._actions_made, actions, strict=True):
                column[self._step] = action


def _log_dtype(leaf: Leaf) -> np.dtype:
    """The smallest dtype that holds all of an action's values: they are kept for long."""
    space = leaf.space
    match space:
        case spaces.Discrete():
            least, greatest = int(space.start), int(space.start + space.n - 1)
        case spaces.MultiDiscrete():
            least, greatest = int(space.start.min()), int((space.start + space.nvec - 1).max())
        case _:
            return leaf.dtype
    dtype = np.result_type(np.min_scalar_type(least), np.min_scalar_type(greatest))
    return dtype if dtype.itemsize < leaf.dtype.itemsize else leaf.dtype
