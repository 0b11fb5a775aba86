"""Requests for episodes and fragments, in calls and in streams: their options, and the form of what they return."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rollserve_server.agents import Exploration
from rollserve_server.errors import InvalidValueError
from rollserve_server.gateway.messages.agents import agent_update_from_proto
from rollserve_server.gateway.messages.fields import (
    MAX_FIRST_INDEX,
    MAX_STEPS,
    expectation_from_proto,
    in_field,
    in_range,
    optional,
)
from rollserve_server.pool import (
    ApplyUpdate,
    AtLeast,
    Exactly,
    Fragments,
    MessageFormat,
    RowFragments,
    SampleRequest,
    SamplingOptions,
    StreamBounds,
    StreamRequest,
    WhenFull,
)
from rollserve_server.sampling import COMPRESSIONS, ColumnFormat
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1 import tensor_pb2

if TYPE_CHECKING:
    from rollserve_server.pool import AgentUpdate, Target
    from rollserve_wire.v1 import agent_versions_pb2, evaluation_pb2

__all__ = [
    "check_first_index",
    "evaluation_format_from_proto",
    "exploration_from_proto",
    "message_limit_from_proto",
    "sample_request_from_proto",
    "sampling_options_from_proto",
    "stream_request_from_proto",
]


_DEFAULT_MESSAGE_BYTES = (4 << 20) - (4 << 10)
"""Just below the size that gRPC's clients accept by default."""
_MIN_MESSAGE_BYTES, _MAX_MESSAGE_BYTES = 4 << 10, 256 << 20

_MIN_FACTOR, _MAX_FACTOR = 1e-6, 1e6
_RANGES = {
    "temperature": (_MIN_FACTOR, _MAX_FACTOR),
    "noise_scale": (_MIN_FACTOR, _MAX_FACTOR),
    "epsilon": (0.0, 1.0),
}
"""Range of each number by the attribute of `Exploration`; the proto field has its plural."""
_MAX_NUMBERS = 1024
"""Largest number of temperatures, noise scales and epsilons each: they are part of each order to a worker."""

_MAX_EPISODES = 1 << 40
"""Largest number of episodes of a worker. Indices stay below 2**63 with it, the limit of integers in many languages."""

_T = TypeVar("_T")

_MAX_UNREAD_ROUNDS = 1 << 31
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


def _sample_format_from_proto(options: pb.SamplingOptions) -> MessageFormat:
    """Return the format of the messages of a sampling call.

    Raises:
        InvalidValueError: a size is out of range, or a compression is not set.
    """
    limit, columns = message_limit_from_proto(options), _columns_from_proto(options)
    columns = dataclasses.replace(
        columns,
        all_states=options.return_states,
        last_values=options.return_last_values,
        last_states=options.return_last_states,
        returns_before=options.return_returns_before,
        policies=tuple(options.deliver_policies),
    )
    return MessageFormat(limit, None if options.blackhole else columns)


def evaluation_format_from_proto(delivery: evaluation_pb2.EpisodeDelivery) -> MessageFormat:
    """Return the format of the messages of an evaluation that delivers its episodes; raises as for samples."""
    columns = dataclasses.replace(_columns_from_proto(delivery), returns_before=delivery.return_returns_before)
    return MessageFormat(message_limit_from_proto(delivery), columns)


def message_limit_from_proto(
    message: pb.SamplingOptions
    | pb.ReadDatasetRequest
    | evaluation_pb2.EpisodeDelivery
    | agent_versions_pb2.GetAgentParametersRequest,
) -> int:
    """Return the size in bytes that no message of a stream may exceed.

    Raises:
        InvalidValueError: the size is out of range.
    """
    if not message.HasField("max_message_bytes"):
        return _DEFAULT_MESSAGE_BYTES
    return in_range("max_message_bytes", message.max_message_bytes, _MIN_MESSAGE_BYTES, _MAX_MESSAGE_BYTES)


def _columns_from_proto(options: pb.SamplingOptions | evaluation_pb2.EpisodeDelivery) -> ColumnFormat:
    for position, compression in enumerate(options.accept_compression):
        if compression == tensor_pb2.COMPRESSION_UNSPECIFIED:
            field, expected = f"accept_compression[{position}]", "a compression, or an empty list for none"
            raise InvalidValueError.of(field, expected=expected, got="COMPRESSION_UNSPECIFIED")
    # Compressions that this server does not know may be known to other servers.
    known = (compression for compression in options.accept_compression if compression in COMPRESSIONS)
    return ColumnFormat(next(known, None), options.accept_frame_stacks)


