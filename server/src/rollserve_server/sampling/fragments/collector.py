"""The base of the loops that record fragments: rows go on from call to call, and can be restored."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import numpy as np
from gymnasium import spaces
from typing_extensions import override

from rollserve_server.agents import PolicyAgents
from rollserve_server.envs import leaves_of_space
from rollserve_server.errors import EnvFailedError, EpisodeFailedError
from rollserve_server.sampling.collect.collector import Attempts
from rollserve_server.sampling.fragments.action_history import ActionHistory
from rollserve_server.sampling.record.columns import MAX_BUFFER_BYTES
from rollserve_server.sampling.record.infos import InfoReader
from rollserve_server.sampling.record.spilling import Spill

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rollserve_server.agents import Agent, NoiseKind
    from rollserve_server.envs import Leaf, ManyEnvs, RowEnvs, VectorEnvs
    from rollserve_server.sampling.collect.noise import BlockNoise, RowNoise
    from rollserve_server.sampling.collect.stepping import JointRows, SingleRows
    from rollserve_server.sampling.fragments.outbox import Outbox
    from rollserve_server.sampling.protocol import RowSequenceSpec, RowsProgress, RowState
    from rollserve_server.sampling.record.columns import ColumnKey
    from rollserve_server.sampling.record.episodes import Recorder
    from rollserve_server.sampling.record.step_columns import StepColumns

__all__ = [
    "AgentFragmentCollector",
    "DivergedError",
    "Ended",
    "FragmentCollector",
    "action_log_leaves",
    "is_same",
]

_T = TypeVar("_T")

_Failed = TypeVar("_Failed", bound=EpisodeFailedError)


class Ended(NamedTuple):
    """Rows whose episodes have ended with a step, E of them.

    Attributes:
        rows: (E,), their positions.
        terminated: (E,), whether the environment ended the episode.
        truncated: (E,), whether a limit did.
        last_observations: for each leaf of the observation space (E, *O).
        infos: the infos that came with them, if the collector `shows_infos`.
    """

    rows: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    last_observations: Sequence[np.ndarray]
    infos: Sequence[Mapping[Any, Any]] = ()


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
        self._has_begun_step = False
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

    def begin_step(self) -> None:
        """Reset the rows whose episodes begin with the next step, which have been restored: observations are there.

        Raises:
            EnvFailedError: an environment failed too often.
        """
        if not self._has_begun_step:
            self._begin_step()
            self._has_begun_step = True

    def step(self) -> None:
        """Step all rows, which have been restored.

        Fragments of episodes that end go to the outbox, in the order of the rows. After the call's last step, fragments
        of all other rows do, too.

        Raises:
            EnvFailedError: an environment failed too often; or it failed once, and the row `is_stranded`.
            AgentFailedError: the agent failed.
            SpillError: steps have to be spilled, and cannot be.
        """
        self.begin_step()
        self._has_begun_step = False
        self._make_step()

    @abstractmethod
    def _begin_step(self) -> None:
        """Reset the rows whose episodes begin with the next step."""

    @abstractmethod
    def _make_step(self) -> None:
        """Step all rows, as `step`."""

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


class AgentFragmentCollector(FragmentCollector):
    """Records fragments of rows with one agent each.

    Attributes:
        ended: rows whose episodes have ended with the last step; None if there are none.
        idle: rows that take no part in the next step; their episodes have not begun.
        shows_infos: whether `ended` has infos.
    """

    ended: Ended | None = None
    idle: Sequence[int] = ()
    shows_infos: bool = False
    _rows: SingleRows | JointRows
    _noise: RowNoise | BlockNoise
    _columns: Recorder | StepColumns

    def __init__(
        self,
        sequence: RowSequenceSpec,
        rows: SingleRows | JointRows,
        states: Sequence[RowState],
        num_retries: int,
        memory_bytes: int,
    ) -> None:
        """Begin with rows that have to be restored; see `FragmentCollector`."""
        super().__init__(sequence, rows.envs, rows.envs.action_leaves, states, num_retries, memory_bytes)
        self._columns = rows.columns = self._new_columns(())
        self._running_returns = RunningReturns(len(states), sequence.return_discount)
        self._noise_kind: NoiseKind | None = None
        # For each row: the recurrent state to begin with; empty once there is an agent.
        self._initial_states = [state.recurrent_state for state in states]

    @property
    def step_bytes(self) -> int:
        """Bytes that the columns of one row's step take; of rows that are stepped together, with infos."""
        return self._columns.step_bytes

    @override
    def set_agent(self, agent: Agent | PolicyAgents) -> None:
        assert not isinstance(agent, PolicyAgents)  # noqa: S101  # the pool has checked that they fit
        self._rows.set_agent(agent, self._initial_states or self._rows.states.copies())
        self._initial_states = []
        keys = tuple(self._rows.column_keys(agent, self.infos))
        if self._columns.keys != keys:
            self._columns = self._rows.columns = self._new_columns(keys)
        if agent.noise_kind is None or agent.noise_kind != self._noise_kind:
            self._begin_noise(agent)
        else:  # the rows' noise stays where it is: to begin it again takes 10 µs a row, or more in long episodes
            self._noise.agent = agent
        self._noise_kind = agent.noise_kind

    def shown_infos(self) -> Sequence[Mapping[Any, Any]]:
        """Return the infos that came with the present observation of each row."""
        shown = self._rows.shown_infos()
        return [shown.get(row, {}) for row in range(self.num_rows)]

    @abstractmethod
    def episode_indices(self) -> NDArray[np.int64]:
        """Return the index (M,) of the episode that each row runs or begins."""

    @abstractmethod
    def env_seeds(self) -> NDArray[np.uint64]:
        """Return the seed (M,) of the last reset of each row's environment."""

    @abstractmethod
    def _new_columns(self, keys: Sequence[ColumnKey]) -> Recorder | StepColumns:
        """Return columns for steps that have these."""

    @abstractmethod
    def _begin_noise(self, agent: Agent) -> None:
        """Let each row's noise, as the agent draws it, begin before the row's next step."""


