"""A running service: a server with its workers, and a client process."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import rollserve
from benchmarks.service.processes.meter import Meter, processes_of_server
from benchmarks.shared.commands import Child
from benchmarks.shared.processes import one_thread
from rollserve_server.local import local_server

__all__ = ["Service", "running_service"]

_ENVIRONMENTS = "benchmarks.service.environments"
_TIMEOUT_SECONDS = 300


@dataclass(frozen=True)
class Service:
    """A running service.

    Attributes:
        sampler: sampler of this process, for updates.
        client: process whose calls are timed.
        meter: meter of the groups `gateway`, `workers`, `ray` and `client`.
        folder: folder for the measurement's files; removed at the end.
    """

    sampler: rollserve.Sampler
    client: Child
    meter: Meter
    folder: Path

    def metered(self, command: str, **arguments: Any) -> tuple[dict[str, Any], dict[str, float]]:
        """Return the client's answer to a command, and the command's cost as `Meter.stop` returns it."""
        self.meter.start()
        answer = self.client.ask(command, **arguments)
        return answer, self.meter.stop()

    def last_sample(self, num_steps: int) -> rollserve.EpisodeBatch:
        """Return segments with about `num_steps` steps from the client's last batch."""
        path = self.folder / "sample.npz"
        self.client.ask("save_sample", path=str(path), num_steps=num_steps)
        return rollserve.EpisodeBatch.load(path)


@contextlib.contextmanager
def running_service(
    env: rollserve.EnvSpec, agent: rollserve.Agent, num_workers: int, *server_options: str
) -> Iterator[Service]:
    """Run a server with an environment and an agent, and a client, for as long as the block.

    Raises:
        RuntimeError: the server does not start, or not all of its workers run.
    """
    arguments = ("--env", "CartPole-v1", "--workers", str(num_workers), "--allow-module", _ENVIRONMENTS)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rollserve-bench-")))
        server = stack.enter_context(
            local_server(*arguments, *server_options, log=folder / "log", environment=one_thread())
        )
        sampler = stack.enter_context(rollserve.connect(server.address, timeout=_TIMEOUT_SECONDS))
        sampler.update_env(env)
        sampler.update_agent(agent)
        client = stack.enter_context(Child("benchmarks.service.processes.client", server.address))
        client.ask("hello")
        worker_pids = {worker.process_id for worker in sampler.status().workers}
        groups = {
            **processes_of_server(server.process.pid, worker_pids),
            "client": [psutil.Process(client.pid)],
        }
        yield Service(sampler, client, Meter(groups), folder)
