"""A server, its workers and a client, while something is measured."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import rollserve
from benchmarks.service.children import Child, one_thread
from benchmarks.service.processes import Meter, processes_of_server
from rollserve_server.local import local_server

__all__ = ["Service", "call_figures", "running_service"]

_ENVIRONMENTS = "benchmarks.service.environments"


@dataclass(frozen=True)
class Service:
    """What runs.

    Attributes:
        sampler: to set things up with, from this process.
        client: the process whose calls are timed.
        meter: of the groups gateway, workers, ray and client.
        folder: for files of the measurement; gone at its end.
    """

    sampler: rollserve.Sampler
    client: Child
    meter: Meter
    folder: Path

    def metered(self, command: str, **arguments: Any) -> tuple[dict[str, Any], dict[str, float]]:
        """What the client answers to a command, and what that cost."""
        self.meter.start()
        answer = self.client.ask(command, **arguments)
        return answer, self.meter.stop()

    def last_sample(self, num_steps: int) -> tuple[rollserve.EpisodeBatch, int]:
        """Segments with about so many steps of the batch that the client got last, and the observations' checksum."""
        path = self.folder / "sample.npz"
        checksum = self.client.ask("sample", path=str(path), num_steps=num_steps)["checksum"]
        return rollserve.EpisodeBatch.load(path), checksum


@contextlib.contextmanager
def running_service(
    env: rollserve.EnvSpec, agent: rollserve.agents.Agent, num_workers: int, *options: str
) -> Iterator[Service]:
    """Starts a server with an environment and an agent, and a client, for as long as the block runs.

    Raises:
        RuntimeError: the server did not start, or its workers cannot be told from other processes.
    """
    arguments = ("--env", "CartPole-v1", "--workers", str(num_workers), "--allow-module", _ENVIRONMENTS, *options)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rollserve-bench-")))
        server = stack.enter_context(local_server(*arguments, log=folder / "log", environment=one_thread()))
        sampler = stack.enter_context(rollserve.connect(server.address, timeout=300))
        sampler.update_env(env)
        sampler.update_agent(agent)
        client = stack.enter_context(Child("benchmarks.service.client", server.address))
        client.ask("hello")
        groups = {**processes_of_server(server.process.pid), "client": [psutil.Process(client.pid)]}
        if len(groups["workers"]) != num_workers:
            raise RuntimeError(f"{len(groups['workers'])} worker processes were found, {num_workers} were expected")
        yield Service(sampler, client, Meter(groups), folder)


def call_figures(answer: dict[str, Any], cost: dict[str, float]) -> dict[str, float]:
    """The figures of one call: what it brought in what time, and what it cost in CPU time and memory."""
    figures = {
        "seconds": answer["seconds"],
        "num_steps": answer["num_steps"],
        "num_bytes": answer["num_bytes"],
        "steps_per_second": answer["num_steps"] / answer["seconds"],
        "megabytes_per_second": answer["num_bytes"] / answer["seconds"] / 1e6,
    }
    for name, value in cost.items():
        if name.endswith("_cpu_seconds"):
            figures[f"{name}_per_million_steps"] = value / answer["num_steps"] * 1e6
            figures[f"{name}_per_gigabyte"] = value / answer["num_bytes"] * 1e9
        else:
            figures[name] = value
    return figures
