"""Orders for whole episodes of a sequence, and reports about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rollserve_server.agents import DEFAULT_EXPLORATION
from rollserve_server.sampling.protocol.orders import PLAIN, WorkOrder

if TYPE_CHECKING:
    from rollserve_server.agents import Exploration
    from rollserve_server.errors import DomainError
    from rollserve_server.sampling.protocol.orders import ColumnFormat, EpisodeFailure, Message, Outcome

__all__ = ["Claim", "EarlyClaim", "EndedEpisode", "EpisodeRange", "Order", "Parcel", "Report", "SequenceSpec"]


@dataclass(frozen=True)
class SequenceSpec:
    """A sequence of episodes. Each episode is a function of its index and of all values below except `work_id`.

    Attributes:
        work_id: the pool's number for the work, never used twice.
        root_seed: root seed of the sequence, from 0 to 2**64 - 1.
        policy_version: version of the agent that acts.
        env_version: version of the environment.
        max_episode_length: number of steps after which an episode is truncated; None for the environment's own limit.
        exploration: how freely the agent acts.
    """

    work_id: int
    root_seed: int
    policy_version: int
    env_version: int
    max_episode_length: int | None = None
    exploration: Exploration = DEFAULT_EXPLORATION


class EpisodeRange(NamedTuple):
    """Episodes to run.

    Attributes:
        indices: indices of the episodes.
        block_start: where rows are stepped together, the index of the first episode of their block. Row r of M rows
            runs the episodes with the indices block_start + r, block_start + r + M, and so on.
    """

    indices: range
    block_start: int


@dataclass(frozen=True)
class Claim:
    """Finished episodes of one worker, with consecutive indices, that a call delivers next.

    Attributes:
        claim_id: the call's number for the claim.
        start: index of the first episode.
        stop: index of the last episode, plus 1.
        first_step: number of steps of the first episode that were delivered before and are not written again.
        worker_index: index of the worker that the episodes belong to, for messages; None if they belong to none.
    """

    claim_id: int
    start: int
    stop: int
    first_step: int = 0
    worker_index: int | None = None


@dataclass(frozen=True)
class EarlyClaim:
    """Consecutive episodes that a worker has, or begins now, and that the call will probably claim of it.

    It is satisfied when all of the episodes are finished, or so many that they have `num_steps` steps.

    Attributes:
        claim_id: the call's number for it; orders of other calls have other numbers.
        start: index of the first episode.
        stop: index of the last episode, plus 1.
        num_steps: number of steps with which the call ends; None if that is not known.
        worker_index: index of the worker that the episodes belong to, for messages; None if they belong to none.
    """

    claim_id: int
    start: int
    stop: int
    num_steps: int | None = None
    worker_index: int | None = None


@dataclass(frozen=True)
class Order(WorkOrder["Report"]):
    """A slice of work on a sequence of episodes.

    Attributes:
        sequence: the sequence to work on.
        begin: episodes to begin when rows are free, the lowest index first.
        begin_again: lost episodes that a claim waits for. They begin like others, but also when the buffer is full.
        before: upper bound: rows are stepped only for the sake of episodes with lower indices; None for no bound. Rows
            that are stepped together take the others along.
        deliver: claims to write. The pool repeats a claim in later orders until a parcel completes it.
        max_message_bytes: size that no message may exceed.
        seconds: upper bound for the time to step environments. Unless it is 0, every row with an episode makes at least
            one step.
        columns: how columns may be written. None discards them: each claim is reported as one message without bytes.
        early: episodes to write without a claim if the order's steps finish them, which ends the steps, and they are
            small; None for none. The worker keeps them like others that are not claimed.
        release: claims of episodes that were written early and are claimed; the worker forgets them first.
        report_outcomes: whether to report the outcomes of episodes that end.
        cancel: episodes to forget first, if the worker has them, because they run or have run elsewhere.
    """

    sequence: SequenceSpec
    begin: tuple[EpisodeRange, ...]
    begin_again: tuple[EpisodeRange, ...]
    before: int | None
    deliver: tuple[Claim, ...]
    max_message_bytes: int
    seconds: float
    columns: ColumnFormat | None = PLAIN
    early: EarlyClaim | None = None
    release: tuple[Claim, ...] = ()
    report_outcomes: bool = False
    cancel: tuple[range, ...] = ()


@dataclass(frozen=True)
class Parcel:
    """Messages of one claim, in order.

    Attributes:
        claim_id: id of the claim.
        messages: the messages, in the buffer of the report.
        start: episode index and step that the first message begins with.
        stop: episode index and step that come after the last message.
        complete: whether these are the last messages of the claim.
    """

    claim_id: int
    messages: tuple[Message, ...]
    start: tuple[int, int]
    stop: tuple[int, int]
    complete: bool


class EndedEpisode(NamedTuple):
    """An episode that has ended.

    Attributes:
        episode_index: index of the episode.
        num_steps: number of its steps.
        num_bytes: approximate bytes of its steps.
        num_agent_steps: number of the steps of all agents; the same where there is one agent.
    """

    episode_index: int
    num_steps: int
    num_bytes: int
    num_agent_steps: int


@dataclass(frozen=True)
class Report:
    """Answer to an `Order`.

    Attributes:
        finished: the episodes that ended.
        parcels: messages that were written, claim by claim.
        num_simulated_steps: number of steps that rows made.
        num_idle_steps: number of those steps that rows made only because they are stepped together with others.
        sampling_seconds: time spent on steps.
        encoding_seconds: time spent on writing messages.
        environment_seconds, policy_seconds: share of `sampling_seconds` spent in environments and in the agent, as
            measured in some of the steps.
        failure: error after which the pool has to close the work; None if there was none.
        outcomes: outcomes of the episodes that ended, if the order asks for them.
        env_failures: errors of environments, which affect no other episodes than those they name.
        num_lost_steps: number of steps that were thrown away, made now or earlier: steps of episodes whose environments
            failed, of cancelled episodes, and steps that had been delivered before their episode ran again.
        early: messages of the order's early claim, all of them; None if they were not written.
    """

    finished: tuple[EndedEpisode, ...]
    parcels: tuple[Parcel, ...]
    num_simulated_steps: int
    num_idle_steps: int
    sampling_seconds: float
    encoding_seconds: float
    failure: DomainError | None = None
    outcomes: tuple[Outcome, ...] = ()
    env_failures: tuple[EpisodeFailure, ...] = ()
    num_lost_steps: int = 0
    early: Parcel | None = None
    environment_seconds: float = 0.0
    policy_seconds: float = 0.0
