"""w4-stacks: stacks of Atari frames, with and without compression, and with each frame sent once or in each stack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import rollserve
from benchmarks.service.environments import Stacks, expected_checksum, stack_observations
from benchmarks.service.results import Options, Result
from benchmarks.service.workloads.data_plane import CHECKSUM_HOLDS, Route, data_routes

__all__ = ["measure_stacks"]

_ENV = rollserve.EnvSpec("benchmarks.service.environments:Stacks", vectorization="rows", num_rows=1)
_NUM_STEPS = 8 * Stacks.num_steps
_VARIANTS: dict[str, dict[str, Any]] = {
    "raw": {"frames_once": False},
    "lz4": {"frames_once": False, "compression": "lz4"},
    "zstd": {"frames_once": False, "compression": "zstd"},
    "once": {},
    "once-lz4": {"compression": "lz4"},
}
"""Options of the calls, by the variant's name."""


def measure_stacks(name: str, options: Options) -> list[Result]:
    """Measure the whole path in turns with its last leg, in all variants.

    Raises:
        CheckError: delivered data is wrong.
    """
    num_steps = options.scaled(_NUM_STEPS, Stacks.num_steps)
    settings = {"env": _ENV.id, "num_steps": num_steps, "num_workers": options.num_workers}
    wholes = {variant: _result(f"{name}-{variant}", "the whole path", settings, variant) for variant in _VARIANTS}
    legs = {variant: _result(f"{name}-{variant}-leg", "the last leg", settings, variant) for variant in _VARIANTS}
    checksum = expected_checksum(stack_observations(), num_steps)
    with data_routes(_ENV, options.num_workers, num_steps, checksum) as (whole, leg):
        for call_options in _VARIANTS.values():
            whole.warm_up(**call_options)
            leg.warm_up(**call_options)
        for _ in range(options.num_rounds):
            for variant, call_options in _VARIANTS.items():
                wholes[variant].rounds.append(_measure(whole, call_options))
                legs[variant].rounds.append(_measure(leg, call_options))
    for results in (wholes, legs):
        _add_ratios_to_raw(results)
    return [*wholes.values(), *legs.values()]


def _result(name: str, path: str, settings: Mapping[str, Any], variant: str) -> Result:
    title = f"stacks of Pong's frames, {path}, {variant}"
    return Result(name, title, {**settings, "options": _VARIANTS[variant]}, checks=[CHECKSUM_HOLDS])


def _measure(route: Route, call_options: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a call for one batch, and of a stream whose batches are dropped one by one."""
    figures = route.obtain(**call_options)
    streamed = route.stream(**call_options)
    return {
        **figures,
        "first_message_seconds": streamed["first_message_seconds"],
        "wire_bytes_per_byte": streamed["num_wire_bytes"] / streamed["num_bytes"],
        "stream_megabytes_per_second": streamed["num_bytes"] / streamed["seconds"] / 1e6,
        "client_growth_per_result_byte": figures["client_growth_bytes"] / figures["num_bytes"],
    }


def _add_ratios_to_raw(results: Mapping[str, Result]) -> None:
    for result in results.values():
        for figures, raw in zip(result.rounds, results["raw"].rounds, strict=True):
            for prefix in ("", "stream_"):
                rate = f"{prefix}megabytes_per_second"
                figures[f"{prefix}ratio_to_raw"] = figures[rate] / raw[rate]
