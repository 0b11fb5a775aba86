"""The base of the loops that record fragments."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeVar

import numpy as np
from gymnasium import spaces

from rollserve_server.errors import EnvFailedError, EpisodeFailedError
from rollserve_server.sampling.collect.attempts import Attempts
from rollserve_server.sampling.fragments.action_history import ActionHistory
from rollserve_server.sampling.fragments.replay import DivergedError
from rollserve_server.sampling.record.columns import MAX_BUFFER_BYTES
from rollserve_server.sampling.record.infos import InfoReader
from rollserve_server.sampling.record.spilling import Spill

if TYPE_CHECKING:
    from rollserve_server.agents import Agent, PolicyAgents
    from rollserve_server.envs import Leaf, ManyEnvs, RowEnvs, VectorEnvs
    from rollserve_server.sampling.fragments.outbox import Outbox
    from rollserve_server.sampling.protocol.fragments import RowSequenceSpec, RowsProgress, RowState

__all__ = ["FragmentCollector"]

_T = TypeVar("_T")
_Failed = TypeVar("_Failed", bound=EpisodeFailedError)


class FragmentCollector(ABC):
    """Steps M rows that go on from call to call, and records their fragments and, for each call, their actions.

    Attributes:
        num_rows: M.
        num_broken_off: number of rows that could not be restored at the beginning of the call, and go on with their
            next episodes.
        num_repeated_steps: number of steps that the last `step` has repeated to restore rows whose environments failed.
        is_stranded: whether a row whose environment failed in the middle of a call could not be restored.
        num_steps: number of steps that each row makes in the call.
        attempts: failed attempts at episodes.
        infos: reader of the environments' infos.
        outbox: fragments that are finished.
    """

    outbox: Outbox
    _restoring: Iterator[int]

    def __init__(
        self,
        sequence: RowSequenceSpec,
        envs: RowEnvs | VectorEnvs | ManyEnvs,
        action_leaves: Sequence[Leaf],
        states: Sequence[RowState],
        num_retries: int,
        memory_bytes: int,
    ) -> None:
        """Begin with rows that have to be restored.

        Args:
            sequence: the row sequence.
            envs: environments that nothing else uses.
            action_leaves: columns of a step's actions, which restore rows.
            states: states to restore the rows from.
            num_retries: how often an episode may run again whose environment failed.
            memory_bytes: bytes of recorded steps that are held in memory; others are spilled to temporary files.
        """
        self._buffer_bytes = min(MAX_BUFFER_BYTES, memory_bytes // 2)
        self._spill = Spill(memory_bytes - self._buffer_bytes)
        self.attempts = Attempts(num_retries)
        self.num_repeated_steps = 0
        self.is_stranded = False
        self._history = ActionHistory(states)
        self.num_rows = len(states)
        self.num_broken_off = 0
        self._sequence = sequence
        self.infos = InfoReader(envs.text_info_bytes)
        self._action_leaves = action_leaves
        # In the call: the current step, and for each leaf the actions (T, M, *A).
        self._step = self.num_steps = 0
        self._reports_actions = False
        self._call_actions: Sequence[np.ndarray] = ()

    @property
    @abstractmethod
    def step_bytes(self) -> int:
        """Bytes that the columns of one row's step take, once there is an agent."""

    @property
    def num_steps_left(self) -> int:
        """Number of steps that each row has yet to make in the call."""
        return self.num_steps - self._step

    @abstractmethod
    def episode_index(self, row: int) -> int:
        """Return the index of the episode that a row runs or begins."""

    @abstractmethod
    def set_agent(self, agent: Agent | PolicyAgents) -> None:
        """Let another agent, or other policies, act from the next call on.

        Episodes go on, and so do their recurrent states if they have the same names, dtypes and shapes in both agents.
        """

    def begin_call(self, num_steps: int, *, report_actions: bool) -> None:
        """Begin a call. All fragments of the call before have been written.

        Args:
            num_steps: number of steps that each row makes.
            report_actions: whether to keep the actions for `progress`.
        """
        self.num_broken_off = 0
        self._step = 0
        self.num_steps = num_steps
        leaves = self._action_leaves if report_actions else ()
        self._call_actions = [np.empty((num_steps, self.num_rows, *leaf.shape), _log_dtype(leaf)) for leaf in leaves]
        self._reports_actions = report_actions
        self._history.begin_call(self._call_actions)
        self._spill.begin_call()

    def shorten(self, num_steps: int) -> None:
        """End the call after `num_steps` steps of each row, or after the steps made so far if those are more.

        If they are made, the fragments of episodes that go on end with the last step and go to the outbox.
        """
        self.num_steps = max(num_steps, self._step)
        # Copies, because views would keep the memory of the other steps.
        self._call_actions = [column[: self.num_steps].copy() for column in self._call_actions]
        self._history.shorten(self._call_actions)
        if 0 < self._step == self.num_steps:
            self._cut()

    def restore(self) -> int:
        """Make steps that restore rows, and return their number; 0 once all rows are restored."""
        return next(self._restoring, 0)

    @abstractmethod
    def step(self) -> None:
        """Step all rows, which have been restored.

        Fragments of episodes that end go to the outbox, in the order of the rows. After the call's last step, fragments
        of all other rows do, too.

        Raises:
            EnvFailedError: an environment failed too often; or it failed once, and the row `is_stranded`.
            AgentFailedError: the agent failed.
            SpillError: steps have to be spilled, and cannot be.
        """

    @abstractmethod
    def progress(self) -> RowsProgress:
        """Return where the rows stand at the end of a call."""

    @abstractmethod
    def _cut(self) -> None:
        """End the fragments of episodes that go on, before the current step."""

    @abstractmethod
    def _with_episode(self, error: _Failed) -> _Failed:
        """Return the error with the episode that it was raised in."""

    def _retry(self, error: EnvFailedError, key: int) -> None:
        """Record a failed attempt; raise the error, which names its episode, if no other is allowed."""
        if not self.attempts.fail(key, [error.episode_index or 0], error):
            raise error

    def _begun(self, begin: Callable[[], _T], key: int) -> _T:
        """Return the result of `begin`, which begins episodes; repeat it when it fails.

        Raises:
            EnvFailedError: it failed too often.
        """
        while True:
            try:
                return begin()
            except EnvFailedError as error:
                self._retry(self._with_episode(error), key)

    def _restored(
        self, replay: Callable[[], Iterator[int]], key: int, episode_index: int
    ) -> Generator[int, None, bool]:
        """Yield the numbers of steps of a replay, which is repeated when it fails; return whether it succeeded."""
        while True:
            try:
                yield from replay()
            except EnvFailedError as error:
                if not self.attempts.fail(key, [episode_index], self._with_episode(error)):
                    return False
            except DivergedError:
                return False
            else:
                return True

    def _restore_each(
        self,
        states: Sequence[RowState],
        replay: Callable[[int, RowState], Iterator[int]],
        break_off: Callable[[int], None],
    ) -> Iterator[int]:
        """Restore one row after the other; break off the episodes of rows that cannot be. Yields 1 after each step."""
        for row, state in enumerate(states):
            if not state.num_steps:
                continue
            index = state.episode_index
            if not (yield from self._restored(functools.partial(replay, row, state), index, index)):
                self.num_broken_off += 1
                break_off(row)

    def _strand(self, error: EnvFailedError) -> NoReturn:
        """Give up a row that cannot be restored after the error."""
        self.is_stranded = True
        raise error

    def _actions_so_far(self) -> Sequence[np.ndarray] | None:
        """Return the call's actions up to the current step, for each leaf (T, M, *A); None if they are not reported."""
        return [column[: self._step] for column in self._call_actions] if self._reports_actions else None

    def _keep_actions(self, actions: Sequence[np.ndarray]) -> None:
        """Keep the actions of the current step, if they are reported."""
        if self._reports_actions:
            for column, action in zip(self._call_actions, actions, strict=True):
                column[self._step] = action


def _log_dtype(leaf: Leaf) -> np.dtype:
    """Return the smallest dtype for all values of an action's leaf: actions are kept for long."""
    space = leaf.space
    match space:
        case spaces.Discrete():
            low, high = int(space.start), int(space.start + space.n - 1)
        case spaces.MultiDiscrete():
            low, high = int(space.start.min()), int((space.start + space.nvec - 1).max())
        case _:
            return leaf.dtype
    dtype = np.result_type(np.min_scalar_type(low), np.min_scalar_type(high))
    return dtype if dtype.itemsize < leaf.dtype.itemsize else leaf.dtype
