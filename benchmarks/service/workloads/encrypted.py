"""w7-tls: calls over TLS, in turns with the same calls of a server without TLS."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import rollserve
from benchmarks.service.environments import Bulk, Short
from benchmarks.service.processes.server import Service, running_service
from benchmarks.service.results import Options, Result, check, check_num_steps
from benchmarks.service.workloads.bulk import BULK, NUM_BULK_STEPS
from benchmarks.service.workloads.figures import call_figures, latency_figures
from benchmarks.service.workloads.round_trips import SHORT, SMALL_AGENT, make_calls
from benchmarks.service.workloads.specs import SAMPLING

__all__ = ["measure_encrypted"]

_NATIVE = SAMPLING["w1-native-512"]
_NUM_CALLS = 300
_SEED = 7
"""Seed of both servers' calls, which therefore deliver the same."""


def measure_encrypted(name: str, options: Options) -> list[Result]:
    """Measure CartPole's native rows, observations of 1 MiB, and short calls.

    Raises:
        CheckError: a call over TLS delivered other data than without.
    """
    num_rows = _NATIVE.num_rows * options.num_workers
    native = {"call": _NATIVE.call, "num_steps": options.scaled(_NATIVE.num_steps, num_rows), "seed": _SEED}
    bulk = {"call": "samples", "num_steps": options.scaled(NUM_BULK_STEPS, Bulk.num_steps), "seed": _SEED}
    return [
        _measure_calls(f"{name}-native", f"{_NATIVE.title}, over TLS", _NATIVE.env, _NATIVE.agent, native, options),
        _measure_calls(f"{name}-bulk", "1 MiB observations, over TLS", BULK, rollserve.RandomAgent(), bulk, options),
        _measure_round_trips(f"{name}-round-trips", options),
    ]


def _measure_calls(
    name: str, title: str, env: rollserve.EnvSpec, agent: rollserve.Agent, call: dict[str, Any], options: Options
) -> Result:
    """Measure long calls by their rates."""
    result = Result(name, title, {"env": env.id, "num_workers": options.num_workers, **call})
    with _services(env, agent, options.num_workers) as (plain, encrypted):
        for service in (plain, encrypted):
            service.client.ask("obtain", **call)
        for _ in range(options.num_rounds):
            (plain_figures, expected), (figures, checksum) = (_call(each, call) for each in (plain, encrypted))
            check(checksum == expected, "the observations over TLS differ from the observations without")
            result.rounds.append(_compared(figures, plain_figures, "steps_per_second", lambda own, other: own / other))
    result.checks.append("the checksum of all observations is the same with and without TLS")
    return result


def _call(service: Service, call: dict[str, Any]) -> tuple[dict[str, float], int]:
    """Return the figures of a call, and the checksum of its observations."""
    answer, cost = service.metered("obtain", **call)
    check_num_steps(answer["num_steps"], call["num_steps"], exact=call["call"] == "fragments")
    return call_figures(answer, cost), service.client.ask("checksum")["checksum"]


def _measure_round_trips(name: str, options: Options) -> Result:
    """Measure short calls by their latency."""
    num_calls, num_workers = options.scaled(_NUM_CALLS), options.num_workers
    settings = {"env": SHORT.id, "num_workers": num_workers, "num_calls": num_calls}
    result = Result(name, "obtain_exact_episodes(1) of a ten-step environment, over TLS", settings)
    with _services(SHORT, SMALL_AGENT, num_workers) as services:
        for service in services:
            make_calls(service, num_calls // 5 + 1, num_workers)
        for _ in range(options.num_rounds):
            plain, figures = (latency_figures(make_calls(each, num_calls, num_workers)[0]) for each in services)
            figures["steps_per_second"] = figures["calls_per_second"] * num_workers * Short.num_steps
            result.rounds.append(_compared(figures, plain, "p50_seconds", lambda own, other: other / own))
    result.checks.append("all observations are the numbers of their steps")
    return result


def _compared(
    figures: dict[str, float], plain: dict[str, float], name: str, ratio: Callable[[float, float], float]
) -> dict[str, float]:
    """Return the figures with TLS, those without it under other names, and the speed with it relative to without."""
    others = {f"plain_{key}": value for key, value in plain.items()}
    return {**figures, **others, "ratio_to_plain": ratio(figures[name], plain[name])}


@contextlib.contextmanager
def _services(env: rollserve.EnvSpec, agent: rollserve.Agent, num_workers: int) -> Iterator[tuple[Service, Service]]:
    """Yield a service without TLS, and one with it."""
    with (
        running_service(env, agent, num_workers) as plain,
        running_service(env, agent, num_workers, encrypted=True) as encrypted,
    ):
        yield plain, encrypted
