"""Options that sampling calls and evaluations share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve_server.gateway.messages.exploration import exploration_from_proto
from rollserve_server.gateway.messages.fields import MAX_FIRST_INDEX, MAX_STEPS, in_field, in_range, optional
from rollserve_server.pool import SamplingOptions

if TYPE_CHECKING:
    from rollserve.v1 import sampler_service_pb2 as pb

__all__ = ["sampling_options_from_proto"]


def sampling_options_from_proto(options: pb.SamplingOptions | pb.EvaluationOptions) -> SamplingOptions:
    """Return the options that say which episodes a call samples, and how its agent acts.

    Raises:
        InvalidValueError: a field is out of range.
    """
    if options.HasField("max_episode_length"):
        in_range("max_episode_length", options.max_episode_length, 1, MAX_STEPS)
    with in_field("exploration"):
        exploration = exploration_from_proto(options.exploration)
    return SamplingOptions(
        policy_version=optional(options, "policy_version"),
        expected_policy_version=optional(options, "expected_policy_version"),
        min_policy_version=optional(options, "min_policy_version"),
        env_version=optional(options, "environment_version"),
        seed=optional(options, "seed"),
        first_index=in_range("first_episode_index", options.first_episode_index, 0, MAX_FIRST_INDEX),
        max_episode_length=optional(options, "max_episode_length"),
        run=optional(options, "sampler_run"),
        exploration=exploration,
        skip_failed=options.skip_failed_episodes,
    )
