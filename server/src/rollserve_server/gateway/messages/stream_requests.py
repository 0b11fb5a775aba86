"""Requests for streams: what they sample, and how far ahead of their clients."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rollserve_server.errors import InvalidValueError
from rollserve_server.gateway.messages.fields import MAX_FIRST_INDEX, MAX_STEPS, in_field, in_range, optional
from rollserve_server.gateway.messages.formats import sample_format_from_proto
from rollserve_server.gateway.messages.sample_requests import (
    agent_update_from_options,
    check_count,
    check_first_index,
    check_moments,
    check_no_first_index,
)
from rollserve_server.gateway.messages.sampling_options import sampling_options_from_proto
from rollserve_server.pool import ApplyUpdate, AtLeast, RowFragments, StreamBounds, StreamRequest, WhenFull
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from rollserve_server.pool import SamplingOptions

__all__ = ["stream_request_from_proto"]

_T = TypeVar("_T")

_MAX_COUNT = 1 << 31
_APPLY_UPDATE: Mapping[int, ApplyUpdate] = {
    pb.APPLY_UPDATE_UNSPECIFIED: ApplyUpdate.NEXT_FRAGMENT,
    pb.APPLY_UPDATE_NEXT_FRAGMENT: ApplyUpdate.NEXT_FRAGMENT,
    pb.APPLY_UPDATE_NEXT_STEP: ApplyUpdate.NEXT_STEP,
    pb.APPLY_UPDATE_NEXT_EPISODE: ApplyUpdate.NEXT_EPISODE,
}
_WHEN_FULL: Mapping[int, WhenFull] = {
    pb.WHEN_FULL_UNSPECIFIED: WhenFull.WAIT,
    pb.WHEN_FULL_WAIT: WhenFull.WAIT,
    pb.WHEN_FULL_DROP_OLDEST: WhenFull.DROP_OLDEST,
}


def stream_request_from_proto(spec: pb.StreamSpec, allowed_paths: Collection[Path]) -> StreamRequest:
    """Return the request for a stream.

    Raises:
        InvalidValueError: a field is out of range, or does not fit the others.
        NotAllowedError: an argument of an agent is a path that is not allowed; see `check_arguments`.
    """
    options = spec.options
    with in_field("options"):
        _check_options(options)
        messages, sampling_options = sample_format_from_proto(options), sampling_options_from_proto(options)
        agent_update = agent_update_from_options(options, allowed_paths)
    rounds = _rounds_from_proto(spec, sampling_options)
    return StreamRequest(
        rounds,
        messages,
        sampling_options,
        _bounds_from_proto(spec),
        _apply_update_from_proto(spec, rounds),
        first_number=in_range("first_round_number", spec.first_round_number, 0, MAX_FIRST_INDEX),
        num_workers=optional(options, "worker_count"),
        agent_update=agent_update,
        return_spaces=options.return_spaces,
        observation_moments=options.observation_moments,
        return_discount=optional(options, "return_discount"),
    )


def _check_options(options: pb.SamplingOptions) -> None:
    """Raise InvalidValueError for options of other calls."""
    if options.HasField("policy_version"):
        expected = "none for a stream, whose rounds have the current one"
        raise InvalidValueError.of("policy_version", expected=expected, got=options.policy_version)
    for name in ("prefetch", "blackhole"):
        if getattr(options, name):
            raise InvalidValueError.of(name, expected="false for a stream", got="true")
    check_moments(options)
    check_first_index(options)


def _rounds_from_proto(spec: pb.StreamSpec, options: SamplingOptions) -> RowFragments | AtLeast:
    match spec.WhichOneof("rounds"):
        case "episodes":
            with in_field("episodes"):
                num_steps = in_range("step_count", spec.episodes.step_count, 1, MAX_STEPS)
                return AtLeast(num_steps, spec.options.count_agent_steps)
        case "fragments":
            return _fragments_from_proto(spec.fragments, spec.options, options)
        case _:
            raise InvalidValueError.of("rounds", expected="fragments or episodes", got="none")


def _fragments_from_proto(
    fragments: pb.StreamedFragments, options: pb.SamplingOptions, sampling_options: SamplingOptions
) -> RowFragments:
    check_no_first_index(options)
    check_count(options, counts_steps=False)
    if sampling_options.skip_failed:
        expected = "false for fragments, whose rows go on from round to round"
        raise InvalidValueError.of("options.skip_failed_episodes", expected=expected, got="true")
    with in_field("fragments"):
        num_row_steps = in_range("fragment_length", fragments.fragment_length, 1, MAX_STEPS)
        in_range("row_step_count", fragments.row_step_count, 0, MAX_FIRST_INDEX)
        if fragments.HasField("row_step_count") and not options.HasField("seed"):
            raise InvalidValueError.of("row_step_count", expected="options.seed beside it", got="none")
    return RowFragments(num_row_steps, fragments.soft_horizon, optional(fragments, "row_step_count"))


def _bounds_from_proto(spec: pb.StreamSpec) -> StreamBounds:
    for name, maximum in (
        ("step_count", MAX_STEPS),
        ("max_ahead_steps", MAX_STEPS),
        ("max_ahead_bytes", MAX_STEPS),
        ("max_steps_per_version", MAX_STEPS),
        ("max_unread_rounds", _MAX_COUNT),
    ):
        value = optional(spec, name)
        if value is not None:
            in_range(name, value, 1, maximum)
    return StreamBounds(
        num_steps=optional(spec, "step_count"),
        max_policy_lag=optional(spec, "max_policy_lag"),
        max_ahead_steps=optional(spec, "max_ahead_steps"),
        max_ahead_bytes=optional(spec, "max_ahead_bytes"),
        max_steps_per_version=optional(spec, "max_steps_per_version"),
        max_unread_rounds=optional(spec, "max_unread_rounds"),
        when_full=_known("when_full", spec.when_full, _WHEN_FULL),
    )


def _apply_update_from_proto(spec: pb.StreamSpec, rounds: RowFragments | AtLeast) -> ApplyUpdate:
    apply_update = _known("apply_update", spec.apply_update, _APPLY_UPDATE)
    refused = ApplyUpdate.NEXT_STEP if isinstance(rounds, AtLeast) else ApplyUpdate.NEXT_EPISODE
    if apply_update is refused:
        kind = "whole episodes" if isinstance(rounds, AtLeast) else "fragments"
        expected = f"another value for {kind}, such as NEXT_FRAGMENT"
        raise InvalidValueError.of("apply_update", expected=expected, got=apply_update.name)
    return apply_update


def _known(field: str, value: int, values: Mapping[int, _T]) -> _T:
    """Return what a number of an enum means; raise InvalidValueError for one of a later version."""
    if value not in values:
        raise InvalidValueError.of(field, expected=f"a number from 0 to {max(values)}", got=value)
    return values[value]
