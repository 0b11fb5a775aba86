"""w4-bulk: observations of 1 MiB that take no time to make, through gRPC and through shared memory."""

from __future__ import annotations

import rollserve
from benchmarks.service.environments import Bulk, bulk_observations, expected_checksum
from benchmarks.service.results import Options, Result
from benchmarks.service.workloads.data_plane import CHECKSUM_HOLDS, Route, data_routes

__all__ = ["BULK", "NUM_BULK_STEPS", "measure_bulk"]

BULK = rollserve.EnvSpec("benchmarks.service.environments:Bulk", vectorization="rows", num_rows=1)
NUM_BULK_STEPS = 540
"""Number of steps: 566 MB, about as much as 20,000 stacks of four frames of 84x84."""
_SHARING = ("--shared-memory-bytes", str(64 << 20))
_TITLES = {
    "": "1 MiB observations, the whole path",
    "-leg": "1 MiB observations, from gateway to client only",
    "-shared": "1 MiB observations, shared memory, the whole path",
    "-shared-leg": "1 MiB observations, shared memory, from gateway to client only",
}
"""Titles of the results, by what follows the workload's name."""


def measure_bulk(name: str, options: Options) -> list[Result]:
    """Measure the whole path in turns with its last leg, each with and without shared memory.

    Raises:
        CheckError: delivered data is wrong.
    """
    num_steps = options.scaled(NUM_BULK_STEPS, Bulk.num_steps)
    settings = {"env": BULK.id, "num_steps": num_steps, "num_workers": options.num_workers}
    results = {
        suffix: Result(name + suffix, title, settings, checks=[CHECKSUM_HOLDS]) for suffix, title in _TITLES.items()
    }
    checksum = expected_checksum(bulk_observations(), num_steps)
    with data_routes(BULK, options.num_workers, num_steps, checksum, *_SHARING) as (whole, leg):
        whole.warm_up()
        leg.warm_up()
        for _ in range(options.num_rounds):
            for suffix, figures in _measure_round(whole, leg).items():
                results[suffix].rounds.append(figures)
    return list(results.values())


def _measure_round(whole: Route, leg: Route) -> dict[str, dict[str, float]]:
    """Return the figures of all four ways, by what follows the workload's name."""
    figures = whole.obtain()
    figures["first_message_seconds"] = whole.stream()["first_message_seconds"]
    figures["client_growth_per_result_byte"] = figures["client_growth_bytes"] / figures["num_bytes"]
    leg_figures = leg.obtain()
    shared_leg_figures = leg.obtain(shared_memory=True)
    shared_figures = whole.obtain(shared_memory=True)
    rate = "megabytes_per_second"
    figures["ratio_to_leg"] = figures[rate] / leg_figures[rate]
    shared_figures["ratio_to_sent"] = shared_figures[rate] / figures[rate]
    shared_leg_figures["ratio_to_sent"] = shared_leg_figures[rate] / leg_figures[rate]
    return {"": figures, "-leg": leg_figures, "-shared": shared_figures, "-shared-leg": shared_leg_figures}
