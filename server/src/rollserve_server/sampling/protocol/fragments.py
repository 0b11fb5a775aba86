"""What passes between the pool and its workers for calls that sample fragments: plain values that can be pickled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollserve_server.sampling.protocol.episodes import WorkOrder

if TYPE_CHECKING:
    import numpy as np

    from rollserve_server.agents import Exploration
    from rollserve_server.errors import DomainError
    from rollserve_server.sampling.collect.recurrent_state import RecurrentState
    from rollserve_server.sampling.protocol.episodes import ColumnFormat, EpisodeFailure, Message

__all__ = ["FragmentAssignment", "FragmentOrder", "FragmentReport", "RowProgress", "RowSequenceSpec", "RowState"]


@dataclass(frozen=True)
class RowSequenceSpec:
    """Episodes that the rows of a worker run, one after the other.

    Attributes:
        work_id: the pool's name for it; it comes only once, also among streams of whole episodes.
        root_seed: of the sequence of episodes, from 0 to 2**64 - 1.
        env_version: which environment they run in.
        max_episode_length: how many steps an episode may have, or None for what the environment allows.
        soft_horizon: whether an episode that reaches that length ends without a reset of its environment.
        stride: how many rows all workers have together: what an episode's index rises by in a row.
    """

    work_id: int
    root_seed: int
    env_version: int
    max_episode_length: int | None
    soft_horizon: bool
    stride: int


@dataclass(frozen=True)
class RowState:
    """Where a row stands between two calls. It is made again by a reset and the actions.

    Attributes:
        reset_index: the episode that the environment was reset for, or is to be if it has made no steps.
        episode_index: the episode that it runs. Another one only after a soft horizon.
        first_step: how many steps the environment made since its reset before that episode began.
        num_steps: how many steps it made since its reset.
        actions: for each leaf of the action space (num_steps, *A), what it was given.
        recurrent_state: what the agent remembers of its episode.
    """

    reset_index: int
    episode_index: int
    first_step: int
    num_steps: int
    actions: Sequence[np.ndarray]
    recurrent_state: RecurrentState = ()


@dataclass(frozen=True)
class RowProgress:
    """Where a row stands at the end of a call.

    Attributes:
        reset_index, episode_index, first_step, num_steps, memory: see RowState.
        new_actions: those of the call since the environment's last reset; None if nobody wants to know.
    """

    reset_index: int
    episode_index: int
    first_step: int
    num_steps: int
    new_actions: Sequence[np.ndarray] | None
    recurrent_state: RecurrentState = ()


@dataclass(frozen=True)
class FragmentAssignment:
    """A worker's part in a call.

    Attributes:
        call_id: the pool's name for the call.
        policy_version: which agent acts.
        exploration: how freely it acts.
        num_row_steps: how many steps each row makes.
        num_skipped_steps: how many of the worker's steps, in the order of their delivery, are not delivered.
        max_message_bytes: the size that no message may exceed.
        tell_actions: whether the rows' actions are wanted.
        columns: how columns may be written; None to throw away what would be.
    """

    call_id: int
    policy_version: int
    exploration: Exploration
    num_row_steps: int
    num_skipped_steps: int
    max_message_bytes: int
    tell_actions: bool
    columns: ColumnFormat | None


@dataclass(frozen=True)
class FragmentOrder(WorkOrder["FragmentReport"]):
    """A slice of work.

    Attributes:
        sequence: which rows.
        assignment: what they are to do.
        states: what the rows are to be made from; None if the worker has them from the call or order before.
        write_bytes: about how much may be written.
        seconds: how long to step environments at most; unless 0, at least one step of each row that has any left.
        enough_row_steps: how many steps of each row are enough, so that the call ends there, or with those that are
            made; None for all of the part.
    """

    sequence: RowSequenceSpec
    assignment: FragmentAssignment
    states: Sequence[RowState] | None
    write_bytes: int
    seconds: float
    enough_row_steps: int | None = None


@dataclass(frozen=True)
class FragmentReport:
    """What came of an order.

    Attributes:
        messages: what was written, in order; where it stands in the buffer that comes with the report.
        rows: once everything is made and written, where the rows stand, or nothing if they stand where they stood; None
            before, and in later reports.
        num_simulated_steps: steps made.
        num_restoring_steps: how many of them brought rows to where they stood.
        num_broken_off: how many rows could not be brought there, and have begun their next episodes.
        sampling_seconds: time spent on steps.
        encoding_seconds: time spent writing messages.
        dropped_infos: how many values of infos were dropped, by name.
        failure: what went wrong, after which the stream is to be closed.
        env_failures: errors of environments, told once.
        is_stranded: whether the failure is that of a row which could not be brought to where it stood in the middle of
            the call: all may be made anew from where they stood at its beginning.
        num_row_steps: how many steps each row makes in the call: fewer than those of the part, once that is settled.
    """

    messages: tuple[Message, ...]
    rows: Sequence[RowProgress] | None
    num_simulated_steps: int
    num_restoring_steps: int
    num_broken_off: int
    sampling_seconds: float
    encoding_seconds: float
    dropped_infos: Mapping[str, int]
    failure: DomainError | None = None
    env_failures: tuple[EpisodeFailure, ...] = ()
    is_stranded: bool = False
    num_row_steps: int = 0
