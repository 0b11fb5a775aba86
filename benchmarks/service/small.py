"""W5: calls that are small: an episode of each worker, and updates of the agent."""

from __future__ import annotations

import numpy as np

import rollserve
from benchmarks.service.agents import mlp_agent, num_parameters
from benchmarks.service.checks import check_log_probs
from benchmarks.service.environments import Short
from benchmarks.service.results import Options, Result
from benchmarks.service.running import Service, running_service

__all__ = ["measure_round_trips", "measure_updates"]

_ENV = rollserve.EnvSpec("benchmarks.service.environments:Short", vectorization="rows", num_rows=1)
_SMALL_AGENT = (4, 16, 2)
_NUM_CALLS = 500
_UPDATED_AGENTS = {"10k": ((4, 96, 96, 2), 60), "1M": ((4, 1000, 992, 2), 20)}
"""By name the layers' sizes, and how many updates are timed."""


def measure_round_trips(name: str, options: Options) -> list[Result]:
    """Measures `obtain_exact_episodes(1)` of an environment with ten steps.

    Raises:
        RuntimeError: what came is not what it should be.
    """
    num_calls = options.scaled(_NUM_CALLS)
    settings = {"env": _ENV.id, "num_workers": options.num_workers, "num_calls": num_calls}
    result = Result(name, "obtain_exact_episodes(1) of a ten-step environment", settings)
    with running_service(_ENV, mlp_agent(_SMALL_AGENT, "categorical"), options.num_workers) as service:
        _round_trips(service, num_calls // 5 + 1, options.num_workers)
        for _ in range(options.num_rounds):
            latencies, cost = _round_trips(service, num_calls, options.num_workers)
            num_steps = num_calls * options.num_workers * Short.num_steps
            figures = _latency_figures(latencies)
            figures["steps_per_second"] = num_steps / latencies.sum()
            for group, seconds in cost.items():
                if group.endswith("_cpu_seconds"):
                    figures[f"{group}_per_million_steps"] = seconds / num_steps * 1e6
                else:
                    figures[group] = seconds
            result.rounds.append(figures)
    result.checks.append("the observations of all steps are their numbers")
    return [result]


def measure_updates(name: str, options: Options) -> list[Result]:
    """Measures `update_agent` with parameters of several sizes.

    Raises:
        CheckError: the workers do not act by the last parameters.
        RuntimeError: the versions are not as they should be.
    """
    results = []
    with running_service(_ENV, mlp_agent(_SMALL_AGENT, "categorical"), options.num_workers) as service:
        for size, (layer_sizes, num_all_updates) in _UPDATED_AGENTS.items():
            num_updates = options.scaled(num_all_updates)
            last_agent = mlp_agent(layer_sizes, "categorical", num_updates)
            count = num_parameters(last_agent)
            settings = {"num_parameters": count, "num_workers": options.num_workers, "num_updates": num_updates}
            result = Result(f"{name}-{size}", f"update_agent of {count:,} parameters", settings)
            for _ in range(options.num_rounds):
                answer, cost = service.metered("updates", num_updates=num_updates, layer_sizes=layer_sizes)
                result.rounds.append({**_latency_figures(np.array(answer["latencies"])), **cost})
                check_log_probs(service.last_sample(1)[0], last_agent)
            result.checks += ["each update raises the version by one", "the workers act by the last parameters"]
            results.append(result)
    return results


def _round_trips(service: Service, num_calls: int, num_workers: int) -> tuple[np.ndarray, dict[str, float]]:
    answer, cost = service.metered(
        "round_trips", num_calls=num_calls, num_workers=num_workers, num_episode_steps=Short.num_steps
    )
    return np.array(answer["latencies"]), cost


def _latency_figures(latencies: np.ndarray) -> dict[str, float]:
    p50, p99 = np.quantile(latencies, (0.5, 0.99))
    return {"p50_seconds": float(p50), "p99_seconds": float(p99), "calls_per_second": len(latencies) / latencies.sum()}
