"""Plain values that the pool and its workers exchange: descriptions, orders and reports. All can be pickled."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from rollserve_server.agents import DEFAULT_EXPLORATION, Exploration

if TYPE_CHECKING:
    from gymnasium import Space
    from numpy.typing import NDArray

    from rollserve_server.agents import InfoSpec
    from rollserve_server.envs import Traces
    from rollserve_server.errors import DomainError
    from rollserve_wire.environments import Reproducibility
    from rollserve_wire.v1.tensor_pb2 import Compression

__all__ = [
    "ENDING",
    "NO_MEMBERS",
    "ORDERS_FORMAT",
    "PLAIN",
    "AgentOutcome",
    "Claim",
    "ColumnFormat",
    "DrivenActions",
    "DrivenRows",
    "EarlyClaim",
    "EndedEpisode",
    "EnvDescription",
    "EpisodeFailure",
    "EpisodeRange",
    "External",
    "FragmentAssignment",
    "FragmentOrder",
    "FragmentReport",
    "Members",
    "Message",
    "MomentsFormat",
    "Order",
    "Outcome",
    "Parcel",
    "Population",
    "PopulationOrder",
    "PopulationReport",
    "RecurrentState",
    "Report",
    "RowProgress",
    "RowSequenceSpec",
    "RowState",
    "RowsProgress",
    "SequenceSpec",
    "WorkOrder",
    "WorkerIdentity",
]

R = TypeVar("R")

ORDERS_FORMAT = 1
"""Format of all that the server and its workers exchange. Servers take over workers of another version that have this
format; raise it with each change that workers or servers of before would misunderstand."""


@dataclass(frozen=True)
class WorkerIdentity:
    """The process and the host that a worker runs in.

    Attributes:
        process_id: id of the process.
        host: name of the machine.
        packages: names and versions of what decides what environments do: packages, and the hash seed.
        node: id of the machine in its cluster; empty without a cluster.
    """

    process_id: int
    host: str
    packages: tuple[tuple[str, str], ...] = ()
    node: str = ""


@dataclass(frozen=True)
class EnvDescription:
    """Properties of an installed environment.

    Attributes:
        observation_space: space of one row's observations.
        action_space: space of one row's actions.
        max_episode_steps: step limit of an episode; None if no limit is known.
        reproducibility: reproducibility class, as far as a quick check can tell.
        num_rows: number of rows that a worker steps for each work.
        num_episodes_per_row: number of episodes of each row in a block; None if rows are stepped one by one.
        why_not_single: why rows that are stepped one by one are not the environment of these rows, which are stepped
            together; empty if they are.
        agents: names of the possible agents, whose spaces are in Dict spaces; empty for an environment with one agent.
        traces: first episodes, to compare with other processes'; empty once that is done.
    """

    observation_space: Space[Any]
    action_space: Space[Any]
    max_episode_steps: int | None
    reproducibility: Reproducibility
    num_rows: int
    num_episodes_per_row: int | None = None
    why_not_single: str = ""
    agents: tuple[str, ...] = ()
    traces: Traces = field(default_factory=dict)


class WorkOrder(Generic[R]):
    """Base of all orders: a slice of work that a worker answers with a report of type R."""


class MomentsFormat(NamedTuple):
    """Moments that messages bring beside their bytes: of all steps, or of a policy's steps.

    Attributes:
        leaves: name and shape of each leaf of the observation space that has moments.
        discount: discount of the returns; None for no moments of returns.
        policy: name of the policy, where there are many agents; otherwise empty.
    """

    leaves: tuple[tuple[str, tuple[int, ...]], ...] = ()
    discount: float | None = None
    policy: str = ""


@dataclass(frozen=True)
class ColumnFormat:
    """How columns may be written.

    Attributes:
        compression: codec for columns that shrink by it; None for no compression.
        frames_once: whether observations that are stacks of frames may be written with each frame once.
        all_states: whether recurrent states are written for each step, instead of for each segment only.
        last_values: whether the value of each segment's last observation is written.
        last_states: whether the recurrent states after each segment's last step are written.
        returns_before: whether the sum of rewards is written that each segment's episode has before it.
        moments: moments that come beside the columns; where there are many agents, of each policy. Empty for none.
        policies: names of the policies whose segments are written, where there are many agents; empty for all.
    """

    compression: Compression.ValueType | None = None
    frames_once: bool = False
    all_states: bool = False
    last_values: bool = False
    last_states: bool = False
    returns_before: bool = False
    moments: tuple[MomentsFormat, ...] = ()
    policies: tuple[str, ...] = ()

    @property
    def return_discount(self) -> float | None:
        """Discount of the returns that have moments; None if there are none."""
        return self.moments[0].discount if self.moments else None


PLAIN = ColumnFormat()
"""Format that every client can read."""

ENDING = np.dtype(
    [
        ("episode_index", "<u8"),
        ("total_reward", "<f8"),
        ("length", "<u4"),
        ("row", "<u4"),
        ("seconds", "<f4"),
        ("terminated", "?"),
        ("truncated", "?"),
    ]
)
"""The end of an episode: its return and length, with the steps of earlier calls; the row within its worker; the seconds
from its start to its end; and how it ended.
"""


@dataclass(frozen=True)
class Message:
    """Position and content of a message in the buffer of a report.

    Attributes:
        offset: position of its first byte.
        size: number of bytes.
        num_steps: number of steps in it.
        num_episodes: number of episodes that end in it.
        dropped_infos: number of values of infos, by name, that the episodes or fragments which end in it lack.
        raw_size: number of bytes that it would have with all columns plain.
        endings: ends of the episodes that end in it, as the bytes of an array of `ENDING`: an array of its own would
            take five times as long to send.
        moments: moments of the episodes or fragments that end in it, for each leaf of each `MomentsFormat` and then its
            returns: the bytes of float64 (N, 1 + 2 K), as in `rollserve_wire.moments`.
        num_non_finite_steps: number of steps in it with a NaN or an infinity; see `non_finite_step_count` of Account.
    """

    offset: int
    size: int
    num_steps: int
    num_episodes: int
    dropped_infos: Mapping[str, int] = field(default_factory=dict)
    raw_size: int = 0
    endings: bytes = b""
    moments: tuple[bytes, ...] = ()
    num_non_finite_steps: int = 0


class AgentOutcome(NamedTuple):
    """Return of an agent in an episode of an environment with many agents.

    Attributes:
        agent: position of the agent among the environment's possible agents.
        policy: name of the policy that acted for it.
        version: version of the policy.
        total_reward: sum of its rewards, in all of its lives.
    """

    agent: int
    policy: str
    version: int
    total_reward: float


class Outcome(NamedTuple):
    """Return, length and end of an episode.

    Attributes:
        episode_index: index of the episode; in reports about populations, the work unit.
        total_reward: sum of its rewards, added up in the order of its steps.
        length: number of its steps.
        terminated: whether the environment terminated it.
        truncated: whether it was truncated.
        agents: of an environment with many agents, the outcomes of the agents that made a step.
    """

    episode_index: int
    total_reward: float
    length: int
    terminated: bool
    truncated: bool
    agents: tuple[AgentOutcome, ...] = ()


class EpisodeFailure(NamedTuple):
    """An error that an environment raised while it was sampled.

    Attributes:
        indices: indices of the episodes that failed with it: several where rows are stepped together. In reports about
            populations, work units.
        num_attempts: number of attempts at them that have failed, including this one.
        is_final: whether the worker gives the episodes up. Otherwise they run again in a fresh environment.
        text: the error, and where it was raised.
    """

    indices: tuple[int, ...]
    num_attempts: int
    is_final: bool
    text: str


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
        num_steps: number of steps that the call ends with; None if it is not known.
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
        first_env_seeds: seeds of the environments in the first episode of each row of all workers; empty if they derive
            from the root seed, as those of later episodes do.
    """

    work_id: int
    root_seed: int
    env_version: int
    max_episode_length: int | None
    soft_horizon: bool
    stride: int
    return_discount: float | None = None
    first_env_seeds: tuple[int, ...] = ()


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


