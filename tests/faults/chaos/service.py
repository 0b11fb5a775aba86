"""The server under test, which is restarted on the same port."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import psutil
from faults.chaos.catalogue import ENV_MODULE, MAX_WORKERS, NUM_ROWS, PROFILES
from faults.chaos.environments import FOLDER
from faults.chaos.events import EventLog
from faults.chaos.processes import Usage, family, is_host, name_of, still_running, usage_of
from principals import Tokens
from ray_clusters import OTHER_VERSION, free_port, wait_for_text

import rollserve
from rollserve_server.sampling import ORDERS_FORMAT

__all__ = ["HOSTILE", "REPOSITORY", "Cluster", "Service", "notes_of", "python_path"]

REPOSITORY = Path(__file__).parents[3]
HOSTILE = "hostile"
"""Name of the hostile tenant's principal, and of the sampler that it may do with what it likes."""
_SCOPES = {
    "operator": ("*",),
    "client": ("status", "sample", "drive", "agent:read"),
    HOSTILE: ("status@default", "sample@default", f"*@{HOSTILE}"),
}
"""Scopes of each role."""
_STOP_SECONDS = 60.0
_FAMILY_SECONDS = 100.0  # agents of Ray check once a minute that their raylet lives


def python_path() -> dict[str, str]:
    """Return the environment variables that let processes find this package."""
    folders = [str(REPOSITORY / "tests" / "helpers"), str(REPOSITORY / "tests")]
    paths = [*folders, os.environ.get("PYTHONPATH")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


class Cluster(Protocol):
    """A Ray cluster: its address, the environment variables of its servers, and the parent of its processes."""

    @property
    def address(self) -> str: ...
    @property
    def environment(self) -> Mapping[str, str]: ...
    @property
    def process(self) -> psutil.Process: ...


def notes_of(folder: Path) -> Path:
    """Return the folder where the environments of a run note their faults."""
    notes = folder / "notes"
    notes.mkdir(parents=True, exist_ok=True)
    return notes


class Service:
    """A server that can be killed, stopped and restarted, and asks its clients for tokens.

    Attributes:
        address: address where it listens, `host:port`.
        pid: process id of the current or the last server.
        problems: a sentence for each wrong exit status and for each process left behind.
        logs: logs of all its processes.
    """

    def __init__(
        self,
        folder: Path,
        log: EventLog,
        *,
        seed: int,
        num_workers: int,
        options: Sequence[str],
        cluster: Cluster | None = None,
    ) -> None:
        """Prepare a server.

        Args:
            folder: folder for logs.
            log: log of starts and ends.
            seed: root seed.
            num_workers: number of workers.
            options: further options.
            cluster: cluster of the workers, or None for Ray on this machine.
        """
        self.address = f"127.0.0.1:{free_port()}"
        self.pid = 0
        self.problems: list[str] = []
        self._earlier: list[psutil.Process] = []
        self.logs: list[Path] = []
        self._folder = folder
        self._tokens = Tokens(folder / "tokens.json")
        self._token_files: dict[str, Path] = {}
        self._log = log
        self._is_other_version = False
        self._options = [
            *("--env", "CartPole-v1", "--vectorization", "rows"),
            *("--rows", str(NUM_ROWS), "--workers", str(num_workers), "--seed", str(seed), "--listen", self.address),
            *(
                "--profiles",
                json.dumps(PROFILES),
                "--allow-module",
                ENV_MODULE,
                "--shared-memory-bytes",
                str(128 << 20),
            ),
            *("--worker-observation-bytes", str(256 << 20)),
            *("--worker-buffer-bytes", str(8 << 20), "--call-window-bytes", str(2 << 20)),
            *("--worker-num-cpus", "0.1", "--max-workers", str(max(MAX_WORKERS, num_workers) + 1)),
            *("--max-samplers", "2", "--max-sampler-workers", "1", "--max-sampler-steps-per-second", "1000"),
            *self._tokens.options,
            *("--step-seconds", "3", "--reset-seconds", "60", "--worker-restarts-per-hour", "100000"),
            *("--end-with-parent", str(os.getpid()), *options),
        ]
        self._environment = {**os.environ, **python_path(), FOLDER: str(notes_of(folder))}
        self._cluster = cluster
        if cluster is None:
            self._options += ["--object-store-bytes", str(256 << 20)]
        else:
            self._options += ["--ray-address", cluster.address, "--keep-workers"]
            self._environment |= cluster.environment
        self._process: subprocess.Popen[bytes] | None = None

    def token_file(self, name: str, role: str) -> Path:
        """Return a file with a token of a principal, which has the scopes of a role."""
        if name not in self._token_files:
            path = self._token_files[name] = self._folder / f"{name}.token"
            path.write_text(self._tokens.create(name, *_SCOPES[role]))
        return self._token_files[name]

    def connect(self, **options: Any) -> rollserve.Sampler:
        """Return a client that may do everything."""
        return rollserve.connect(self.address, token_file=self.token_file("operator", "operator"), **options)

    def start(self) -> None:
        """Start the server, and wait until it serves.

        Raises:
            RuntimeError: the server did not start.
        """
        self._launch()
        self._wait_for("serving")

    def upgrade(self) -> None:
        """Start a server of another version, which stands by, end the present one, and wait until the new one serves.

        Without a cluster, where no server goes on with the sampler of another one, nothing happens.

        Raises:
            RuntimeError: the new server did not start.
        """
        if self._cluster is None:
            return
        before = self._process, self.pid
        self._is_other_version = not self._is_other_version
        self._launch()
        after = self._process, self.pid
        self._wait_for("standing by")
        self._process, self.pid = before
        began = time.monotonic()
        self.stop()
        self._process, self.pid = after
        self._wait_for("serving")
        self._log.write("server upgraded", pid=self.pid, seconds=round(time.monotonic() - began, 3))

    def _launch(self) -> None:
        self.logs.append(self._folder / f"server-{len(self.logs)}.log")
        run = ("-c", OTHER_VERSION.format(ORDERS_FORMAT)) if self._is_other_version else ("-m", "rollserve_server")
        with self.logs[-1].open("wb") as log:
            command = [sys.executable, *run, *self._options]
            self._process = subprocess.Popen(command, stderr=log, stdout=log, env=self._environment)
        self.pid = self._process.pid

    def _wait_for(self, event: str) -> None:
        assert self._process is not None
        wait_for_text(self.logs[-1], f" {event} ", self._process)
        self._log.write(f"server {event}", pid=self.pid)

    def processes(self) -> list[psutil.Process]:
        """Return the running processes of the server and its cluster."""
        return [*family(self.pid), *(family(self._cluster.process.pid) if self._cluster else ())]

    def workers(self) -> list[psutil.Process]:
        """Return the running processes of workers."""
        return self._called("worker")

    def hosts(self) -> list[psutil.Process]:
        """Return the running processes of hosts."""
        return [each for worker in self.workers() for each in family(worker.pid) if is_host(each)]

    def journal(self) -> int:
        """Return the process id of the journal, or 0 if there is none."""
        return next((each.pid for each in self._called("journal")), 0)

    def usages(self) -> dict[int, Usage]:
        """Return the usage of each process, by process id."""
        return usage_of(self.processes(), self.pid)

    def kill(self) -> None:
        """Kill the server; its children have to end by themselves."""
        self._end(signal.SIGKILL, expected=-signal.SIGKILL)

    def stop(self) -> None:
        """Stop the server with SIGTERM."""
        self._end(signal.SIGTERM, expected=0)

    def check_left_behind(self) -> None:
        """Add a problem for each process that has outlived its server."""
        for process in still_running([*self._earlier, *self.workers()], _FAMILY_SECONDS):
            self.problems.append(f"the server left a process behind: {process.pid} {process.name()}")
            process.kill()
        self._earlier.clear()

    def _called(self, name: str) -> list[psutil.Process]:
        found = [each for each in self.processes() if name_of(each, self.pid) == name]
        return sorted(found, key=lambda each: each.pid)

    def _end(self, number: int, *, expected: int) -> None:
        assert self._process is not None
        self._earlier += family(self.pid)
        self._process.send_signal(number)
        try:
            status = self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
            self.problems.append(f"the server did not end within {_STOP_SECONDS:g} s of signal {number}")
        if status != expected:
            self.problems.append(f"the server ended with status {status}, expected {expected}")
        self._log.write("server ended", pid=self.pid, status=status)
