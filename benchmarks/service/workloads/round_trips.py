"""w5-round-trips: small calls, for one episode of ten steps from each worker."""

from __future__ import annotations

import rollserve
from benchmarks.service.agents import mlp_agent
from benchmarks.service.environments import Short
from benchmarks.service.processes.server import Service, running_service
from benchmarks.service.results import Options, Result
from benchmarks.service.workloads.figures import cost_figures, latency_figures

__all__ = ["SHORT", "SMALL_AGENT", "make_calls", "measure_round_trips"]

SHORT = rollserve.EnvSpec("benchmarks.service.environments:Short", vectorization="rows", num_rows=1)
SMALL_AGENT = mlp_agent((4, 16, 2), "categorical")
_NUM_CALLS = 500


def measure_round_trips(name: str, options: Options) -> list[Result]:
    """Measure `obtain_exact_episodes(1)` of an environment with ten steps.

    Raises:
        RuntimeError: delivered observations are wrong.
    """
    num_calls = options.scaled(_NUM_CALLS)
    settings = {"env": SHORT.id, "num_workers": options.num_workers, "num_calls": num_calls}
    result = Result(name, "obtain_exact_episodes(1) of a ten-step environment", settings)
    with running_service(SHORT, SMALL_AGENT, options.num_workers) as service:
        make_calls(service, num_calls // 5 + 1, options.num_workers)
        for _ in range(options.num_rounds):
            latencies, cost = make_calls(service, num_calls, options.num_workers)
            num_steps = num_calls * options.num_workers * Short.num_steps
            result.rounds.append(
                {
                    **latency_figures(latencies),
                    "steps_per_second": num_steps / sum(latencies),
                    **cost_figures(cost, num_steps),
                }
            )
    result.checks.append("all observations are the numbers of their steps")
    return [result]


def make_calls(service: Service, num_calls: int, num_workers: int) -> tuple[list[float], dict[str, float]]:
    """Return the latencies of calls one after the other, and their cost."""
    answer, cost = service.metered(
        "round_trips", num_calls=num_calls, num_workers=num_workers, num_episode_steps=Short.num_steps
    )
    return answer["latencies"], cost