class External(NamedTuple):
    """Acting by a client, in place of an agent.

    Attributes:
        infos: infos that come with each step's actions.
        shows_infos: whether the client gets the environments' infos of each step.
        agents: names of the agents that the client acts for, where there are many; in a request, none for all of them.
        policy_version: version of the client's policy, which comes with its first actions in a call.
    """

    infos: tuple[InfoSpec, ...] = ()
    shows_infos: bool = False
    agents: tuple[str, ...] = ()
    policy_version: int = 0


class DrivenActions(NamedTuple):
    """A client's actions of one step in a worker's M rows.

    Attributes:
        actions: for each leaf of the action space the bytes of (M, *A). Where there are many agents, for each kind of
            them and each leaf of its action space, with an action for each that acts; empty if none of them acts.
        infos: for each info the bytes of (M, *I), alike.
        idle: positions of the rows that make no step.
    """

    actions: tuple[bytes, ...]
    infos: tuple[bytes, ...]
    idle: tuple[int, ...] = ()


class DrivenRows(NamedTuple):
    """What a client gets to know of a worker's rows.

    Attributes:
        step: number of steps of the call after which this is so.
        outcome: what followed the last actions; empty if no step was made.
        observations: observations for the next actions.
        wanted: number of actions that are wanted next: of all rows, or, where there are many agents, of each kind.
    """

    step: int
    outcome: bytes
    observations: bytes
    wanted: tuple[int, ...]


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
        external: acting by a client; None for the agent of `policy_version`.
    """

    call_id: int
    policy_version: int
    exploration: Exploration
    num_row_steps: int
    num_skipped_steps: int
    max_message_bytes: int
    report_actions: bool
    columns: ColumnFormat | None
    external: External | None = None

    @property
    def acting(self) -> tuple[int, Exploration, External | None]:
        """What determines who acts, and how."""
        return self.policy_version, self.exploration, self.external

    @property
    def recorded_version(self) -> int:
        """Version of what acts in rows with one agent."""
        return self.policy_version if self.external is None else self.external.policy_version


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
        actions: a client's actions of the steps that follow the ones of earlier orders.
    """

    sequence: RowSequenceSpec
    assignment: FragmentAssignment
    states: Sequence[RowState] | None
    write_bytes: int
    seconds: float
    enough_row_steps: int | None = None
    actions: Sequence[DrivenActions] = ()


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
        driven: what a client gets to know of its rows, once all of its actions so far are carried out.
        num_idle_steps: number of steps that rows have left out, beside those that they made.
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
    driven: DrivenRows | None = None
    num_idle_steps: int = 0


