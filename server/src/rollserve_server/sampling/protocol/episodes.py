"""What passes between the pool and its workers: plain values that can be pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from rollserve_server.agents import AS_THE_AGENT_SAYS

if TYPE_CHECKING:
    from gymnasium import Space

    from rollserve import Reproducibility
    from rollserve.v1.tensor_pb2 import Compression
    from rollserve_server.agents import Exploration
    from rollserve_server.errors import DomainError

__all__ = [
    "EARLY",
    "PLAIN",
    "Claim",
    "ColumnFormat",
    "EnvDescription",
    "EpisodeFailure",
    "EpisodeRange",
    "Message",
    "Order",
    "Outcome",
    "Parcel",
    "Report",
    "SequenceSpec",
    "WorkOrder",
    "WorkerIdentity",
]

R = TypeVar("R")


class WorkOrder(Generic[R]):
    """What a worker is asked to do for a while, and answers with an R: the base of all kinds of orders."""


@dataclass(frozen=True)
class WorkerIdentity:
    """Where a worker runs."""

    process_id: int
    host: str


@dataclass(frozen=True)
class EnvDescription:
    """What a worker found out about an environment.

    Attributes:
        observation_space: of one row.
        action_space: of one row.
        max_episode_steps: the step limit that it is known to have, or None.
        reproducibility: what of it comes again, as far as a quick look can tell.
        num_rows: how many rows a worker steps at once for each stream.
        num_episodes_per_row: if they are stepped together: how many episodes of each make a block; else None.
    """

    observation_space: Space[Any]
    action_space: Space[Any]
    max_episode_steps: int | None
    reproducibility: Reproducibility
    num_rows: int
    num_episodes_per_row: int | None = None


@dataclass(frozen=True)
class SequenceSpec:
    """A sequence of episodes: each is a function of the values below and its index.

    Attributes:
        work_id: the pool's name for it; it comes only once.
        root_seed: from 0 to 2**64 - 1.
        policy_version: which agent acts.
        env_version: which environment it acts in.
        max_episode_length: how many steps an episode may have, or None for what the environment allows.
        exploration: how freely the agent acts.
    """

    work_id: int
    root_seed: int
    policy_version: int
    env_version: int
    max_episode_length: int | None = None
    exploration: Exploration = AS_THE_AGENT_SAYS


@dataclass(frozen=True)
class Claim:
    """Finished episodes of one worker, consecutive in their indices, that a call is to deliver.

    Attributes:
        claim_id: the call's name for it.
        start: the index of the first episode.
        stop: one more than the index of the last.
        first_step: of the first episode, the step to go on with: those before it have been delivered.
    """

    claim_id: int
    start: int
    stop: int
    first_step: int = 0


class EpisodeRange(NamedTuple):
    """Episodes to run.

    Attributes:
        indices: which.
        block_start: where rows are stepped together: the index of the first episode of the block that they are of. The
            next belongs to the second row, and so on, and behind the last row it is the first one's turn again. Row r
            so runs the episodes whose indices are r above this one's, modulo the number of rows.
    """

    indices: range
    block_start: int


@dataclass(frozen=True)
class ColumnFormat:
    """How columns may be written.

    Attributes:
        compression: how those may be compressed that shrink by it; None for not at all.
        frames_once: whether observations that are stacks of frames may be written with each frame once.
        all_states: whether what the agent remembered is written for each step, and not for the segments alone.
    """

    compression: Compression.ValueType | None = None
    frames_once: bool = False
    all_states: bool = False


PLAIN = ColumnFormat()
"""As every client takes them."""

EARLY = -1
"""The name of a claim that nobody has made yet."""


@dataclass(frozen=True)
class Order(WorkOrder["Report"]):
    """A slice of work.

    Attributes:
        sequence: what to work on.
        begin: episodes to begin when rows are free, the lowest index first.
        begin_again: the same for episodes that were lost, and that a claim waits for: however full the buffer is.
        before: step rows that are stepped together only for the sake of episodes of lower indices; None for all.
        deliver: claims to write messages for; one that does not fit into a parcel is to be named again.
        max_message_bytes: the size that no message may exceed.
        bind_worker: whether the messages tell the worker's index.
        seconds: how long to step environments at most; unless 0, at least one step of each row that has an episode.
        columns: how their columns may be written; None to throw them away: of each claim then comes one message without
            any bytes.
        early: whether to write what it has of the stream without being asked, if that has ended then and is small: as a
            claim named EARLY, whose episodes are kept.
        release: claims of episodes that were written early, and are delivered: they need not be kept any more.
        is_whole: whether these are all episodes that the worker is to run of the stream: it forgets the stream once it
            has written them early.
        tell_outcomes: whether to tell what the episodes came to that end.
        cancel: episodes to forget first, as far as it has them: others run, or have run, elsewhere.
    """

    sequence: SequenceSpec
    begin: tuple[EpisodeRange, ...]
    begin_again: tuple[EpisodeRange, ...]
    before: int | None
    deliver: tuple[Claim, ...]
    max_message_bytes: int
    bind_worker: bool
    seconds: float
    columns: ColumnFormat | None = PLAIN
    early: bool = False
    release: tuple[Claim, ...] = ()
    is_whole: bool = False
    tell_outcomes: bool = False
    cancel: tuple[range, ...] = ()


class Outcome(NamedTuple):
    """What an episode came to.

    Attributes:
        episode_index: which episode.
        total_reward: the sum of its rewards, added up in the order of its steps.
        length: how many steps it has.
        terminated, truncated: how it ended.
    """

    episode_index: int
    total_reward: float
    length: int
    terminated: bool
    truncated: bool


class EpisodeFailure(NamedTuple):
    """An environment has raised an error.

    Attributes:
        indices: the episodes that it happened in: several where rows are stepped together.
        num_attempts: how often they have failed, this time included.
        is_final: whether they are given up; else they run again, in an environment that is made anew.
        text: what happened, and where.
    """

    indices: tuple[int, ...]
    num_attempts: int
    is_final: bool
    text: str


@dataclass(frozen=True)
class Message:
    """A finished message in a parcel's buffer.

    Attributes:
        offset: its first byte.
        size: how many bytes.
        num_steps: how many steps it holds.
        num_episodes: how many episodes end in it.
    """

    offset: int
    size: int
    num_steps: int
    num_episodes: int


@dataclass(frozen=True)
class Parcel:
    """Messages of one claim, in order.

    Attributes:
        claim_id: which claim.
        messages: where they stand in the buffer that comes with the report.
        start: the index of the episode, and its step, that the first of them begins with.
        stop: the same for what comes after the last of them.
        complete: whether these are the claim's last.
    """

    claim_id: int
    messages: tuple[Message, ...]
    start: tuple[int, int]
    stop: tuple[int, int]
    complete: bool


@dataclass(frozen=True)
class Report:
    """What came of an order.

    Attributes:
        finished: of each episode that ended: its index, steps and approximate bytes.
        parcels: what was written, claim by claim.
        num_simulated_steps: steps made.
        num_idle_steps: of these, those of rows that only had to go on with the others.
        sampling_seconds: time spent on that.
        encoding_seconds: time spent writing messages.
        dropped_infos: how many values of infos were dropped, by name.
        failure: what went wrong, after which the stream is to be closed.
        is_closed: whether the worker has forgotten the stream.
        outcomes: of the episodes that ended, if the order wants them.
        env_failures: errors of environments, which end no more than the episodes that they happened in.
        num_lost_steps: steps thrown away, which were made earlier or now: of episodes whose environments failed, that
            were dropped, and such as had been delivered before their episode ran again.
    """

    finished: tuple[tuple[int, int, int], ...]
    parcels: tuple[Parcel, ...]
    num_simulated_steps: int
    num_idle_steps: int
    sampling_seconds: float
    encoding_seconds: float
    dropped_infos: Mapping[str, int]
    failure: DomainError | None = None
    is_closed: bool = False
    outcomes: tuple[Outcome, ...] = ()
    env_failures: tuple[EpisodeFailure, ...] = ()
    num_lost_steps: int = 0
