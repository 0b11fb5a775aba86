"""Requests for episodes and fragments, in calls and in streams: their options, and the form of what they return.

Options are read once, as the fields of their message that are set: most are not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rollserve_server.agents import DEFAULT_EXPLORATION, exploration_from_proto
from rollserve_server.errors import InvalidValueError
from rollserve_server.fields import MAX_FIRST_INDEX, MAX_STEPS, in_field, in_range, optional, set_fields
from rollserve_server.gateway.messages.agents import agent_update_from_proto
from rollserve_server.gateway.messages.fields import expectation_of
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
    from rollserve_wire.v1 import evaluation_pb2

__all__ = [
    "check_first_index",
    "evaluation_format_from_proto",
    "message_format_of",
    "message_limit_of",
    "sample_request_from_proto",
    "sampling_options_of",
    "stream_request_from_proto",
]


_DEFAULT_MESSAGE_BYTES = (4 << 20) - (4 << 10)
"""Just below the size that gRPC's clients accept by default."""
_MIN_MESSAGE_BYTES, _MAX_MESSAGE_BYTES = 4 << 10, 256 << 20

_MAX_EPISODES = 1 << 40
"""Largest number of episodes of a worker. Indices stay below 2**63 with it, the limit of integers in many languages."""

_T = TypeVar("_T")

_STREAM_BOUNDS = {
    **dict.fromkeys(("step_count", "max_ahead_steps", "max_ahead_bytes", "max_steps_per_version"), MAX_STEPS),
    "max_unread_rounds": 1 << 31,
}
"""Largest values of the bounds of a stream that are numbers from 1 on."""
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


def evaluation_format_from_proto(delivery: evaluation_pb2.EpisodeDelivery) -> MessageFormat:
    """Return the format of the messages of an evaluation that delivers its episodes.

    Raises:
        InvalidValueError: a size is out of range, or a compression is not set.
    """
    return message_format_of(set_fields(delivery))


def message_limit_of(given: Mapping[str, Any]) -> int:
    """Return the size in bytes that no message of a stream may exceed, given the fields of its options.

    Raises:
        InvalidValueError: the size is out of range.
    """
    limit = given.get("max_message_bytes", _DEFAULT_MESSAGE_BYTES)
    return in_range("max_message_bytes", limit, _MIN_MESSAGE_BYTES, _MAX_MESSAGE_BYTES)


def message_format_of(given: Mapping[str, Any]) -> MessageFormat:
    """Return the format of messages; raise InvalidValueError for a size out of range, or an unset compression."""
    compression = None
    for position, accepted in enumerate(given.get("accept_compression", ())):
        if accepted == tensor_pb2.COMPRESSION_UNSPECIFIED:
            field, expected = f"accept_compression[{position}]", "a compression, or an empty list for none"
            raise InvalidValueError.of(field, expected=expected, got="COMPRESSION_UNSPECIFIED")
        # Compressions that this server does not know may be known to other servers.
        if compression is None and accepted in COMPRESSIONS:
            compression = accepted
    columns = ColumnFormat(
        compression,
        frames_once=given.get("accept_frame_stacks", False),
        all_states=given.get("return_states", False),
        last_values=given.get("return_last_values", False),
        last_states=given.get("return_last_states", False),
        returns_before=given.get("return_returns_before", False),
        policies=tuple(given.get("deliver_policies", ())),
    )
    return MessageFormat(
        message_limit_of(given),
        None if given.get("blackhole") else columns,
        accepts_joined=given.get("accept_joined", False),
        accepts_shared_memory=given.get("accept_shared_memory", False),
    )