Members = Mapping[str, Mapping[str, np.ndarray]]
"""Parameters (K, *shape) of K members by policy and name; the policy of an environment with one agent is ''."""

NO_MEMBERS: Members = MappingProxyType({})
"""Parameters of no population."""


@dataclass(frozen=True)
class Population:
    """The episodes of a population, which are a function of these values (except `work_id`) and of the parameters.

    Work units are numbered through: episode j of member k is unit k * `num_episodes` + j.

    Attributes:
        work_id: the pool's number for the work, never used twice, for any kind of work.
        root_seed: root seed of the sequence, from 0 to 2**64 - 1.
        policy_version: version of the agent that the members differ from in their parameters only.
        env_version: version of the environment.
        num_members: number of members.
        num_episodes: number of episodes of each member.
        first_index: index of the first episode of the first member.
        shares_episodes: whether the episodes of all members have the same indices.
        max_episode_length: number of steps after which an episode is truncated; None for the environment's own limit.
        exploration: how freely the members act.
    """

    work_id: int
    root_seed: int
    policy_version: int
    env_version: int
    num_members: int
    num_episodes: int
    first_index: int
    shares_episodes: bool
    max_episode_length: int | None = None
    exploration: Exploration = DEFAULT_EXPLORATION

    @property
    def num_units(self) -> int:
        """Number of episodes of all members."""
        return self.num_members * self.num_episodes

    def member_of(self, unit: int) -> int:
        """Return the member that runs a unit."""
        return unit // self.num_episodes

    def index_of(self, unit: int) -> int:
        """Return the index of a unit's episode in the sequence of the root seed."""
        return self.first_index + (unit % self.num_episodes if self.shares_episodes else unit)


@dataclass(frozen=True)
class PopulationOrder(WorkOrder["PopulationReport"]):
    """A slice of work on a population that the worker has.

    Attributes:
        work_id: number of the work.
        begin: units to begin when rows are free, the lowest first.
        seconds: upper bound for the time to step environments. Every row with a unit makes at least one step.
    """

    work_id: int
    begin: tuple[range, ...]
    seconds: float


@dataclass(frozen=True)
class PopulationReport:
    """Answer to a `PopulationOrder`.

    Attributes:
        outcomes: outcomes of the units that ended; each `episode_index` is a unit.
        num_simulated_steps: number of steps that rows made.
        sampling_seconds: time spent on the order.
        environment_seconds, policy_seconds: as in `Report`.
        failure: error after which the pool has to close the work; None if there was none.
        env_failures: errors of environments; their `indices` are units.
        num_lost_steps: number of steps that were thrown away because environments failed.
        encoding_seconds: as in `Report`; outcomes are not encoded.
    """

    encoding_seconds: ClassVar[float] = 0.0

    outcomes: tuple[Outcome, ...]
    num_simulated_steps: int
    sampling_seconds: float
    failure: DomainError | None = None
    env_failures: tuple[EpisodeFailure, ...] = ()
    num_lost_steps: int = 0
    environment_seconds: float = 0.0
    policy_seconds: float = 0.0
