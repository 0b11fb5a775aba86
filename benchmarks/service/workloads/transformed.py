"""w1-transforms, w2-transforms: calls of environments with transforms, in turns with the same calls without."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

import rollserve
from benchmarks.service.processes.server import Service, running_service
from benchmarks.service.results import Options, Result, check, check_num_steps
from benchmarks.service.workloads.figures import call_figures
from benchmarks.service.workloads.specs import SAMPLING
from rollserve.transforms import (
    CastObservations,
    ClipActions,
    ClipRewards,
    RescaleActions,
    ScaleObservations,
    ScaleRewards,
    Transform,
)

__all__ = ["TRANSFORMED", "measure_transformed"]

_REWARDS: tuple[Transform, ...] = (ScaleRewards(0.1), ClipRewards(-1, 1))
TRANSFORMED: dict[str, tuple[str, tuple[Transform, ...]]] = {
    "w1-transforms": ("w1-native-512", (*_REWARDS, ScaleObservations(0.5))),
    "w2-transforms": ("w2-envpool", (*_REWARDS, RescaleActions(), ClipActions(), CastObservations("float32"))),
    "w2-transforms-rows": ("w2-rows", (*_REWARDS, RescaleActions(), ClipActions(), CastObservations("float32"))),
}
"""Workload without transforms, and the transforms that a trainer of such environments usually has, by name."""


def measure_transformed(name: str, options: Options) -> list[Result]:
    """Measure calls with transforms and without; their ratio is of steps per second of CPU time of all processes.

    Raises:
        CheckError: a call delivered too few steps, or rewards that are not transformed.
    """
    plain_name, transforms = TRANSFORMED[name]
    spec = SAMPLING[plain_name]
    num_rows = spec.num_rows * options.num_workers
    call = {"call": spec.call, "num_steps": options.scaled(spec.num_steps, num_rows)}
    title = f"{spec.title}, with {len(transforms)} transforms"
    transformed = dataclasses.replace(spec.env, transforms=transforms)
    result = Result(name, title, spec.settings | {"transforms": list(map(repr, transforms))} | call)
    with running_service(spec.env, spec.agent, options.num_workers) as service:
        for number in range(options.num_rounds):
            envs = {"plain": spec.env, "transformed": transformed}
            order = sorted(envs, reverse=bool(number % 2))  # alternates, so that being the later one evens out
            found = {each: _call(service, envs[each], spec.agent, call) for each in order}
            plain, figures = found["plain"], found["transformed"]
            others = {f"untransformed_{key}": value for key, value in plain.items()}
            ratio = _cpu_seconds(plain) / _cpu_seconds(figures)
            result.rounds.append({**figures, **others, "ratio_to_untransformed": ratio})
        service.sampler.update_env(transformed)
        service.sampler.update_agent(spec.agent)
        sample = service.sampler.obtain_fragments(num_rows)
        raw_rewards = sample.raw_rewards
        changed = raw_rewards is not None and np.array_equal(sample.rewards, np.clip(raw_rewards * 0.1, -1, 1))
        check(changed, "rewards are not transformed")
    result.checks.append("rewards are the raw rewards, scaled and clipped")
    return [result]


def _call(service: Service, env: rollserve.EnvSpec, agent: rollserve.Agent, call: dict[str, Any]) -> dict[str, float]:
    """Return the figures of a call in an environment, after one that is not measured."""
    service.sampler.update_env(env)
    service.sampler.update_agent(agent)
    service.client.ask("obtain", **call)
    answer, cost = service.metered("obtain", **call)
    check_num_steps(answer["num_steps"], call["num_steps"], exact=call["call"] == "fragments")
    return call_figures(answer, cost)


def _cpu_seconds(figures: dict[str, float]) -> float:
    return sum(value for name, value in figures.items() if name.endswith("_cpu_seconds_per_million_steps"))
