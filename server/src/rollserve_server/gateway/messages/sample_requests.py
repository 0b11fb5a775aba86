"""Requests for episodes and fragments."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from rollserve_server.errors import InvalidValueError
from rollserve_server.gateway.messages.agents import agent_update_from_proto
from rollserve_server.gateway.messages.fields import MAX_FIRST_INDEX, MAX_STEPS, in_field, in_range, optional
from rollserve_server.gateway.messages.formats import sample_format_from_proto
from rollserve_server.gateway.messages.sampling_options import sampling_options_from_proto
from rollserve_server.pool import AtLeast, Exactly, Fragments, SampleRequest
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from rollserve_server.pool import AgentUpdate, Target

__all__ = [
    "agent_update_from_options",
    "check_count",
    "check_first_index",
    "check_moments",
    "check_no_first_index",
    "sample_request_from_proto",
]

_MAX_EPISODES = 1 << 40
"""Largest number of episodes of a worker. Indices stay below 2**63 with it, the limit of integers in many languages."""


def sample_request_from_proto(
    request: pb.ObtainSamplesRequest | pb.ObtainExactEpisodesRequest, allowed_paths: Collection[Path]
) -> SampleRequest:
    """Return the request for episodes or fragments.

    Raises:
        InvalidValueError: a field is out of range, or does not fit the others.
        NotAllowedError: an argument of an agent is a path that is not allowed; see `check_arguments`.
    """
    target, options = _target_from_proto(request), request.options
    check_count(options, counts_steps=isinstance(target, AtLeast))
    with in_field("options"):
        messages = sample_format_from_proto(options)
        _check_sequence(options, target)
        check_moments(options)
        sampling_options = sampling_options_from_proto(options)
        agent_update = agent_update_from_options(options, allowed_paths)
    return SampleRequest(
        target,
        messages,
        sampling_options,
        num_workers=optional(options, "worker_count"),
        prefetch=options.prefetch,
        agent_update=agent_update,
        return_spaces=options.return_spaces,
        observation_moments=options.observation_moments,
        return_discount=optional(options, "return_discount"),
    )


def agent_update_from_options(options: pb.SamplingOptions, allowed_paths: Collection[Path]) -> AgentUpdate | None:
    """Return the update of the agent that a call makes first, or None; raises as `sample_request_from_proto`."""
    if not options.HasField("agent_update"):
        return None
    with in_field("agent_update"):
        if options.HasField("policy_version"):
            got = f"the policy version {options.policy_version}"
            raise InvalidValueError.of("", expected="none beside a version that acts", got=got)
        return agent_update_from_proto(options.agent_update, allowed_paths)


def check_count(options: pb.SamplingOptions, *, counts_steps: bool) -> None:
    """Raise InvalidValueError if agents' steps shall count where whole episodes are not asked for by their steps."""
    if options.count_agent_steps and not counts_steps:
        expected = "false for exact episodes and fragments, which are not asked for by the steps of agents"
        raise InvalidValueError.of("options.count_agent_steps", expected=expected, got="true")


def check_first_index(options: pb.SamplingOptions) -> None:
    """Raise InvalidValueError for the index of a first episode without the seed that it is in the sequence of."""
    if options.HasField("first_episode_index") and not options.HasField("seed"):
        expected, got = "options.seed beside it", "an index without a seed"
        raise InvalidValueError.of("first_episode_index", expected=expected, got=got)


def check_no_first_index(options: pb.SamplingOptions) -> None:
    """Raise InvalidValueError for the index of a first episode beside fragments."""
    if options.HasField("first_episode_index"):
        expected = "none beside fragments, whose rows begin with episodes of their own"
        raise InvalidValueError.of("options.first_episode_index", expected=expected, got=options.first_episode_index)


def check_moments(options: pb.SamplingOptions) -> None:
    """Raise InvalidValueError for moments of nothing, or for a discount out of range."""
    has_discount = options.HasField("return_discount")
    if options.blackhole and (options.observation_moments or has_discount):
        field = "observation_moments" if options.observation_moments else "return_discount"
        raise InvalidValueError.of(field, expected="none beside blackhole, which delivers nothing", got="moments")
    if not has_discount:
        return
    discount = options.return_discount
    if not 0 <= discount <= 1:
        raise InvalidValueError.of("return_discount", expected="a number from 0 to 1", got=discount)


def _target_from_proto(request: pb.ObtainSamplesRequest | pb.ObtainExactEpisodesRequest) -> Target | Fragments:
    if isinstance(request, pb.ObtainExactEpisodesRequest):
        count = in_range("episode_count_per_worker", request.episode_count_per_worker, 1, _MAX_EPISODES)
        return Exactly(count, request.skip_episode_count)
    num_steps = in_range("step_count", request.step_count, 1, MAX_STEPS)
    if request.HasField("fragments"):
        return _fragments_from_proto(request, num_steps)
    return AtLeast(num_steps, request.options.count_agent_steps)


def _fragments_from_proto(request: pb.ObtainSamplesRequest, num_steps: int) -> Fragments:
    fragments = request.fragments
    check_no_first_index(request.options)
    with in_field("fragments"):
        in_range("row_step_count", fragments.row_step_count, 0, MAX_FIRST_INDEX)
        fraction = fragments.fraction_of_workers if fragments.HasField("fraction_of_workers") else 1.0
        if not 0 < fraction <= 1:
            raise InvalidValueError.of("fraction_of_workers", expected="a number over 0 and up to 1", got=fraction)
        least = fragments.fraction_of_samples
        if not 0 <= least <= 1:
            raise InvalidValueError.of("fraction_of_samples", expected="a number from 0 to 1", got=least)
        if fragments.HasField("fraction_of_samples") and fraction == 1:
            expected = "none without a fraction_of_workers below 1, because all workers make all their steps"
            raise InvalidValueError.of("fraction_of_samples", expected=expected, got=least)
    return Fragments(
        num_steps=num_steps,
        num_skipped_steps=fragments.skip_step_count,
        soft_horizon=fragments.soft_horizon,
        row_step_count=optional(fragments, "row_step_count"),
        fraction_of_workers=fraction,
        fraction_of_samples=least,
    )


def _check_sequence(options: pb.SamplingOptions, target: Target | Fragments) -> None:
    """Raise InvalidValueError for a first index without a seed, or for a prefetch that the sequence does not allow."""
    check_first_index(options)
    if options.prefetch and (options.HasField("seed") or isinstance(target, Fragments)):
        expected = "whole episodes of the sampler's own sequence"
        raise InvalidValueError.of("prefetch", expected=expected, got="a seed or fragments")
