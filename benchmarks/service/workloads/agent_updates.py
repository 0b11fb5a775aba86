"""w5-update: updates of the agent, with parameters of several sizes."""

from __future__ import annotations

from benchmarks.service.agents import mlp_agent, num_parameters
from benchmarks.service.checks import check_log_probs
from benchmarks.service.processes.server import traced_service
from benchmarks.service.results import Options, Result
from benchmarks.service.workloads.figures import latency_figures
from benchmarks.service.workloads.phases import update_phases
from benchmarks.service.workloads.round_trips import SHORT, SMALL_AGENT

__all__ = ["measure_updates"]

_SIZES = {"10k": ((4, 96, 96, 2), 60), "1M": ((4, 1000, 992, 2), 20)}
"""Sizes of the layers, and number of timed updates, by the size's name."""


def measure_updates(name: str, options: Options) -> list[Result]:
    """Measure `update_agent` with parameters of several sizes.

    Raises:
        CheckError: the workers do not act by the last parameters.
        RuntimeError: an update does not raise the policy version by 1.
    """
    results = []
    with traced_service(SHORT, SMALL_AGENT, options.num_workers) as service:
        for size, (layer_sizes, num_unscaled_updates) in _SIZES.items():
            num_updates = options.scaled(num_unscaled_updates)
            count = num_parameters(mlp_agent(layer_sizes, "categorical"))
            settings = {"num_parameters": count, "num_workers": options.num_workers, "num_updates": num_updates}
            result = Result(f"{name}-{size}", f"update_agent of {count:,} parameters", settings)
            for _ in range(options.num_rounds):
                service.meter.start()
                answer, events = service.traced("updates", num_updates=num_updates, layer_sizes=layer_sizes)
                cost, updates = service.meter.stop(), answer["updates"]
                latencies = [update["ended"] - update["began"] for update in updates]
                phases = update_phases(updates, events)
                result.rounds.append({**latency_figures(latencies), **phases, **cost})
                last_agent = mlp_agent(layer_sizes, "categorical", answer["last_seed"])
                check_log_probs(service.last_sample(1), last_agent)
            result.checks += ["each update raises the version by 1", "the workers act by the last parameters"]
            results.append(result)
    return results
