"""w6-slow-client: memory of the gateway while a client reads a large result slowly."""

from __future__ import annotations

import rollserve
from benchmarks.service.environments import Bulk, bulk_observations, expected_checksum
from benchmarks.service.processes.server import running_service
from benchmarks.service.results import Options, Result, check, check_num_steps
from benchmarks.service.workloads.bulk import BULK
from benchmarks.service.workloads.data_plane import CHECKSUM_HOLDS
from benchmarks.service.workloads.figures import call_figures

__all__ = ["measure_slow_client"]

_NUM_STEPS = 1020
_PAUSE_SECONDS = 0.02


def measure_slow_client(name: str, options: Options) -> list[Result]:
    """Measure a stream of observations of 1 MiB to a client that pauses after each message.

    Raises:
        CheckError: delivered data is wrong.
    """
    num_steps = options.scaled(_NUM_STEPS, Bulk.num_steps)
    settings = {"env": BULK.id, "num_steps": num_steps, "num_workers": options.num_workers}
    settings["pause_seconds"] = _PAUSE_SECONDS
    title = "a client that pauses 20 ms after each message"
    result = Result(name, title, settings, checks=[CHECKSUM_HOLDS])
    checksum = expected_checksum(bulk_observations(), num_steps)
    with running_service(BULK, rollserve.RandomAgent(), options.num_workers) as service:
        for _ in range(options.num_rounds):
            service.sampler.update_agent(rollserve.RandomAgent())
            answer, cost = service.metered("stream", call="samples", num_steps=num_steps, pause_seconds=_PAUSE_SECONDS)
            check_num_steps(answer["num_steps"], num_steps)
            check(answer["checksum"] == checksum, "the observations differ from the environment's")
            figures = call_figures(answer, cost)
            figures["gateway_growth_per_result_byte"] = figures["gateway_growth_bytes"] / answer["num_bytes"]
            figures["first_message_seconds"] = answer["first_message_seconds"]
            result.rounds.append(figures)
    return [result]
