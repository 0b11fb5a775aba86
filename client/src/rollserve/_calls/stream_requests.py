"""Requests for streams, built from the arguments of `stream`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

from rollserve._calls.requests import sampling_options
from rollserve_wire.checks import check_choice, check_flag, check_integer
from rollserve_wire.errors import InvalidArgumentError, mismatch
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from rollserve._calls.requests import Reception
    from rollserve.options import SamplingOptions

__all__ = ["ApplyUpdate", "WhenFull", "stream_spec"]

ApplyUpdate = Literal["next_fragment", "next_step", "next_episode"]
WhenFull = Literal["wait", "drop_oldest"]

_REFUSED = ("progress", "prefetch", "blackhole", "policy_version")


def stream_spec(
    sampler: str,
    reception: Reception,
    *,
    num_steps: int | None,
    fragment_length: int | None,
    soft_horizon: bool,
    row_step_count: int | None,
    total_num_steps: int | None,
    apply_update: ApplyUpdate,
    max_policy_lag: int | None,
    max_ahead_steps: int | None,
    max_ahead_bytes: int | None,
    max_steps_per_version: int | None,
    when_full: WhenFull,
    buffer_rounds: int | None,
    options: SamplingOptions,
) -> pb.StreamSpec:
    """Return what a stream samples.

    Raises:
        TypeError: an unknown option, an argument of the wrong type, or both or neither of `num_steps` and
            `fragment_length`.
        InvalidArgumentError: an argument out of range, or an option that streams do not have.
    """
    if (num_steps is None) == (fragment_length is None):
        got = "neither" if num_steps is None else "both"
        raise TypeError(f"num_steps, fragment_length: {mismatch('one of them', got)}")
    for name in _REFUSED:
        if (value := options.get(name)) not in (None, False):
            raise InvalidArgumentError.of(name, expected="none for a stream", got=value)
    check_choice("apply_update", apply_update, get_args(ApplyUpdate))
    check_choice("when_full", when_full, get_args(WhenFull))
    bounds: dict[str, Any] = {
        "step_count": _count("total_num_steps", total_num_steps, 63),
        "max_policy_lag": _count("max_policy_lag", max_policy_lag, 32, minimum=0),
        "max_ahead_steps": _count("max_ahead_steps", max_ahead_steps, 63),
        "max_ahead_bytes": _count("max_ahead_bytes", max_ahead_bytes, 63),
        "max_steps_per_version": _count("max_steps_per_version", max_steps_per_version, 63),
        "max_unread_rounds": max(_count("buffer_rounds", buffer_rounds, 31, minimum=0) or 0, 1),
    }
    spec = pb.StreamSpec(
        sampler=sampler,
        options=sampling_options(reception, options),
        apply_update=pb.ApplyUpdate.Value(f"APPLY_UPDATE_{apply_update.upper()}"),
        when_full=pb.WhenFull.Value(f"WHEN_FULL_{when_full.upper()}"),
        **bounds,
    )
    check_flag("soft_horizon", soft_horizon)
    if num_steps is not None:
        for name, value in (("soft_horizon", soft_horizon or None), ("row_step_count", row_step_count)):
            if value is not None:
                raise InvalidArgumentError.of(name, expected="none for whole episodes", got=value)
        spec.episodes.step_count = _count("num_steps", num_steps, 63) or 0
    else:
        fragments = pb.StreamedFragments(soft_horizon=soft_horizon)
        fragments.fragment_length = _count("fragment_length", fragment_length, 63) or 0
        if row_step_count is not None:
            check_integer("row_step_count", row_step_count, 64, signed=False)
            fragments.row_step_count = row_step_count
        spec.fragments.CopyFrom(fragments)
    return spec


def _count(name: str, value: int | None, num_bits: int, *, minimum: int = 1) -> int | None:
    """Return a number that may be left out, once it is checked."""
    if value is None:
        return None
    check_integer(name, value, num_bits, signed=False)
    if value < minimum:
        raise InvalidArgumentError.of(name, expected=f"at least {minimum}", got=value)
    return value