class RunningReturns:
    """The discounted return of each row's episode, R[t] = discount * R[t - 1] + reward[t], added up step by step.

    A replay adds up the same rewards in the same order, so a restored row has the same return, to the last bit.

    Attributes:
        values: (M,), R after the last step of each row; 0 before an episode's first step, and without a discount.
    """

    def __init__(self, num_rows: int, discount: float | None) -> None:
        """Begin with rows that have made no steps. Without a discount, nothing is added up."""
        self.values = np.zeros(num_rows)
        self._discount = discount

    def begin(self, rows: int | slice | NDArray[np.int64] | NDArray[np.bool_]) -> None:
        """Begin new episodes of rows."""
        self.values[rows] = 0.0

    def add(self, rewards: NDArray[np.float64], rows: int | slice = slice(None)) -> None:
        """Add a step of rows, given the rewards of all rows, (M,)."""
        if self._discount is not None:
            with np.errstate(all="ignore"):  # of rewards that are not finite
                self.values[rows] = self._discount * self.values[rows] + rewards[rows]


def action_log_leaves(action_leaves: Sequence[Sequence[Leaf]]) -> list[Leaf]:
    """Return the columns of a step's actions: which agents act, and the leaves of the action spaces of all agents."""
    (acted,) = leaves_of_space(spaces.MultiBinary(len(action_leaves)))
    return [acted, *(leaf for leaves in action_leaves for leaf in leaves)]


class DivergedError(Exception):
    """A replayed episode ended where the recorded episode went on."""


def is_same(observations: Sequence[np.ndarray], recorded: Sequence[np.ndarray]) -> bool:
    """Return whether observations are the recorded ones, bit for bit."""
    return all(one.tobytes() == other.tobytes() for one, other in zip(observations, recorded, strict=True))
