"""Results: what the gateway gets of the pool, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rollserve_server.pool.accounts import WorkerTotals

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from gymnasium import Space
    from numpy.typing import NDArray

    from rollserve_server.agents import AgentSpec
    from rollserve_server.envs import ProfileDescription
    from rollserve_server.pool.accounts import Account, Counters
    from rollserve_server.sampling import EnvDescription, Message, Outcome, WorkerIdentity
    from rollserve_wire.environments import EnvSpec, Reproducibility


__all__ = [
    "AgentUpdated",
    "Beginning",
    "Delivery",
    "DrivenStep",
    "EnvUpdated",
    "EnvValues",
    "Evaluation",
    "PoolStatus",
    "Progress",
    "Recorded",
    "Recorder",
    "ShownRows",
    "StreamRound",
    "WorkerStatus",
]


@dataclass(frozen=True)
class Beginning:
    """Inputs that determine a call's episodes, so that the call can be repeated, or resumed after an interruption.

    Attributes:
        seed: root seed of the episodes.
        first_episode_index: index of the first episode in the sequence of the seed.
        policy_version: version of the agent that acts.
        env_version: version of the environment that it acts in; 0 for one that the request brought.
        reproducibility: which unit of work the same seed gives again.
        run: name of the sampler's run.
        num_rows: of fragments, the number of rows of all workers; 0 else.
        row_step_count: of fragments, the number of steps that each row had made before.
        num_workers: number of workers, on which exact episodes and fragments depend; others are the same with any
            number.
        agent_updated: whether the call has updated the agent.
        spaces: spaces of the observations and of the actions, if the request asks for them.
        session_token: what takes a session up again; empty for none.
        has_joint_rows: of fragments, whether each worker steps its rows at once.
        agents: of sessions with spaces, names of the possible agents, if the environment has many.
        in_turn: whether these agents act one after the other.
    """

    seed: int
    first_episode_index: int
    policy_version: int
    env_version: int
    reproducibility: Reproducibility
    run: str
    num_rows: int = 0
    row_step_count: int = 0
    num_workers: int = 0
    agent_updated: bool = False
    spaces: tuple[Space[Any], Space[Any]] | None = None
    session_token: str = ""
    has_joint_rows: bool = False
    agents: tuple[str, ...] = ()
    in_turn: bool = False


@dataclass(frozen=True)
class Delivery:
    """Messages on their way to the client, in order, and the buffer that holds them."""

    buffer: NDArray[np.uint8]
    messages: Sequence[Message]


@dataclass(frozen=True)
class Recorded:
    """What a recording has made of a dataset; see `Recording` in `protos/rollserve/v1/datasets.proto`."""

    dataset: str
    num_episodes: int
    num_steps: int
    num_bytes: int
    num_added_episodes: int
    num_added_steps: int
    seed: int
    next_episode_index: int


class Recorder(Protocol):
    """What takes the rounds of a session in place of its client."""

    async def add(self, delivery: Delivery) -> None:
        """Take a delivery, once there is room; raise DomainError if it cannot be kept."""

    async def end(self, error: BaseException | None = None) -> Recorded:
        """Keep the rest, and end, because of an error if there is one. May be called more than once."""


@dataclass(frozen=True)
class Progress:
    """A sign of life.

    Attributes:
        num_simulated_steps: number of steps simulated for the call so far.
        num_ended_episodes: number of episodes of the call that have ended so far.
        warning: something about the call that its client should know, in one sentence; usually empty.
        waiting_for: missing worker that the call waits for, and why it is missing; usually empty. Of a stream, also
            its client or an update of the agent.
        num_rounds, num_stale_steps, num_overflow_steps, lag_step_counts, worker_idle_seconds: of a stream, as in its
            account, so far.
        num_ahead_steps, ahead_bytes: of a stream, what is sampled and not sent.
    """

    num_simulated_steps: int
    num_ended_episodes: int = 0
    warning: str = ""
    waiting_for: str = ""
    num_rounds: int = 0
    num_stale_steps: int = 0
    num_overflow_steps: int = 0
    num_ahead_steps: int = 0
    ahead_bytes: int = 0
    lag_step_counts: Sequence[int] = ()
    worker_idle_seconds: float = 0.0


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of episodes.

    Attributes:
        outcomes: one for each episode, in the order of the indices; of a population, in the order of its units.
        account: what was simulated for it.
        reproducibility: which unit of work the same seed gives again.
        num_members: number of members of a population; 1 else.
        agents: names of the possible agents of an environment with many agents; none else.
    """

    outcomes: Sequence[Outcome]
    account: Account
    reproducibility: Reproducibility
    num_members: int = 1
    agents: Sequence[str] = ()


class ShownRows(NamedTuple):
    """What the client of a session gets to know of a worker's rows.

    Attributes:
        rows: their numbers among all rows; None for all rows of all workers, in order.
        num_steps: number of steps that each of them has made.
        data: a serialized `DrivenRows` message, without these.
    """

    rows: range | None
    num_steps: int
    data: bytes


