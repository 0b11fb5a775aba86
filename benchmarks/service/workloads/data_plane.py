"""The data plane: calls whose observations are ready in memory, so that only moving them takes time.

A call is measured on two routes: from workers through the gateway to a client, and from a gateway that has recorded the
messages to a client, which is the last leg of the first route.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psutil

import rollserve
from benchmarks.service.processes.meter import Meter
from benchmarks.service.processes.server import running_service
from benchmarks.service.results import check, check_num_steps
from benchmarks.service.workloads.figures import call_figures
from benchmarks.shared.commands import Child

__all__ = ["CHECKSUM_HOLDS", "Route", "data_routes"]

CHECKSUM_HOLDS = "the checksum of all observations is the environment's"
"""Check that each call on a route passes."""


@dataclass(frozen=True)
class Route:
    """A route of data to a client process.

    Attributes:
        client: process whose calls are timed.
        meter: meter of the processes on the route.
        prepare: called before each call.
        call: options of all calls, such as `num_steps`.
        checksum: checksum of the observations of each call.
    """

    client: Child
    meter: Meter
    prepare: Callable[[], object]
    call: dict[str, Any]
    checksum: int

    def obtain(self, **options: Any) -> dict[str, float]:
        """Measure a call for one batch, check its observations, and return its figures.

        Raises:
            CheckError: delivered data is wrong.
        """
        self.prepare()
        self.meter.start()
        answer = self.client.ask("obtain", **self.call, **options)
        figures = call_figures(answer, self.meter.stop())
        check_num_steps(answer["num_steps"], self.call["num_steps"])
        same = self.client.ask("checksum")["checksum"] == self.checksum
        check(same, "the observations differ from the environment's")
        if options.get("shared_memory"):
            check(answer["shared_message_bytes"] > answer["num_bytes"] / 2, "less than half came through shared memory")
        return figures

    def stream(self, **options: Any) -> dict[str, Any]:
        """Return the client's answer about a call message by message."""
        self.prepare()
        return self.client.ask("stream", **self.call, **options)

    def warm_up(self, **options: Any) -> None:
        """Make a call without measuring it. A recording gateway records it."""
        self.client.ask("obtain", **self.call, **options)


@contextlib.contextmanager
def data_routes(
    env: rollserve.EnvSpec, num_workers: int, num_steps: int, checksum: int, *server_options: str
) -> Iterator[tuple[Route, Route]]:
    """Yield the route from workers to a client, and the route from a recording gateway to another client."""
    call = {"call": "samples", "num_steps": num_steps}
    agent = rollserve.RandomAgent()
    with running_service(env, agent, num_workers, *server_options) as service, _recorded_leg(env) as (client, meter):
        # An update discards what the workers hold of the previous call.
        whole = Route(service.client, service.meter, lambda: service.sampler.update_agent(agent), call, checksum)
        yield whole, Route(client, meter, lambda: None, call, checksum)


@contextlib.contextmanager
def _recorded_leg(env: rollserve.EnvSpec) -> Iterator[tuple[Child, Meter]]:
    """Yield a client of a recording gateway, and the meter of both."""
    with contextlib.ExitStack() as stack:
        gateway = stack.enter_context(Child("benchmarks.service.processes.recorded_gateway", env.id))
        port = gateway.ask("port")["port"]
        client = stack.enter_context(Child("benchmarks.service.processes.client", f"127.0.0.1:{port}"))
        client.ask("hello")
        yield client, Meter({"gateway": [psutil.Process(gateway.pid)], "client": [psutil.Process(client.pid)]})