def sampling_options_of(given: Mapping[str, Any]) -> SamplingOptions:
    """Return the options that say which episodes a call samples, and how its agent acts, given their fields.

    Raises:
        InvalidValueError: a field is out of range.
    """
    if "max_episode_length" in given:
        in_range("max_episode_length", given["max_episode_length"], 1, MAX_STEPS)
    if given.get("sampler_run") == "":
        expected = "the name of a run, as in Beginning, or no value for any run"
        raise InvalidValueError.of("sampler_run", expected=expected, got="an empty text")
    exploration = DEFAULT_EXPLORATION
    if "exploration" in given:
        with in_field("exploration"):
            exploration = exploration_from_proto(given["exploration"])
    return SamplingOptions(
        policy_version=given.get("policy_version"),
        min_policy_version=given.get("min_policy_version"),
        env_version=given.get("environment_version"),
        expected=expectation_of(given),
        seed=given.get("seed"),
        first_index=in_range("first_episode_index", given.get("first_episode_index", 0), 0, MAX_FIRST_INDEX),
        max_episode_length=given.get("max_episode_length"),
        run=given.get("sampler_run"),
        exploration=exploration,
        skip_failed=given.get("skip_failed_episodes", False),
    )


def sample_request_from_proto(
    request: pb.ObtainSamplesRequest | pb.ObtainExactEpisodesRequest, allowed_paths: Collection[Path]
) -> SampleRequest:
    """Return the request for episodes or fragments.

    Raises:
        InvalidValueError: a field is out of range, or does not fit the others.
        NotAllowedError: an argument of an agent is a path that is not allowed; see `check_arguments`.
    """
    given = set_fields(request.options)
    target = _target_from_proto(request, given)
    prefetch = given.get("prefetch", False)
    with in_field("options"):
        _check_of_rows(given, counts_steps=isinstance(target, AtLeast), have_rows=isinstance(target, Fragments))
        messages = message_format_of(given)
        check_first_index(given)
        if prefetch and ("seed" in given or isinstance(target, Fragments)):
            expected = "whole episodes of the sampler's own sequence"
            raise InvalidValueError.of("prefetch", expected=expected, got="a seed or fragments")
        return SampleRequest(target, messages, prefetch=prefetch, **_options_of_both(given, allowed_paths))


def _options_of_both(given: Mapping[str, Any], allowed_paths: Collection[Path]) -> dict[str, Any]:
    """Return what the requests of calls and streams have in common, given the fields of their options."""
    _check_moments(given)
    return {
        "options": sampling_options_of(given),
        "num_workers": given.get("worker_count"),
        "agent_update": _agent_update_of(given, allowed_paths),
        "return_spaces": given.get("return_spaces", False),
        "observation_moments": given.get("observation_moments", False),
        "return_discount": given.get("return_discount"),
    }


def _agent_update_of(given: Mapping[str, Any], allowed_paths: Collection[Path]) -> AgentUpdate | None:
    """Return the update of the agent that a call makes first, or None; raises as `sample_request_from_proto`."""
    if "agent_update" not in given:
        return None
    with in_field("agent_update"):
        if "policy_version" in given:
            got = f"the policy version {given['policy_version']}"
            raise InvalidValueError.of("", expected="none beside a version that acts", got=got)
        return agent_update_from_proto(given["agent_update"], allowed_paths)


def _check_of_rows(given: Mapping[str, Any], *, counts_steps: bool, have_rows: bool) -> None:
    """Raise InvalidValueError for options that count agents' steps, or name an episode, where the request does not."""
    if "count_agent_steps" in given and not counts_steps:
        expected = "false for exact episodes and fragments, which are not asked for by the steps of agents"
        raise InvalidValueError.of("count_agent_steps", expected=expected, got="true")
    if "first_episode_index" in given and have_rows:
        expected = "none beside fragments, whose rows begin with episodes of their own"
        raise InvalidValueError.of("first_episode_index", expected=expected, got=given["first_episode_index"])


def check_first_index(given: Mapping[str, Any]) -> None:
    """Raise InvalidValueError for the index of a first episode without the seed that it is in the sequence of."""
    if "first_episode_index" in given and "seed" not in given:
        expected, got = "options.seed beside it", "an index without a seed"
        raise InvalidValueError.of("first_episode_index", expected=expected, got=got)


def _check_moments(given: Mapping[str, Any]) -> None:
    """Raise InvalidValueError for moments of nothing, or for a discount out of range."""
    for field in ("observation_moments", "return_discount"):
        if field in given and "blackhole" in given:
            raise InvalidValueError.of(field, expected="none beside blackhole, which delivers nothing", got="moments")
    discount = given.get("return_discount", 0)
    if not 0 <= discount <= 1:
        raise InvalidValueError.of("return_discount", expected="a number from 0 to 1", got=discount)


