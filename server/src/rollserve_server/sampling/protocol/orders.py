"""Values that orders and reports of all kinds share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np

if TYPE_CHECKING:
    from rollserve_wire.v1.tensor_pb2 import Compression

__all__ = [
    "ENDING",
    "PLAIN",
    "AgentOutcome",
    "ColumnFormat",
    "EpisodeFailure",
    "Message",
    "MomentsFormat",
    "Outcome",
    "WorkOrder",
]

R = TypeVar("R")


class WorkOrder(Generic[R]):
    """Base of all orders: a slice of work that a worker answers with a report of type R."""


class MomentsFormat(NamedTuple):
    """Moments that messages bring beside their bytes: of all steps, or of those of a policy.

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
            returns: the bytes of float64 (N, 1 + 2 K), as in `rollserve._codec.moments`.
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