def sampling_options_from_proto(options: pb.SamplingOptions | pb.EvaluationOptions) -> SamplingOptions:
    """Return the options that say which episodes a call samples, and how its agent acts.

    Raises:
        InvalidValueError: a field is out of range.
    """
    if options.HasField("max_episode_length"):
        in_range("max_episode_length", options.max_episode_length, 1, MAX_STEPS)
    if options.HasField("sampler_run") and not options.sampler_run:
        expected = "the name of a run, as in Beginning, or no value for any run"
        raise InvalidValueError.of("sampler_run", expected=expected, got="an empty text")
    with in_field("exploration"):
        exploration = exploration_from_proto(options.exploration)
    return SamplingOptions(
        policy_version=optional(options, "policy_version"),
        min_policy_version=optional(options, "min_policy_version"),
        env_version=optional(options, "environment_version"),
        expected=expectation_from_proto(options),
        seed=optional(options, "seed"),
        first_index=in_range("first_episode_index", options.first_episode_index, 0, MAX_FIRST_INDEX),
        max_episode_length=optional(options, "max_episode_length"),
        run=optional(options, "sampler_run"),
        exploration=exploration,
        skip_failed=options.skip_failed_episodes,
    )


def exploration_from_proto(exploration: pb.Exploration) -> Exploration:
    """Return how freely the agent acts in a call.

    Raises:
        InvalidValueError: a value is out of range, or has no meaning beside another.
    """
    changes: dict[str, tuple[float, ...]] = {}
    for attribute, bounds in _RANGES.items():
        field = f"{attribute}s"
        values = tuple(getattr(exploration, field))
        if values:
            _check_numbers(field, values, bounds)
            if exploration.deterministic:
                raise InvalidValueError.of(field, expected="none beside deterministic", got=f"{len(values)} numbers")
            changes[attribute] = values
    return Exploration(exploration.deterministic, **changes)


def _check_numbers(field: str, values: tuple[float, ...], bounds: tuple[float, float]) -> None:
    if len(values) > _MAX_NUMBERS:
        raise InvalidValueError.of(field, expected=f"at most {_MAX_NUMBERS} numbers", got=len(values))
    minimum, maximum = bounds
    for position, value in enumerate(values):
        if not minimum <= value <= maximum:
            expected = f"a number from {minimum:g} to {maximum:g}"
            raise InvalidValueError.of(f"{field}[{position}]", expected=expected, got=value)


def sample_request_from_proto(
    request: pb.ObtainSamplesRequest | pb.ObtainExactEpisodesRequest, allowed_paths: Collection[Path]
) -> SampleRequest:
    """Return the request for episodes or fragments.

    Raises:
        InvalidValueError: a field is out of range, or does not fit the others.
        NotAllowedError: an argument of an agent is a path that is not allowed; see `check_arguments`.
    """
    target, options = _target_from_proto(request), request.options
    _check_count(options, counts_steps=isinstance(target, AtLeast))
    with in_field("options"):
        messages = _sample_format_from_proto(options)
        _check_sequence(options, target)
        _check_moments(options)
        sampling_options = sampling_options_from_proto(options)
        agent_update = _agent_update_from_options(options, allowed_paths)
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


def _agent_update_from_options(options: pb.SamplingOptions, allowed_paths: Collection[Path]) -> AgentUpdate | None:
    """Return the update of the agent that a call makes first, or None; raises as `sample_request_from_proto`."""
    if not options.HasField("agent_update"):
        return None
    with in_field("agent_update"):
        if options.HasField("policy_version"):
            got = f"the policy version {options.policy_version}"
            raise InvalidValueError.of("", expected="none beside a version that acts", got=got)
        return agent_update_from_proto(options.agent_update, allowed_paths)


def _check_count(options: pb.SamplingOptions, *, counts_steps: bool) -> None:
    """Raise InvalidValueError if agents' steps shall count where whole episodes are not asked for by their steps."""
    if options.count_agent_steps and not counts_steps:
        expected = "false for exact episodes and fragments, which are not asked for by the steps of agents"
        raise InvalidValueError.of("options.count_agent_steps", expected=expected, got="true")


