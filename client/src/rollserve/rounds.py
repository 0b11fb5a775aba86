"""Rounds of continuous sampling, and its progress."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rollserve_wire.moments import moments_of, policy_moments_of
from rollserve_wire.records import record_from_message
from rollserve_wire.representations import briefly

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollserve_wire.moments import PolicyMoments, RunningMoments
    from rollserve_wire.v1 import episode_batch_pb2
    from rollserve_wire.v1 import sampler_service_pb2 as pb

__all__ = ["Round", "StreamProgress", "round_from_proto", "stream_progress_from_proto"]


@briefly
@dataclass(frozen=True)
class Round:
    """A round of `Sampler.stream`: which version acted, and where the same can be requested again.

    Whole episodes come again from `obtain_samples` with the seed, `first_episode_index`, `policy_version` and
    `env_version`; fragments from `obtain_fragments` with the number of steps, the seed, `row_step_count`, the versions
    and the stream's `return_discount`, as long as the server keeps the version. It knows `row_step_count` of a stream's
    last 16 rounds.

    Attributes:
        number: number of the round; a gap stands for discarded rounds.
        policy_version: version that acted in all of it.
        env_version: version of the environment.
        policy_lag: number of updates of the agent between its version and the time at which the server sent it.
        seed: root seed of the sequence of episodes.
        row_step_count: for fragments, number of steps that each row had made in the sequence before.
        first_episode_index: for whole episodes, index of the first one.
        num_steps: number of steps.
        num_episodes: number of episodes; for fragments, of the episodes that ended.
        num_rows: for fragments, number of rows of all workers; otherwise 0.
        num_workers: number of workers.
        next_row_step_count: for fragments, `row_step_count` of what follows.
        next_episode_index: for whole episodes, index of the episode that follows.
        observation_moments: moments of the round's observations; None without the option `observation_moments`.
        return_moments: moments of the discounted returns after each of its steps; None without the option
            `return_discount`.
        policy_moments: in an environment with many agents, moments of each delivered policy by name, which the two
            attributes above do not have.
    """

    number: int
    policy_version: int
    env_version: int
    policy_lag: int
    seed: int
    row_step_count: int
    first_episode_index: int
    num_steps: int
    num_episodes: int
    num_rows: int
    num_workers: int
    next_row_step_count: int
    next_episode_index: int
    observation_moments: RunningMoments | Any = None
    return_moments: RunningMoments | Any = None
    policy_moments: Mapping[str, PolicyMoments] = field(default_factory=dict)


@briefly
@dataclass(frozen=True)
class StreamProgress:
    """Progress of a stream's rounds, as the server last reported it.

    Attributes:
        num_simulated_steps: steps simulated.
        num_rounds: rounds sent.
        num_stale_steps: steps of discarded rounds that were too old.
        num_overflow_steps: steps of discarded rounds that had to make room.
        num_ahead_steps: steps that are sampled and not sent.
        ahead_bytes: bytes that are sampled and not sent.
        lag_step_counts: steps sent, by the lag of their rounds.
        worker_idle_seconds: time that workers had nothing to do in a round or between two, summed over the workers.
        waiting_for: what the stream waits for; empty for nothing.
    """

    num_simulated_steps: int = 0
    num_rounds: int = 0
    num_stale_steps: int = 0
    num_overflow_steps: int = 0
    num_ahead_steps: int = 0
    ahead_bytes: int = 0
    lag_step_counts: tuple[int, ...] = ()
    worker_idle_seconds: float = 0.0
    waiting_for: str = ""


def round_from_proto(message: pb.StreamRound) -> Round:
    """Return the round that a message describes."""
    observation_moments, return_moments = moments_of(message)
    return record_from_message(
        Round,
        message,
        number=message.round_number,
        num_rows=message.row_count,
        observation_moments=observation_moments,
        return_moments=return_moments,
        policy_moments=policy_moments_of(message),
    )


def stream_progress_from_proto(message: episode_batch_pb2.Progress) -> StreamProgress:
    """Return the progress that a message describes."""
    return record_from_message(StreamProgress, message, lag_step_counts=tuple(message.lag_step_counts))