def _target_from_proto(
    request: pb.ObtainSamplesRequest | pb.ObtainExactEpisodesRequest, options: Mapping[str, Any]
) -> Target | Fragments:
    if isinstance(request, pb.ObtainExactEpisodesRequest):
        count = in_range("episode_count_per_worker", request.episode_count_per_worker, 1, _MAX_EPISODES)
        return Exactly(count, request.skip_episode_count)
    num_steps = in_range("step_count", request.step_count, 1, MAX_STEPS)
    if request.HasField("fragments"):
        with in_field("fragments"):
            return _fragments_from_proto(request.fragments, num_steps)
    return AtLeast(num_steps, options.get("count_agent_steps", False))


def _fragments_from_proto(fragments: pb.Fragments, num_steps: int) -> Fragments:
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


def stream_request_from_proto(spec: pb.StreamSpec, allowed_paths: Collection[Path]) -> StreamRequest:
    """Return the request for a stream.

    Raises:
        InvalidValueError: a field is out of range, or does not fit the others.
        NotAllowedError: an argument of an agent is a path that is not allowed; see `check_arguments`.
    """
    given, have_rows = set_fields(spec.options), spec.HasField("fragments")
    with in_field("options"):
        if "policy_version" in given:
            expected = "none for a stream, whose rounds have the current one"
            raise InvalidValueError.of("policy_version", expected=expected, got=given["policy_version"])
        unfit = {"prefetch": "a stream", "blackhole": "a stream"}
        if have_rows:
            unfit["skip_failed_episodes"] = "fragments, whose rows go on from round to round"
        for name, what in unfit.items():
            if name in given:
                raise InvalidValueError.of(name, expected=f"false for {what}", got="true")
        check_first_index(given)
        _check_of_rows(given, counts_steps=not have_rows, have_rows=have_rows)
        messages, options = message_format_of(given), _options_of_both(given, allowed_paths)
    rounds = _rounds_from_proto(spec, given)
    return StreamRequest(
        rounds,
        messages,
        bounds=_stream_bounds_from_proto(spec),
        apply_update=_apply_update_from_proto(spec, rounds),
        first_number=in_range("first_round_number", spec.first_round_number, 0, MAX_FIRST_INDEX),
        **options,
    )


def _rounds_from_proto(spec: pb.StreamSpec, options: Mapping[str, Any]) -> RowFragments | AtLeast:
    match spec.WhichOneof("rounds"):
        case "episodes":
            with in_field("episodes"):
                num_steps = in_range("step_count", spec.episodes.step_count, 1, MAX_STEPS)
            return AtLeast(num_steps, options.get("count_agent_steps", False))
        case "fragments":
            with in_field("fragments"):
                return _streamed_fragments_from_proto(spec.fragments, has_seed="seed" in options)
        case _:
            raise InvalidValueError.of("rounds", expected="fragments or episodes", got="none")


def _streamed_fragments_from_proto(fragments: pb.StreamedFragments, *, has_seed: bool) -> RowFragments:
    num_row_steps = in_range("fragment_length", fragments.fragment_length, 1, MAX_STEPS)
    in_range("row_step_count", fragments.row_step_count, 0, MAX_FIRST_INDEX)
    if fragments.HasField("row_step_count") and not has_seed:
        raise InvalidValueError.of("row_step_count", expected="options.seed beside it", got="none")
    return RowFragments(num_row_steps, fragments.soft_horizon, optional(fragments, "row_step_count"))


def _stream_bounds_from_proto(spec: pb.StreamSpec) -> StreamBounds:
    given = set_fields(spec)
    for name, maximum in _STREAM_BOUNDS.items():
        if name in given:
            in_range(name, given[name], 1, maximum)
    return StreamBounds(
        num_steps=given.get("step_count"),
        max_policy_lag=given.get("max_policy_lag"),
        max_ahead_steps=given.get("max_ahead_steps"),
        max_ahead_bytes=given.get("max_ahead_bytes"),
        max_steps_per_version=given.get("max_steps_per_version"),
        max_unread_rounds=given.get("max_unread_rounds"),
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