def check_first_index(options: pb.SamplingOptions) -> None:
    """Raise InvalidValueError for the index of a first episode without the seed that it is in the sequence of."""
    if options.HasField("first_episode_index") and not options.HasField("seed"):
        expected, got = "options.seed beside it", "an index without a seed"
        raise InvalidValueError.of("first_episode_index", expected=expected, got=got)


def _check_no_first_index(options: pb.SamplingOptions) -> None:
    """Raise InvalidValueError for the index of a first episode beside fragments."""
    if options.HasField("first_episode_index"):
        expected = "none beside fragments, whose rows begin with episodes of their own"
        raise InvalidValueError.of("options.first_episode_index", expected=expected, got=options.first_episode_index)


def _check_moments(options: pb.SamplingOptions) -> None:
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
    _check_no_first_index(request.options)
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


def stream_request_from_proto(spec: pb.StreamSpec, allowed_paths: Collection[Path]) -> StreamRequest:
    """Return the request for a stream.

    Raises:
        InvalidValueError: a field is out of range, or does not fit the others.
        NotAllowedError: an argument of an agent is a path that is not allowed; see `check_arguments`.
    """
    options = spec.options
    with in_field("options"):
        _check_stream_options(options)
        messages, sampling_options = _sample_format_from_proto(options), sampling_options_from_proto(options)
        agent_update = _agent_update_from_options(options, allowed_paths)
    rounds = _rounds_from_proto(spec, sampling_options)
    return StreamRequest(
        rounds,
        messages,
        sampling_options,
        _stream_bounds_from_proto(spec),
        _apply_update_from_proto(spec, rounds),
        first_number=in_range("first_round_number", spec.first_round_number, 0, MAX_FIRST_INDEX),
        num_workers=optional(options, "worker_count"),
        agent_update=agent_update,
        return_spaces=options.return_spaces,
        observation_moments=options.observation_moments,
        return_discount=optional(options, "return_discount"),
    )


def _check_stream_options(options: pb.SamplingOptions) -> None:
    """Raise InvalidValueError for options of other calls."""
    if options.HasField("policy_version"):
        expected = "none for a stream, whose rounds have the current one"
        raise InvalidValueError.of("policy_version", expected=expected, got=options.policy_version)
    for name in ("prefetch", "blackhole"):
        if getattr(options, name):
            raise InvalidValueError.of(name, expected="false for a stream", got="true")
    _check_moments(options)
    check_first_index(options)


def _rounds_from_proto(spec: pb.StreamSpec, options: SamplingOptions) -> RowFragments | AtLeast:
    match spec.WhichOneof("rounds"):
        case "episodes":
            with in_field("episodes"):
                num_steps = in_range("step_count", spec.episodes.step_count, 1, MAX_STEPS)
                return AtLeast(num_steps, spec.options.count_agent_steps)
        case "fragments":
            return _streamed_fragments_from_proto(spec.fragments, spec.options, options)
        case _:
            raise InvalidValueError.of("rounds", expected="fragments or episodes", got="none")


def _streamed_fragments_from_proto(
    fragments: pb.StreamedFragments, options: pb.SamplingOptions, sampling_options: SamplingOptions
) -> RowFragments:
    _check_no_first_index(options)
    _check_count(options, counts_steps=False)
    if sampling_options.skip_failed:
        expected = "false for fragments, whose rows go on from round to round"
        raise InvalidValueError.of("options.skip_failed_episodes", expected=expected, got="true")
    with in_field("fragments"):
        num_row_steps = in_range("fragment_length", fragments.fragment_length, 1, MAX_STEPS)
        in_range("row_step_count", fragments.row_step_count, 0, MAX_FIRST_INDEX)
        if fragments.HasField("row_step_count") and not options.HasField("seed"):
            raise InvalidValueError.of("row_step_count", expected="options.seed beside it", got="none")
    return RowFragments(num_row_steps, fragments.soft_horizon, optional(fragments, "row_step_count"))


def _stream_bounds_from_proto(spec: pb.StreamSpec) -> StreamBounds:
    for name, maximum in (
        ("step_count", MAX_STEPS),
        ("max_ahead_steps", MAX_STEPS),
        ("max_ahead_bytes", MAX_STEPS),
        ("max_steps_per_version", MAX_STEPS),
        ("max_unread_rounds", _MAX_UNREAD_ROUNDS),
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
