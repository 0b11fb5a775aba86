"""W6: many workers, whose environments wait for something elsewhere, and a client that is slow."""

from __future__ import annotations

import numpy as np

import rollserve
from benchmarks.service.bulk import BULK, bulk_checksum
from benchmarks.service.environments import Bulk, Sleeping
from benchmarks.service.results import Options, Result, check
from benchmarks.service.running import call_figures, running_service

__all__ = ["measure_growth", "measure_slow_client"]

_SLEEP_SECONDS = 0.1
_SLEEPING = rollserve.EnvSpec(
    "benchmarks.service.environments:Sleeping", {"seconds": _SLEEP_SECONDS}, vectorization="rows", num_rows=1
)
_NUM_ROW_STEPS = 90
_SLOW_STEPS = 1020
_PAUSE_SECONDS = 0.02
_ANY_CORES = ("--worker-num-cpus", "0", "--start-seconds", "170")


def measure_growth(name: str, options: Options) -> list[Result]:
    """Measures the same environment with more and more workers; the ratio is to that of rows that only sleep.

    Raises:
        CheckError: what came is not what it should be.
    """
    results = []
    num_row_steps = options.scaled(_NUM_ROW_STEPS, Sleeping.num_steps)
    for num_workers in options.worker_counts:
        options.log(f"{name}: {num_workers} workers")
        num_steps = num_workers * num_row_steps
        settings = {"env": _SLEEPING.id, "kwargs": _SLEEPING.kwargs, "num_workers": num_workers, "num_steps": num_steps}
        title = f"an environment that sleeps 100 ms, workers: {num_workers}"
        result = Result(f"{name}-{num_workers}", title, settings)
        with running_service(_SLEEPING, rollserve.RandomAgent(), num_workers, *_ANY_CORES) as service:
            service.client.ask("obtain", call="fragments", num_steps=num_workers * Sleeping.num_steps)
            for _ in range(options.num_rounds):
                answer, cost = service.metered("obtain", call="fragments", num_steps=num_steps)
                check(answer["num_steps"] == num_steps, f"{answer['num_steps']} steps came, {num_steps} were asked for")
                _check_counting(service.last_sample(10 * Sleeping.num_steps)[0])
                figures = call_figures(answer, cost)
                figures["ratio_to_sleep"] = figures["steps_per_second"] / (num_workers / _SLEEP_SECONDS)
                result.rounds.append(figures)
        result.checks += [
            "exactly as many steps as were asked for",
            "the observations of a sample are its steps' numbers",
        ]
        results.append(result)
    return results


def measure_slow_client(name: str, options: Options) -> list[Result]:
    """Measures what the gateway holds while a client reads a large result slowly.

    Raises:
        CheckError: what came is not what it should be.
    """
    num_steps = options.scaled(_SLOW_STEPS, Bulk.num_steps)
    settings = {"env": BULK.id, "num_steps": num_steps, "num_workers": options.num_workers}
    settings["pause_seconds"] = _PAUSE_SECONDS
    result = Result(name, "a client that pauses 20 ms after each message", settings)
    with running_service(BULK, rollserve.RandomAgent(), options.num_workers) as service:
        for _ in range(options.num_rounds):
            service.sampler.update_agent(rollserve.RandomAgent())
            answer, cost = service.metered("stream", call="samples", num_steps=num_steps, pause_seconds=_PAUSE_SECONDS)
            check(answer["num_steps"] == num_steps, f"{answer['num_steps']} steps came, {num_steps} were asked for")
            same = answer["checksum"] == bulk_checksum(num_steps)
            check(same, "the observations are not what the environment shows")
            figures = call_figures(answer, cost)
            figures["gateway_growth_per_result_byte"] = figures["gateway_growth_bytes"] / answer["num_bytes"]
            figures["first_message_seconds"] = answer["first_message_seconds"]
            result.rounds.append(figures)
    result.checks.append("the checksum of all observations is that of what the environment shows")
    return [result]


def _check_counting(sample: rollserve.EpisodeBatch) -> None:
    steps = np.concatenate([first + np.arange(n) for first, n in zip(sample.first_steps, sample.lengths, strict=True)])
    same = np.array_equal(np.asarray(sample.observations), np.repeat(steps[:, np.newaxis], 4096, axis=1))
    check(same, "the observations are not the numbers of their steps")
