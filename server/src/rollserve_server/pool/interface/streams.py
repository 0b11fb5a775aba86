"""Streams: requests for rounds on and on, what their clients have taken, and the rounds that are sent."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollserve_server.pool.interface.requests import SamplingOptions

if TYPE_CHECKING:
    from rollserve_server.pool.accounts.account import Account
    from rollserve_server.pool.interface.requests import MessageFormat
    from rollserve_server.pool.interface.targets import AtLeast
    from rollserve_server.pool.interface.updates import AgentUpdate

__all__ = [
    "MAX_STREAMS",
    "ApplyUpdate",
    "RowFragments",
    "StreamBounds",
    "StreamClient",
    "StreamRequest",
    "StreamRound",
    "WhenFull",
]

MAX_STREAMS = 16
"""Streams of a sampler at a time. Each may hold what is sampled and not sent while it waits for its client."""


class ApplyUpdate(enum.Enum):
    """When an update of the agent takes effect in a stream."""

    NEXT_FRAGMENT = enum.auto()
    NEXT_STEP = enum.auto()
    NEXT_EPISODE = enum.auto()


class WhenFull(enum.Enum):
    """What a stream does when as much is sampled and not sent as may be."""

    WAIT = enum.auto()
    DROP_OLDEST = enum.auto()


@dataclass(frozen=True)
class RowFragments:
    """Rounds with the same number of steps of each row.

    Attributes:
        num_row_steps: number of steps of each row in a round.
        soft_horizon: whether an episode that reaches the limit of its length ends without a reset of its environment.
        row_step_count: number of steps that each row has made in the sequence of the seed; None for its beginning.
    """

    num_row_steps: int
    soft_horizon: bool = False
    row_step_count: int | None = None


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
