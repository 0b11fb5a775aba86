"""W4 with stacks of Atari frames: what compression, and sending each frame once, make of the data plane."""

from __future__ import annotations

import zlib
from typing import Any

import rollserve
from benchmarks.service.bulk import recorded_leg
from benchmarks.service.children import Child
from benchmarks.service.environments import Stacks, stack_observations
from benchmarks.service.processes import Meter
from benchmarks.service.results import Options, Result, check
from benchmarks.service.running import Service, call_figures, running_service

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
_FOUND = "the checksum of all observations is that of what the environment shows"


def measure_stacks(name: str, options: Options) -> list[Result]:
    """Measures the whole path, and in turns with it the leg from a gateway to a client, in all of these ways.

    Raises:
        CheckError: what came is not what it should be.
    """
    num_steps = options.scaled(_NUM_STEPS, Stacks.num_steps)
    settings = {"env": _ENV.id, "num_steps": num_steps, "num_workers": options.num_workers}
    wholes = {variant: _result(f"{name}-{variant}", "the whole path", settings, variant) for variant in _VARIANTS}
    legs = {variant: _result(f"{name}-{variant}-leg", "the last leg", settings, variant) for variant in _VARIANTS}
    with (
        running_service(_ENV, rollserve.RandomAgent(), options.num_workers) as service,
        recorded_leg(_ENV) as (client, meter),
    ):
        for call_options in _VARIANTS.values():
            service.client.ask("obtain", call="samples", num_steps=num_steps, **call_options)
            client.ask("obtain", call="samples", num_steps=num_steps, **call_options)
        for _ in range(options.num_rounds):
            for variant in _VARIANTS:
                wholes[variant].rounds.append(_whole_path(service, num_steps, variant))
                legs[variant].rounds.append(_leg(client, meter, num_steps, variant))
    for results in (wholes, legs):
        _compare_to_raw(results)
    return [*wholes.values(), *legs.values()]


def _result(name: str, what: str, settings: dict[str, Any], variant: str) -> Result:
    title = f"stacks of Pong's frames, {what}, {variant}"
    return Result(name, title, {**settings, "options": _VARIANTS[variant]}, checks=[_FOUND])


def _whole_path(service: Service, num_steps: int, variant: str) -> dict[str, float]:
    call = {"call": "samples", "num_steps": num_steps, **_VARIANTS[variant]}
    service.sampler.update_agent(rollserve.RandomAgent())
    answer, cost = service.metered("obtain", **call)
    _check(answer["num_steps"], num_steps, service.client)
    service.sampler.update_agent(rollserve.RandomAgent())
    return _figures(answer, cost, service.client.ask("stream", **call))


def _leg(client: Child, meter: Meter, num_steps: int, variant: str) -> dict[str, float]:
    call = {"call": "samples", "num_steps": num_steps, **_VARIANTS[variant]}
    meter.start()
    answer = client.ask("obtain", **call)
    cost = meter.stop()
    _check(answer["num_steps"], num_steps, client)
    return _figures(answer, cost, client.ask("stream", **call))


def _figures(answer: dict[str, Any], cost: dict[str, float], streamed: dict[str, Any]) -> dict[str, float]:
    """Those of a call for one batch, and of a stream whose batches are looked at and left."""
    return {
        **call_figures(answer, cost),
        "first_message_seconds": streamed["first_message_seconds"],
        "wire_bytes_per_byte": streamed["num_wire_bytes"] / streamed["num_bytes"],
        "stream_megabytes_per_second": streamed["num_bytes"] / streamed["seconds"] / 1e6,
        "client_growth_per_result_byte": cost["client_growth_bytes"] / answer["num_bytes"],
    }


def _compare_to_raw(results: dict[str, Result]) -> None:
    for result in results.values():
        for figures, raw in zip(result.rounds, results["raw"].rounds, strict=True):
            for prefix in ("", "stream_"):
                rate = f"{prefix}megabytes_per_second"
                figures[f"{prefix}ratio_to_raw"] = figures[rate] / raw[rate]


def _check(num_steps: int, expected: int, client: Child) -> None:
    check(num_steps == expected, f"{num_steps} steps came, {expected} were expected")
    checksum = 0
    for _ in range(num_steps // Stacks.num_steps):
        checksum = zlib.crc32(stack_observations()[: Stacks.num_steps].data, checksum)
    came = client.ask("sample", path="", num_steps=0)["checksum"]
    check(came == checksum, "the observations are not what the environment shows")
