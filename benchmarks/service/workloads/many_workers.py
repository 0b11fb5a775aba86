"""w6-workers: more and more workers, whose environments wait for something remote."""

from __future__ import annotations

import numpy as np

import rollserve
from benchmarks.service.environments import Sleeping
from benchmarks.service.processes.server import Service, running_service
from benchmarks.service.results import Options, Result, check, check_num_steps
from benchmarks.service.workloads.figures import call_figures

__all__ = ["measure_many_workers"]

_SLEEP_SECONDS = 0.1
_SLEEPING = rollserve.EnvSpec(
    "benchmarks.service.environments:Sleeping", {"seconds": _SLEEP_SECONDS}, vectorization="rows", num_rows=1
)
_NUM_ROW_STEPS = 90
_NUM_CHECKED_STEPS = 10 * Sleeping.num_steps
_SERVER_OPTIONS = ("--worker-num-cpus", "0", "--start-seconds", "170")
"""Options that let any number of workers start on any number of cores."""


def measure_many_workers(name: str, options: Options) -> list[Result]:
    """Measure fragments with each number of workers. The ratio is to the rate of rows that only sleep.

    Raises:
        CheckError: delivered data is wrong.
    """
    num_row_steps = options.scaled(_NUM_ROW_STEPS, Sleeping.num_steps)
    results = []
    for num_workers in options.worker_counts:
        options.log(f"{name}: {num_workers} workers")
        num_steps = num_workers * num_row_steps
        settings = {"env": _SLEEPING.id, "kwargs": _SLEEPING.kwargs, "num_workers": num_workers, "num_steps": num_steps}
        title = f"an environment that sleeps 100 ms, workers: {num_workers}"
        result = Result(f"{name}-{num_workers}", title, settings)
        with running_service(_SLEEPING, rollserve.RandomAgent(), num_workers, *_SERVER_OPTIONS) as service:
            service.client.ask("obtain", call="fragments", num_steps=num_workers * Sleeping.num_steps)
            for _ in range(options.num_rounds):
                figures, result.checks = _measure(service, num_steps)
                figures["ratio_to_sleep"] = figures["steps_per_second"] / (num_workers / _SLEEP_SECONDS)
                result.rounds.append(figures)
        results.append(result)
    return results


def _measure(service: Service, num_steps: int) -> tuple[dict[str, float], list[str]]:
    """Return the figures of a call for fragments, and what was checked."""
    answer, cost = service.metered("obtain", call="fragments", num_steps=num_steps)
    checks = [check_num_steps(answer["num_steps"], num_steps), _check_numbers(service.last_sample(_NUM_CHECKED_STEPS))]
    return call_figures(answer, cost), checks


def _check_numbers(sample: rollserve.EpisodeBatch) -> str:
    steps = np.concatenate([first + np.arange(n) for first, n in zip(sample.first_steps, sample.lengths, strict=True)])
    same = np.array_equal(np.asarray(sample.observations), np.repeat(steps[:, np.newaxis], 4096, axis=1))
    check(same, "the observations differ from the numbers of their steps")
    return "the observations of a sample are the numbers of their steps"
