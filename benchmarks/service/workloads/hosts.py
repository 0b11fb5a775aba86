"""w12: environments in hosts that workers start, in turns with the same rows in the workers."""

from __future__ import annotations

import json
import sys
from typing import Any

import gymnasium

import rollserve
from benchmarks.service.processes.server import Service, running_service
from benchmarks.service.results import Options, Result, check, check_num_steps
from benchmarks.service.workloads.figures import call_figures
from benchmarks.service.workloads.specs import SAMPLING

__all__ = ["HOSTS", "measure_hosts", "pong"]

HOSTS = {"w12-cartpole": "w1-rows", "w12-cheetah": "w2-rows", "w12-pong": "w3-pong"}
"""Workloads whose rows are in the workers, by name."""
_SEED = 7


def pong(frameskip: int) -> gymnasium.Env[Any, Any]:
    """Make Pong with the wrappers of w3: a host wraps its environments itself."""
    game = gymnasium.make("ale_py:ALE/Pong-v5", frameskip=frameskip)
    return gymnasium.wrappers.FrameStackObservation(gymnasium.wrappers.AtariPreprocessing(game), stack_size=4)


def measure_hosts(name: str, options: Options) -> list[Result]:
    """Measure calls with rows in a host and in the worker.

    Raises:
        CheckError: the episodes differ.
    """
    spec = SAMPLING[HOSTS[name]]
    env = f"{__name__}:pong" if spec.env.wrappers else spec.env.id
    profile = {"env": env, "env_kwargs": dict(spec.env.kwargs), "python": sys.executable, "rows": spec.num_rows}
    call = {"call": spec.call, "num_steps": options.scaled(spec.num_steps), "seed": _SEED}
    result = Result(name, f"{spec.title}, in a host", spec.settings | call)
    profiles = ("--profiles", json.dumps({"hosted": profile}))
    with running_service(spec.env, spec.agent, options.num_workers, *profiles) as service:
        for number in range(options.num_rounds):
            envs = {"host": rollserve.EnvSpec("profile:hosted"), "worker": spec.env}
            order = sorted(envs, reverse=bool(number % 2))  # alternates, so that being the later one evens out
            found = {each: _call(service, envs[each], spec.agent, call) for each in order}
            check(found["host"][1] == found["worker"][1], "the episodes of the host differ from the worker's")
            figures, plain = found["host"][0], found["worker"][0]
            others = {f"worker_{key}": value for key, value in plain.items()}
            ratio = figures["steps_per_second"] / plain["steps_per_second"]
            result.rounds.append({**figures, **others, "ratio_to_worker": ratio})
    result.checks.append("the checksum of all observations is the same in the host and in the worker")
    return [result]


def _call(
    service: Service, env: rollserve.EnvSpec, agent: rollserve.Agent, call: dict[str, Any]
) -> tuple[dict[str, float], int]:
    """Return the figures of a call in an environment, after one that is not measured, and its checksum."""
    service.sampler.update_env(env)
    service.sampler.update_agent(agent)
    service.client.ask("obtain", **call)
    answer, cost = service.metered("obtain", **call)
    check_num_steps(answer["num_steps"], call["num_steps"], exact=False)
    return call_figures(answer, cost), service.client.ask("checksum")["checksum"]