class DrivenStep(NamedTuple):
    """What the client of a session gets to know of a step.

    Attributes:
        step: number of the step that actions are wanted for.
        workers: what it gets to know of each worker's rows.
    """

    step: int
    workers: Sequence[ShownRows]


@dataclass(frozen=True)
class StreamRound:
    """A round that has been sent; see `StreamRound` in `protos/rollserve/v1/sampler_service.proto` for the fields.

    Attributes:
        account: account of the round.
    """

    round_number: int
    seed: int
    policy_version: int
    env_version: int
    row_step_count: int
    first_episode_index: int
    num_steps: int
    num_episodes: int
    policy_lag: int
    num_rows: int
    num_workers: int
    next_row_step_count: int
    next_episode_index: int
    account: Account


@dataclass(frozen=True)
class AgentUpdated:
    """The workers' new agents.

    Attributes:
        version: their version.
        env_version: version of the environments that they were checked against.
        agents: one for all, or one for each worker.
        replaced: the agents of the version before; None if there was none.
    """

    version: int
    env_version: int
    agents: Sequence[AgentSpec] = ()
    replaced: Sequence[AgentSpec] | None = None


@dataclass(frozen=True)
class EnvUpdated:
    """The workers' new environments.

    Attributes:
        version: their version.
        specs: one for all, one for each worker, or one for each row of each worker.
        description: their spaces, and how rows are stepped.
        replaced_specs: the environments of the version before, in the same form.
    """

    version: int
    specs: Sequence[EnvSpec]
    description: EnvDescription
    replaced_specs: Sequence[EnvSpec] = ()


@dataclass(frozen=True)
class EnvValues:
    """Values that a method of the environments has returned.

    Attributes:
        version: version of the environments.
        values: the values as JSON: one for all, one for each worker, or one for each row of each worker.
    """

    version: int
    values: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class WorkerStatus(WorkerTotals):
    """The state of a slot, and the totals of the workers that it has had.

    Attributes:
        index: index of the slot.
        healthy: whether it has a worker.
        is_leaving: whether it takes no new calls, and goes when no call uses it.
        given_up: whether it has no worker and gets none for now, because too many were lost.
        identity: where the worker runs, or the last one ran.
        num_rows: number of environments that step at once.
    """

    index: int
    healthy: bool
    is_leaving: bool
    given_up: bool
    identity: WorkerIdentity
    num_rows: int


@dataclass(frozen=True)
class ScalingStatus:
    """How the number of workers follows the load.

    Attributes:
        min_workers: least number of workers.
        max_workers: greatest number of workers.
        num_wanted: number that the present load asks for.
        held_by: what would end or differ with another number, so that it stays; empty if nothing would.
        num_grown: number of times that workers were added.
        num_shrunk: number of times that workers were removed.
    """

    min_workers: int
    max_workers: int
    num_wanted: int
    held_by: str
    num_grown: int
    num_shrunk: int


@dataclass(frozen=True)
class PoolStatus:
    """The state of a pool.

    Attributes:
        env_specs: one for all workers, one for each worker, or one for each row of each worker.
        env_version: version of the environment.
        env: spaces of the environment, and how rows are stepped.
        agent_kinds: one for all workers, or one for each worker; empty before there is an agent.
        policy_version: version of the agent; 0 before there is one.
        policy_updated_seconds: when that version was accepted, in seconds since 1970; 0 before there is one.
        seed: root seed of the own sequence that calls use one after the other.
        next_index: index of its next episode.
        workers: the slots, in the order of their indices; behind them slots that are leaving.
        counters: totals of calls.
        num_simulated_steps: number of steps that all workers have simulated, also workers of removed slots.
        num_worker_restarts: number of attempts to replace a worker, also in slots that are gone.
        uptime_seconds: age of the sampler.
        num_running_calls: number of sampling calls and evaluations that run.
        num_queued_calls: number of sampling calls and evaluations that queue.
        min_healthy_workers: number of workers that must be healthy for a call or an update to begin.
        profiles: environments that clients may request by profiles.
        policies: current version of each policy by name, where the agent is policies by name.
        busy_seconds: time in which workers have had orders, added up over all of them.
        scaling: how the number of workers follows the load; None if it does not.
    """

    env_specs: Sequence[EnvSpec]
    env_version: int
    env: EnvDescription
    agent_kinds: Sequence[str]
    policy_version: int
    policy_updated_seconds: float
    seed: int
    next_index: int
    workers: Sequence[WorkerStatus]
    counters: Counters
    num_simulated_steps: int
    num_worker_restarts: int
    uptime_seconds: float
    num_running_calls: int
    num_queued_calls: int
    min_healthy_workers: int = 0
    profiles: Sequence[ProfileDescription] = ()
    policies: Mapping[str, int] = field(default_factory=dict)
    busy_seconds: float = 0.0
    scaling: ScalingStatus | None = None

    @property
    def packages(self) -> Mapping[str, str]:
        """Versions of the workers' packages by name; where workers differ, all of them, joined by ` and `."""
        versions: dict[str, dict[str, None]] = {}
        for worker in self.workers:
            for name, version in worker.identity.packages:
                versions.setdefault(name, {})[version] = None
        return {name: " and ".join(sorted(versions[name])) for name in sorted(versions)}
