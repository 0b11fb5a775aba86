"""The processes of the clients."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from faults.chaos.events import EventLog
from faults.chaos.service import Service, python_path

__all__ = ["Fleet"]

_END_SECONDS = 150.0  # longer than the timeout of calls, and than a restart of the server


class Fleet:
    """Client processes, with replacements for killed ones.

    Attributes:
        logs: logs of all clients, killed ones included.
        problems: a sentence for each client that did not end properly.
    """

    def __init__(self, service: Service, folder: Path, log: EventLog, num_clients: int, config: dict[str, Any]) -> None:
        """Start the clients of a server, each a principal, with a configuration for `client.main`."""
        self.logs: list[Path] = []
        self.problems: list[str] = []
        self._service = service
        self._folder = folder
        self._log = log
        self._stop = folder / "stop"
        self._config = {**config, "stop": str(self._stop)}
        self._clients = [self._start(number, 0) for number in range(num_clients)]
        self._incarnations = [0] * num_clients

    def chosen(self, draw: float) -> int:
        """Return the client that a random number from 0 to 1 selects."""
        return int(draw * len(self._clients))

    def kill(self, number: int) -> None:
        """Kill a client, and start another in its place."""
        self._clients[number].kill()
        self._clients[number].wait()
        self._incarnations[number] += 1
        self._clients[number] = self._start(number, self._incarnations[number])

    def pid(self, number: int) -> int:
        """Return the process id of a client."""
        return self._clients[number].pid

    def wait(self) -> None:
        """Let all clients finish their calls and end."""
        self._stop.touch()
        deadline = time.monotonic() + _END_SECONDS
        for number, client in enumerate(self._clients):
            try:
                status = client.wait(max(deadline - time.monotonic(), 1))
            except subprocess.TimeoutExpired:
                self.problems.append(f"client {number} did not end")
                client.send_signal(signal.SIGCONT)
                client.kill()
                client.wait()
            else:
                if status:
                    self.problems.append(f"client {number} ended with status {status}: see {self._folder}")

    def kill_all(self) -> None:
        """Kill all clients that still run."""
        for client in self._clients:
            if client.poll() is None:
                client.kill()
                client.wait()

    def _start(self, number: int, incarnation: int) -> subprocess.Popen[bytes]:
        name = f"client-{number}-{incarnation}"
        self.logs.append(self._folder / f"{name}.jsonl")
        EventLog(self.logs[-1]).close()
        config = {**self._config, "address": self._service.address, "name": name, "log": str(self.logs[-1])}
        token = self._service.token_file(f"client-{number}", "client")
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with (self._folder / f"{name}.txt").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "faults.chaos.client", json.dumps(config)],
                env={**os.environ, **python_path(), **threads, "ROLLSERVE_TOKEN_FILE": str(token)},
                stdout=output,
                stderr=output,
            )
        self._log.write("client started", name=name, pid=process.pid)
        return process
