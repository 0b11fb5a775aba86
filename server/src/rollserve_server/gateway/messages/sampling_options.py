"""Options that sampling calls and evaluations share: which episodes, and how freely the agent acts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve_server.agents import Exploration
from rollserve_server.errors import InvalidValueError
from rollserve_server.gateway.messages.fields import (
    MAX_FIRST_INDEX,
    MAX_STEPS,
    expectation_from_proto,
    in_field,
    in_range,
    optional,
)
from rollserve_server.pool import SamplingOptions

if TYPE_CHECKING:
    from rollserve_wire.v1 import sampler_service_pb2 as pb

__all__ = ["exploration_from_proto", "sampling_options_from_proto"]

_MIN_FACTOR, _MAX_FACTOR = 1e-6, 1e6
_RANGES = {
    "temperature": (_MIN_FACTOR, _MAX_FACTOR),
    "noise_scale": (_MIN_FACTOR, _MAX_FACTOR),
    "epsilon": (0.0, 1.0),
}
"""Range of each number by the attribute of `Exploration`; the proto field has its plural."""
_MAX_NUMBERS = 1024
"""Largest number of temperatures, noise scales and epsilons each: they are part of each order to a worker."""


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
