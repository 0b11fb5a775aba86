"""The server under test: started again on the same port whenever it is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import psutil
from faults.chaos.catalogue import ENV_MODULE, MOST_WORKERS, NUM_ROWS
from faults.chaos.environments import FOLDER
from faults.chaos.events import EventLog
from faults.chaos.processes import Usage, family, gone, name_of, usage_of
from ray_clusters import free_port

__all__ = ["REPOSITORY", "Cluster", "Service", "notes_of", "python_path"]

REPOSITORY = Path(__file__).parents[3]
_START_SECONDS = 180.0
_STOP_SECONDS = 60.0
_FAMILY_SECONDS = 100.0
"""What a server had started may take to notice that it is gone: agents of Ray's look for their raylet once a minute."""


def python_path() -> dict[str, str]:
    """What processes need to find this package."""
    paths = [str(REPOSITORY / "tests"), os.environ.get("PYTHONPATH")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


class Cluster(Protocol):
    """A Ray cluster: its address, what is needed to get at it, and the process that has started all others of it."""

    @property
    def address(self) -> str: ...
    @property
    def environment(self) -> Mapping[str, str]: ...
    @property
    def process(self) -> psutil.Process: ...


def notes_of(folder: Path) -> Path:
    """Where environments of a run note what they have done wrong."""
    notes = folder / "notes"
    notes.mkdir(parents=True, exist_ok=True)
    return notes


class Service:
    """A server.

    Attributes:
        address: where it listens.
        pid: its process, or that of the last one.
        problems: what was wrong with its ends: statuses, and processes that it left behind.
        logs: of each process that there was.
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
        """Prepares one.

        Args:
            folder: for its logs.
            log: takes its starts and ends.
            seed: its root seed.
            num_workers: how many it has.
            options: more of its options.
            cluster: where its workers are; None for on a Ray of its own.
        """
        self.address = f"127.0.0.1:{free_port()}"
        self.pid = 0
        self.problems: list[str] = []
        self._earlier: list[psutil.Process] = []
        self.logs: list[Path] = []
        self._folder = folder
        self._log = log
        self._command = [
            *(sys.executable, "-m", "rollserve_server", "--env", "CartPole-v1", "--vectorization", "rows"),
            *("--rows", str(NUM_ROWS), "--workers", str(num_workers), "--seed", str(seed), "--listen", self.address),
            *("--allow-module", ENV_MODULE, "--shared-memory-bytes", str(64 << 20)),
            *("--worker-buffer-bytes", str(8 << 20), "--call-window-bytes", str(2 << 20)),
            *("--worker-num-cpus", "0.1", "--max-workers", str(max(MOST_WORKERS, num_workers))),
            *("--step-seconds", "3", "--reset-seconds", "60", "--worker-restarts-per-hour", "100000"),
            *("--end-with-parent", str(os.getpid()), *options),
        ]
        self._environment = {**os.environ, **python_path(), FOLDER: str(notes_of(folder))}
        self._cluster = cluster
        if cluster is None:
            self._command += ["--object-store-bytes", str(256 << 20)]
        else:
            self._command += ["--ray-address", cluster.address]
            self._environment |= cluster.environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, and waits until it serves.

        Raises:
            RuntimeError: it does not.
        """
        port_file = self._folder / "port"
        port_file.unlink(missing_ok=True)
        self.logs.append(self._folder / f"server-{len(self.logs)}.log")
        with self.logs[-1].open("wb") as log:
            self._process = subprocess.Popen(
                [*self._command, "--port-file", str(port_file)], stderr=log, stdout=log, env=self._environment
            )
        self.pid = self._process.pid
        deadline = time.monotonic() + _START_SECONDS
        while not port_file.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start: see {self.logs[-1]}")
            time.sleep(0.05)
        self._log.write("server started", pid=self.pid)

    def processes(self) -> list[psutil.Process]:
        """All of its processes that live, and those of its cluster."""
        return [*family(self.pid), *(family(self._cluster.process.pid) if self._cluster else ())]

    def workers(self) -> list[psutil.Process]:
        """The workers' processes that live."""
        return self._called("worker")

    def journal(self) -> int:
        """The process of the sampler's journal; 0 if there is none."""
        return next((each.pid for each in self._called("journal")), 0)

    def usages(self) -> dict[int, Usage]:
        """What each of its processes takes, by its number."""
        return usage_of(self.processes(), self.pid)

    def kill(self) -> None:
        """Kills it; all that it has started has to end by itself."""
        self._end(signal.SIGKILL, expected=-signal.SIGKILL)

    def stop(self) -> None:
        """Ends it in an orderly way."""
        self._end(signal.SIGTERM, expected=0)

    def check_left_behind(self) -> None:
        """Sees to it that nothing is there any more of what it had started before each of its ends."""
        for process in gone([*self._earlier, *self.workers()], _FAMILY_SECONDS):
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
            self.problems.append(f"the server ended with status {status}, {expected} was expected")
        self._log.write("server ended", pid=self.pid, status=status)
