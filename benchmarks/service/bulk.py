"""W4: the data plane alone. Observations of 1 MiB that cost nothing, to the client, and from the gateway to it only."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator, Mapping

import psutil

import rollserve
from benchmarks.service.children import Child
from benchmarks.service.environments import Bulk, bulk_observations
from benchmarks.service.processes import Meter
from benchmarks.service.results import Options, Result, check
from benchmarks.service.running import call_figures, running_service

__all__ = ["BULK", "NUM_BULK_STEPS", "bulk_checksum", "measure_bulk", "recorded_leg"]

BULK = rollserve.EnvSpec("benchmarks.service.environments:Bulk", vectorization="rows", num_rows=1)
NUM_BULK_STEPS = 540
"""566 MB, about as much as 20,000 stacks of four frames of 84x84."""
_SHARING = ("--shared-memory-bytes", str(64 << 20))
_FOUND = "the checksum of all observations is that of what the environment shows"


def measure_bulk(name: str, options: Options) -> list[Result]:
    """Measures the whole path, and in turns with it the leg from a gateway to a client.

    Raises:
        CheckError: what came is not what it should be.
    """
    num_steps = options.scaled(NUM_BULK_STEPS, Bulk.num_steps)
    settings = {"env": BULK.id, "num_steps": num_steps, "num_workers": options.num_workers}
    whole = Result(name, "1 MiB observations, the whole path", settings, checks=[_FOUND])
    leg = Result(f"{name}-leg", "1 MiB observations, from gateway to client only", settings, checks=[_FOUND])
    shared = Result(f"{name}-shared", "1 MiB observations, shared memory, the whole path", settings, checks=[_FOUND])
    shared_leg = Result(
        f"{name}-shared-leg",
        "1 MiB observations, shared memory, from gateway to client only",
        settings,
        checks=[_FOUND],
    )
    with (
        running_service(BULK, rollserve.RandomAgent(), options.num_workers, *_SHARING) as service,
        recorded_leg(BULK) as (client, meter),
    ):
        service.client.ask("obtain", call="samples", num_steps=num_steps)
        client.ask("obtain", call="samples", num_steps=num_steps)
        for _ in range(options.num_rounds):
            service.sampler.update_agent(rollserve.RandomAgent())
            answer, cost = service.metered("obtain", call="samples", num_steps=num_steps)
            _check(answer["num_steps"], num_steps, service.last_sample(1)[1])
            figures = call_figures(answer, cost)
            service.sampler.update_agent(rollserve.RandomAgent())
            streamed = service.client.ask("stream", call="samples", num_steps=num_steps)
            figures["first_message_seconds"] = streamed["first_message_seconds"]
            figures["client_growth_per_result_byte"] = figures["client_growth_bytes"] / answer["num_bytes"]
            meter.start()
            leg_answer = client.ask("obtain", call="samples", num_steps=num_steps)
            leg_figures = call_figures(leg_answer, meter.stop())
            _check(leg_answer["num_steps"], num_steps, client.ask("sample", path="", num_steps=0)["checksum"])
            figures["ratio_to_leg"] = figures["megabytes_per_second"] / leg_figures["megabytes_per_second"]
            whole.rounds.append(figures)
            leg.rounds.append(leg_figures)
            shared_leg.rounds.append(_shared_figures(client, meter, num_steps, leg_figures))
            service.sampler.update_agent(rollserve.RandomAgent())
            shared.rounds.append(_shared_figures(service.client, service.meter, num_steps, figures))
    return [whole, leg, shared, shared_leg]


def bulk_checksum(num_steps: int) -> int:
    """The checksum of all observations of so many steps, in whole episodes."""
    checksum = 0
    episode = bulk_observations()[: Bulk.num_steps]
    for _ in range(num_steps // Bulk.num_steps):
        checksum = zlib.crc32(episode.data, checksum)
    return checksum


@contextlib.contextmanager
def recorded_leg(env: rollserve.EnvSpec) -> Iterator[tuple[Child, Meter]]:
    """A client of a gateway that has the messages after the first call, and the meter of both."""
    with contextlib.ExitStack() as stack:
        gateway = stack.enter_context(Child("benchmarks.service.recorded_gateway", env.id))
        port = gateway.ask("port")["port"]
        client = stack.enter_context(Child("benchmarks.service.client", f"127.0.0.1:{port}"))
        client.ask("hello")
        yield client, Meter({"gateway": [psutil.Process(gateway.pid)], "client": [psutil.Process(client.pid)]})


def _shared_figures(client: Child, meter: Meter, num_steps: int, sent_figures: Mapping[str, float]) -> dict[str, float]:
    """Figures of a call through shared memory, beside those of one that was sent."""
    meter.start()
    answer = client.ask("obtain", call="samples", num_steps=num_steps, shared_memory=True)
    figures = call_figures(answer, meter.stop())
    _check(answer["num_steps"], num_steps, client.ask("sample", path="", num_steps=0)["checksum"])
    check(answer["shared_message_bytes"] > answer["num_bytes"] / 2, "most of it came through shared memory")
    figures["ratio_to_sent"] = figures["megabytes_per_second"] / sent_figures["megabytes_per_second"]
    return figures


def _check(num_steps: int, expected: int, checksum: int) -> None:
    check(num_steps == expected, f"{num_steps} steps came, {expected} were expected")
    check(checksum == bulk_checksum(num_steps), "the observations are not what the environment shows")
