"""Requests: what the gateway asks of the pool, as plain values."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from rollserve_server.agents import DEFAULT_EXPLORATION, PolicySource
from rollserve_server.sampling import PLAIN
from rollserve_wire.environments import EnvChange, EnvSpec

if TYPE_CHECKING:
    from rollserve_server.agents import Exploration
    from rollserve_server.envs import Overlay
    from rollserve_server.sampling import ColumnFormat, External
    from rollserve_wire.policy_map import PolicyMap


__all__ = [
    "ANY_VERSIONS",
    "DISCARD",
    "MAX_STREAMS",
    "AgentChange",
    "AgentUpdate",
    "ApplyUpdate",
    "AtLeast",
    "DriveRequest",
    "DriveResumption",
    "EnvUpdate",
    "EvaluationRequest",
    "Exactly",
    "Expectation",
    "Fragments",
    "InAll",
    "MessageFormat",
    "NewDataset",
    "PolicyUpdate",
    "PolicyUpdates",
    "PopulationRequest",
    "RowFragments",
    "RowUpdates",
    "SampleRequest",
    "SamplingOptions",
    "SessionReading",
    "StreamBounds",
    "StreamClient",
    "StreamRequest",
    "Target",
    "VideoRequest",
    "WhenFull",
]


@dataclass(frozen=True)
class Expectation:
    """Versions that a client expects to be current.

    Attributes:
        policy_version: version of the agents; None for any.
        env_version: version of the environments; None for any.
        client_id: id of the client. If it is not empty, a version that is expected at all has to be made by this
            client, whatever its number: updates of the client may overtake its calls. Environments of others are as
            expected if they have the expected number and this client has made the current agents.
    """

    policy_version: int | None = None
    env_version: int | None = None
    client_id: str = ""


ANY_VERSIONS = Expectation()
"""No expectation: the client takes the sampler as it is."""


@dataclass(frozen=True)
class AtLeast:
    """The fewest episodes, in the order of their indices, that have this many steps in all.

    Attributes:
        num_steps: number of steps.
        counts_agent_steps: whether they are the steps of all agents, instead of the environment's.
    """

    num_steps: int
    counts_agent_steps: bool = False


@dataclass(frozen=True)
class Exactly:
    """A target of equally many episodes on each worker: the first on worker 0, the next on worker 1, and so on.

    Attributes:
        num_episodes_per_worker: number of episodes on each worker.
        num_skipped: number of episodes at the beginning that are not delivered.
    """

    num_episodes_per_worker: int
    num_skipped: int = 0


@dataclass(frozen=True)
class InAll:
    """A number of episodes, in the order of their indices, wherever they run."""

    num_episodes: int


Target = AtLeast | Exactly | InAll
"""Whole episodes."""


@dataclass(frozen=True)
class Fragments:
    """An exact number of steps, the same for each row, whose episodes go on from call to call.

    Attributes:
        num_steps: number of steps of all rows together.
        num_skipped_steps: number of steps at the beginning that are not delivered.
        soft_horizon: whether an episode that reaches the limit of its length ends without a reset of its environment.
        row_step_count: number of steps that each row has made in the sequence of the seed; None for its beginning.
        fraction_of_workers: part of the workers, over 0 and up to 1, that has to make all its steps: then the others
            stop with the steps that they have.
        fraction_of_samples: part of their steps, from 0 to 1, that the others have to make before they stop.
        first_env_seeds: as in `RowFragments`.
    """

    num_steps: int
    num_skipped_steps: int = 0
    soft_horizon: bool = False
    row_step_count: int | None = None
    fraction_of_workers: float = 1.0
    fraction_of_samples: float = 0.0
    first_env_seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class MessageFormat:
    """How episodes are written, and sent.

    Attributes:
        max_message_bytes: size that no message may exceed.
        columns: how columns may be written; None to discard what is sampled.
        accepts_joined: whether the client takes several small messages as one.
        accepts_shared_memory: whether the client takes messages from memory that it shares with the server.
    """

    max_message_bytes: int
    columns: ColumnFormat | None = PLAIN
    accepts_joined: bool = False
    accepts_shared_memory: bool = False


DISCARD = MessageFormat(0, None)
"""Message format of calls that deliver no episodes."""


@dataclass(frozen=True)
class SamplingOptions:
    """Options of sampling: the episodes that a call samples, and its agent.

    Attributes:
        policy_version: version of the agent that acts; None for the current one.
        min_policy_version: the call fails if the version that would act is older; None for any.
        env_version: version of the environment to act in; None for the current one.
        expected: the call fails if other versions are current.
        seed: root seed of the episodes; None for an own sequence, or the seed that all evaluations share.
        first_index: index of the first episode in the sequence of the seed.
        max_episode_length: number of steps after which an episode is truncated; None for the pool's limit.
        run: name of the sampler's run that versions and seed belong to; None for the present one.
        exploration: how freely the agent acts.
        skip_failed: whether the call goes on without episodes whose environments fail in every attempt.
    """

    policy_version: int | None = None
    min_policy_version: int | None = None
    env_version: int | None = None
    expected: Expectation = ANY_VERSIONS
    seed: int | None = None
    first_index: int = 0
    max_episode_length: int | None = None
    run: str | None = None
    exploration: Exploration = DEFAULT_EXPLORATION
    skip_failed: bool = False


@dataclass(frozen=True)
class SampleRequest:
    """A request for episodes, or for fragments.

    Attributes:
        target: what to deliver.
        messages: how to write it.
        options: options of sampling.
        num_workers: the call fails if there are more or fewer workers; None for any number.
        prefetch: whether workers go on after the call with what the same request would ask for next.
        agent_update: update for all workers that the call makes first, to sample with the new version.
        return_spaces: whether the beginning has the environment's spaces.
        observation_moments: whether the account has moments of the observations.
        return_discount: discount of the returns that the account has moments of; None for none.
        external: acting by a client, in place of the agent; None for the agent.
    """

    target: Target | Fragments
    messages: MessageFormat
    options: SamplingOptions = field(default_factory=SamplingOptions)
    num_workers: int | None = None
    prefetch: bool = False
    agent_update: AgentUpdate | None = None
    return_spaces: bool = False
    observation_moments: bool = False
    return_discount: float | None = None
    external: External | None = None


@dataclass(frozen=True)
class EvaluationRequest:
    """A request for returns and lengths of episodes.

    Attributes:
        num_episodes: number of episodes.
        options: options of sampling.
        env: environment to act in instead of the pool's own; None for the pool's.
        messages: how to write the episodes, if they are delivered, too; `DISCARD` if not.
        policy_maps: maps of policies that the episodes have by turns; none for the map of the agent's version.
    """

    num_episodes: int
    options: SamplingOptions = field(default_factory=SamplingOptions)
    env: EnvSpec | None = None
    messages: MessageFormat = DISCARD
    policy_maps: Sequence[PolicyMap] = ()


@dataclass(frozen=True, eq=False)
class PopulationRequest:
    """A request for returns and lengths of episodes of many parameter sets.

    Attributes:
        parameters: by name (K, *shape), the parameters of K members; none in an environment with many agents.
        num_episodes: number of episodes of each member.
        options: options of sampling.
        env: environment to act in instead of the pool's own; None for the pool's.
        shares_episodes: whether all members have the same episodes.
        policies: by policy, the same parameters; none in an environment with one agent.
        policy_maps: maps of policies that the episodes have by turns; none for the map of the agent's version.
        messages: how to write the episodes: not at all.
    """

    parameters: Mapping[str, np.ndarray]
    num_episodes: int
    options: SamplingOptions = field(default_factory=SamplingOptions)
    env: EnvSpec | None = None
    shares_episodes: bool = True
    policies: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    policy_maps: Sequence[PolicyMap] = ()
    messages: ClassVar[MessageFormat] = DISCARD


MAX_STREAMS = 16
"""Streams of a sampler at a time. Each may hold what is sampled and not sent while it waits for its client."""


class ApplyUpdate(enum.Enum):
    """Time at which an update of the agent takes effect in a stream."""

    NEXT_FRAGMENT = enum.auto()
    NEXT_STEP = enum.auto()
    NEXT_EPISODE = enum.auto()


class WhenFull(enum.Enum):
    """Behavior of a stream when as much is sampled and not sent as may be."""

    WAIT = enum.auto()
    DROP_OLDEST = enum.auto()


@dataclass(frozen=True)
class RowFragments:
    """Rounds with the same number of steps of each row.

    Attributes:
        num_row_steps: number of steps of each row in a round.
        soft_horizon: whether an episode that reaches the limit of its length ends without a reset of its environment.
        row_step_count: number of steps that each row has made in the sequence of the seed; None for its beginning.
        first_env_seeds: seeds of the environments in the first episode of each row of all workers; empty if they derive
            from the root seed.
    """

    num_row_steps: int
    soft_horizon: bool = False
    row_step_count: int | None = None
    first_env_seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class StreamBounds:
    """How far a stream goes, and how far ahead of its client.

    Attributes:
        num_steps: number of steps after which the stream ends; None for no end.
        max_policy_lag: largest number of updates between the version of a round and the current one when the round is
            sent; None for any.
        max_ahead_steps: number of steps that may be sampled and not sent; None for one round.
        max_ahead_bytes: number of bytes that may be sampled and not sent; None for as many as the server allows, up to
            64 MiB.
        max_steps_per_version: number of steps that are sampled with each version; None for any.
        max_unread_rounds: number of rounds that may be sent and not taken; None for any.
        when_full: what happens when as much is sampled and not sent as may be.
    """

    num_steps: int | None = None
    max_policy_lag: int | None = None
    max_ahead_steps: int | None = None
    max_ahead_bytes: int | None = None
    max_steps_per_version: int | None = None
    max_unread_rounds: int | None = None
    when_full: WhenFull = WhenFull.WAIT


@dataclass(frozen=True)
class StreamRequest:
    """A request for rounds on and on.

    Attributes:
        rounds: what each round has.
        messages: how to write it.
        options: options of sampling.
        bounds: how far the stream goes.
        apply_update: when an update of the agent takes effect.
        first_number: number of the first round.
        num_workers: the stream fails if there are more or fewer workers at its beginning; None for any number.
        agent_update: update for all workers that the stream makes first.
        return_spaces: whether the beginning has the environment's spaces.
        observation_moments: whether the account of each round has moments of the observations.
        return_discount: discount of the returns that the account of each round has moments of; None for none.
    """

    rounds: RowFragments | AtLeast
    messages: MessageFormat
    options: SamplingOptions = field(default_factory=SamplingOptions)
    bounds: StreamBounds = field(default_factory=StreamBounds)
    apply_update: ApplyUpdate = ApplyUpdate.NEXT_FRAGMENT
    first_number: int = 0
    num_workers: int | None = None
    agent_update: AgentUpdate | None = None
    return_spaces: bool = False
    observation_moments: bool = False
    return_discount: float | None = None


class NewDataset(NamedTuple):
    """A dataset that is recorded.

    Attributes:
        id: its id.
        metadata: what it says about itself if it is new, by Minari's names.
    """

    id: str
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class DriveRequest:
    """A request for a session, in which the client acts.

    Attributes:
        rounds: what each round has.
        messages: how to write it.
        external: what comes with the client's actions.
        options: options of sampling.
        num_workers: the session fails if there are more or fewer workers at its beginning; None for any number.
        return_spaces: whether the beginning has the environment's spaces.
        min_ready: number of rows that are enough to tell the client of a step; 0 if all rows step together.
        lease_seconds: how long the session outlives the stream of its client.
        dataset: the dataset that is recorded, instead of delivering rounds; None for none.
        to_reader: whether another client gets the rounds, by a `SessionReading`.
    """

    rounds: RowFragments
    messages: MessageFormat
    external: External
    options: SamplingOptions = field(default_factory=SamplingOptions)
    num_workers: int | None = None
    return_spaces: bool = False
    min_ready: int = 0
    lease_seconds: float = 0.0
    dataset: NewDataset | None = None
    to_reader: bool = False


@dataclass(frozen=True)
class DriveResumption:
    """A request to go on with a session.

    Attributes:
        token: the session's token.
        num_rounds: number of rounds that the client has got.
    """

    token: str
    num_rounds: int = 0


@dataclass(frozen=True)
class SessionReading:
    """A request for the rounds of a session that another client acts in.

    Attributes:
        token: the session's token.
        num_rounds: number of rounds of the session that the client has got.
    """

    token: str
    num_rounds: int = 0


class StreamClient:
    """The client of a stream, as far as the stream hears of it.

    Attributes:
        num_taken: number of rounds that the client has taken.
        has_ended: whether the client has ended the stream.
        changed: set when one of them has changed; whoever waits clears it.
    """

    def __init__(self) -> None:
        self.num_taken = 0
        self.has_ended = False
        self.changed = asyncio.Event()

    def take(self, num_rounds: int) -> None:
        """Record that the client has taken so many rounds in all."""
        self.num_taken = max(self.num_taken, num_rounds)
        self.changed.set()

    def end(self) -> None:
        """Record that the client wants nothing more than what has begun to be sent."""
        self.has_ended = True
        self.changed.set()


@dataclass(frozen=True, eq=False)
class AgentChange:
    """A change of the settings of the current agent, which is a Python agent.

    Attributes:
        kwargs: keyword arguments of its factory that are added or replaced.
        parameters: parameters that are added or replaced.
    """

    kwargs: Mapping[str, object]
    parameters: Mapping[str, np.ndarray]


PolicyUpdate = PolicySource | Mapping[str, np.ndarray] | AgentChange
"""A whole agent; or parameters for the current one, or a change of it."""


@dataclass(frozen=True, eq=False)
class PolicyUpdates:
    """Updates of policies by name, and of the map from agents to them.

    Attributes:
        policies: an update for each new or changed policy.
        policy_map: the map; None for the present one.
    """

    policies: Mapping[str, PolicyUpdate]
    policy_map: PolicyMap | None


AgentUpdate = PolicyUpdate | PolicyUpdates
"""An update of the agent; or of policies by name, for an environment with many agents."""


@dataclass(frozen=True)
class RowUpdates:
    """Updates that differ between the rows of a worker.

    Attributes:
        updates: for each row a whole environment, a change of the current one, or None to leave it as it is.
    """

    updates: tuple[EnvSpec | EnvChange | None, ...]


EnvUpdate = EnvSpec | EnvChange | RowUpdates
"""A whole environment or a change of the current one, for all rows of a worker; or one update for each row."""


@dataclass(frozen=True)
class VideoRequest:
    """The form of a video.

    Attributes:
        format: raw pictures, or MP4.
        fps: pictures per second; None for the environment's own number.
        overlays: texts in the pictures, one line for each.
    """

    format: Literal["raw", "mp4"]
    fps: float | None = None
    overlays: tuple[Overlay, ...] = ()
