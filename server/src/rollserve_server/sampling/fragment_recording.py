"""What rows that go on from call to call record, however they are stepped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.sampling.collector import column_keys
from rollserve_server.sampling.episodes import Episode, Recorder
from rollserve_server.sampling.infos import InfoReader

if TYPE_CHECKING:
    from collections import Counter

    from rollserve_server.agents import Agent
    from rollserve_server.envs import BlockEnvs, RowEnvs
    from rollserve_server.sampling.fragment_orders import RowStream

__all__ = ["FragmentRecording"]


class FragmentRecording:
    """Records the steps of M rows, and for each call the actions that they were given.

    Attributes:
        num_rows: M.
        num_broken_off: how many rows could not be brought to where they stood at the beginning of the call, and begin
            their next episodes.
    """

    _envs: RowEnvs | BlockEnvs

    def __init__(self, stream: RowStream, num_rows: int) -> None:
        self.num_rows = num_rows
        self.num_broken_off = 0
        self._stream = stream
        self._infos = InfoReader()
        self._agent: Agent
        self._recorder: Recorder
        # Of the call: which step it is, how many it has, and the actions of all.
        self._step = self._num_steps = 0
        self._tells_actions = False
        self._actions_made: Sequence[np.ndarray] = ()

    @property
    def step_bytes(self) -> int:
        """How many bytes the columns of a row's step take. There has to be an agent."""
        return self._recorder.step_bytes

    @property
    def dropped_infos(self) -> Counter[str]:
        """By name, how many values of infos had no place in a column. The caller may clear it."""
        return self._infos.dropped

    def set_agent(self, agent: Agent) -> None:
        """Has another agent act from the next call on. The episodes go on."""
        self._agent = agent
        self._recorder = Recorder(self.num_rows, column_keys(self._envs, agent), self._infos)
        self._columns = {
            group: self._recorder.columns(group) for group in ("observations", "actions", "rewards", "agent_infos")
        }

    def begin_call(self, num_steps: int, *, tell_actions: bool) -> None:
        """Begins a call of so many steps of each row, all of whose fragments are released before the next."""
        self.num_broken_off = 0
        self._step = 0
        self._num_steps = num_steps
        leaves = self._envs.action_leaves if tell_actions else ()
        self._actions_made = [np.empty((self.num_rows, num_steps, *leaf.shape), leaf.dtype) for leaf in leaves]
        self._tells_actions = tell_actions

    def release(self, fragment: Episode) -> None:
        """Forgets a fragment: its columns may be overwritten."""
        self._recorder.release(fragment)

    def _keep_actions(self, actions: Sequence[np.ndarray]) -> None:
        """Keeps the actions of the current step, if they are to be told."""
        if self._tells_actions:
            for column, action in zip(self._actions_made, actions, strict=True):
                column[:, self._step] = action
