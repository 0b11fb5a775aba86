"""Orders for fragments of a row sequence, and reports about them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.sampling.protocol.orders import WorkOrder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve_server.agents import Exploration
    from rollserve_server.errors import DomainError
    from rollserve_server.sampling.protocol.orders import ColumnFormat, EpisodeFailure, Message

__all__ = [
    "FragmentAssignment",
    "FragmentOrder",
    "FragmentReport",
    "RecurrentState",
    "RowProgress",
    "RowSequenceSpec",
    "RowState",
    "RowsProgress",
]

RecurrentState = tuple[tuple[str, np.ndarray], ...]
"""Recurrent state of an agent in one row: names and arrays (*S)."""


@dataclass(frozen=True)
class RowSequenceSpec:
    """Episodes that each row of a worker runs one after the other.

    Attributes:
        work_id: the pool's number for the work, never used twice, for any kind of work.
        root_seed: root seed of the sequence, from 0 to 2**64 - 1.
        env_version: version of the environment.
        max_episode_length: number of steps after which an episode is truncated; None for the environment's own limit.
        soft_horizon: whether an episode that reaches `max_episode_length` ends without a reset of its environment.
        stride: number of rows of all workers. Indices rise by it from one episode of a row to the next.
        return_discount: discount of the returns that the account of each call has moments of; None for no moments.
    """

    work_id: int
    root_seed: int
    env_version: int
    max_episode_length: int | None
    soft_horizon: bool
    stride: int
    return_discount: float | None = None


@dataclass(frozen=True)
class RowState:
    """Position of a row between two calls. A reset and the actions restore it.

    Attributes:
        reset_index: index of the episode that the environment was reset for, or will be if it has made no steps.
        episode_index: index of the episode that the row runs. It differs from `reset_index` only after a soft horizon.
        first_step: number of steps that the environment had made since its reset when the episode began.
        num_steps: number of steps that the environment has made since its reset.
        actions: for each leaf of the action space (num_steps, *A), the actions since the reset.
        recurrent_state: the agent's recurrent state in the episode.
    """

    reset_index: int
    episode_index: int
    first_step: int
    num_steps: int
    actions: Sequence[np.ndarray]
    recurrent_state: RecurrentState = ()


@dataclass  # not frozen, because a frozen one takes three times as long to make, once for each row and call
class RowProgress:
    """Position of a row at the end of a call.

    Attributes:
        reset_index, episode_index, first_step, num_steps, recurrent_state: as in `RowState`.
        new_actions: for each leaf of the action space, the actions of the call since the environment's last reset; None
            unless the assignment asks for them.
    """

    reset_index: int
    episode_index: int
    first_step: int
    num_steps: int
    new_actions: Sequence[np.ndarray] | None
    recurrent_state: RecurrentState = ()


@dataclass(frozen=True)
class RowsProgress(Collection[RowProgress]):
    """Positions of a worker's M rows at the end of a call, as arrays, which travel faster than an object for each row.

    Attributes:
        reset_indices, episode_indices, first_steps, num_steps: (M,), as in `RowState`.
        new_steps: (M,), the number of the call's steps since the last reset of each row's environment.
        actions: for each leaf of the action space, the actions of the call (T, M, *A); None unless the assignment asks
            for them.
        recurrent_states: recurrent state of each row; empty if the agent has none.
    """

    reset_indices: NDArray[np.int64]
    episode_indices: NDArray[np.int64]
    first_steps: NDArray[np.int64]
    num_steps: NDArray[np.int64]
    new_steps: NDArray[np.int64]
    actions: Sequence[np.ndarray] | None
    recurrent_states: Sequence[RecurrentState]

    def __len__(self) -> int:
        return len(self.num_steps)

    def __iter__(self) -> Iterator[RowProgress]:
        columns = (self.reset_indices, self.episode_indices, self.first_steps, self.num_steps, self.new_steps)
        positions = zip(*(column.tolist() for column in columns), strict=True)
        for row, (reset_index, episode_index, first_step, num_steps, new_steps) in enumerate(positions):
            new_actions = self.actions and [column[len(column) - new_steps :, row] for column in self.actions]
            recurrent_state = self.recurrent_states[row] if self.recurrent_states else ()
            yield RowProgress(reset_index, episode_index, first_step, num_steps, new_actions, recurrent_state)

    def __contains__(self, progress: object) -> bool:
        return any(each is progress for each in self)


@dataclass(frozen=True)
class FragmentAssignment:
    """Instructions for a worker in one fragment call.

    Attributes:
        call_id: the pool's number for the call. It rises from call to call, and no work has the same.
        policy_version: version of the agent that acts.
        exploration: how freely the agent acts.
        num_row_steps: number of steps that each row makes.
        num_skipped_steps: number of the worker's steps that are not delivered, from the first in delivery order.
        max_message_bytes: size that no message may exceed.
        report_actions: whether to report the rows' actions.
        columns: how columns may be written; None discards them.
    """

    call_id: int
    policy_version: int
    exploration: Exploration
    num_row_steps: int
    num_skipped_steps: int
    max_message_bytes: int
    report_actions: bool
    columns: ColumnFormat | None


@dataclass(frozen=True)
class FragmentOrder(WorkOrder["FragmentReport"]):
    """A slice of work on a row sequence.

    Attributes:
        sequence: the row sequence to work on.
        assignment: what the rows do in the call.
        states: states to restore the rows from; None if the worker has the rows from an earlier order.
        write_bytes: number of bytes to write, exceeded by less than one message.
        seconds: upper bound for the time to step environments. Unless it is 0, the rows make at least one step if any
            is left.
        enough_row_steps: number of steps of each row that are enough: the rows stop there, or with the steps they have
            made if those are more; None for all steps of the assignment.
    """

    sequence: RowSequenceSpec
    assignment: FragmentAssignment
    states: Sequence[RowState] | None
    write_bytes: int
    seconds: float
    enough_row_steps: int | None = None


@dataclass(frozen=True)
class FragmentReport:
    """Answer to a `FragmentOrder`.

    Attributes:
        messages: messages that were written, in order, in the buffer of the report.
        rows: where the rows stand, once all steps of the call are made and written; empty if they made none. None
            before that, and in later reports.
        num_simulated_steps: number of steps that rows made.
        num_restoring_steps: number of those steps that restored rows.
        num_broken_off: number of rows that could not be restored and have begun their next episodes.
        sampling_seconds: time spent on steps.
        encoding_seconds: time spent on writing messages.
        environment_seconds, policy_seconds: share of `sampling_seconds` spent in environments and in the agent, as
            measured in some of the steps.
        failure: error after which the pool has to close the work; None if there was none.
        env_failures: errors of environments, each reported once.
        is_stranded: whether the order failed because a row could not be restored after its environment failed in the
            middle of the call. The rows' states at the beginning of the call are still valid.
        num_row_steps: number of steps that each row makes in the call; below the assignment's number once
            `enough_row_steps` has shortened the call.
    """

    messages: tuple[Message, ...]
    rows: Collection[RowProgress] | None
    num_simulated_steps: int
    num_restoring_steps: int
    num_broken_off: int
    sampling_seconds: float
    encoding_seconds: float
    failure: DomainError | None = None
    env_failures: tuple[EpisodeFailure, ...] = ()
    is_stranded: bool = False
    num_row_steps: int = 0
    environment_seconds: float = 0.0
    policy_seconds: float = 0.0
