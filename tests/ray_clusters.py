"""A Ray cluster of the tests' own, and servers on it."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
from faults.chaos.processes import family
from support import server_environment

_START_SECONDS = 180.0
_MOST_STARTS = 3
PATIENT = {"RAY_raylet_start_wait_time_s": "150", "RAY_agent_register_timeout_ms": "150000"}
"""Where the machine is busy, a node of Ray's ends itself when it is not ready in time."""
_AFTER_RAYS_WORKERS = 24000
"""Ray takes 10002 to 19999 for its workers, and from 23000 for those of its clients."""


@dataclass(frozen=True)
class RayCluster:
    """A cluster of one machine.

    Attributes:
        address: of its head.
        environment: what a server needs to get at it.
        process: the process that all others of it are children of.
    """

    address: str
    environment: Mapping[str, str]
    process: psutil.Process

    def actors(self, *kinds: str) -> set[int]:
        """The ids of the processes of a sampler's actors, or only those of some classes."""
        titles = tuple(f"ray::{kind}" for kind in kinds or ("WorkerActor", "JournalActor"))
        found = set()
        for each in self.process.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                command = each.cmdline()
                if command and command[0].startswith(titles):
                    found.add(each.pid)
        return found


@contextlib.contextmanager
def ray_cluster(num_cpus: int = 4) -> Iterator[RayCluster]:
    """A cluster for as long as the block. It knows nothing of others on this machine."""
    with contextlib.ExitStack() as stack:
        for attempt in range(_MOST_STARTS):
            try:
                cluster = stack.enter_context(_started_cluster(num_cpus))
                break
            except RuntimeError:
                if attempt + 1 == _MOST_STARTS:
                    raise
        yield cluster


@contextlib.contextmanager
def _started_cluster(num_cpus: int) -> Iterator[RayCluster]:
    folder = Path(tempfile.mkdtemp(prefix="rs-", dir="/tmp"))  # sockets have short names
    port, client_port = free_port(), free_port()
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environment = {**token, **server_environment(), **PATIENT, "RAY_USAGE_STATS_ENABLED": "0"}
    ray = Path(sys.executable).with_name("ray")
    command = [str(ray), "start", "--head", "--block", f"--port={port}", "--node-ip-address=127.0.0.1"]
    command += [f"--ray-client-server-port={client_port}", "--include-dashboard=false", f"--num-cpus={num_cpus}"]
    command += [f"--object-store-memory={200 << 20}", f"--temp-dir={folder}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, **environment}, start_new_session=True
        )
    try:
        _wait_for(folder / "log", "Ray runtime started", process)
        _check_lives(folder / "log", process)
        yield RayCluster(f"127.0.0.1:{port}", environment, psutil.Process(process.pid))
    finally:
        everyone = family(process.pid)
        for each in everyone:
            with contextlib.suppress(psutil.Error):
                each.kill()
        process.wait()
        psutil.wait_procs(everyone, timeout=10)
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class ClusterServer:
    """A server on a cluster.

    Attributes:
        process: its process.
        address: where it listens.
        log: its log.
    """

    process: subprocess.Popen[bytes]
    address: str
    log: Path


@contextlib.contextmanager
def cluster_server(
    cluster: RayCluster, folder: Path, *options: str, port: int = 0, namespace: str = "rollserve"
) -> Iterator[ClusterServer]:
    """A server on the cluster; killed at the block's end unless it has ended."""
    name = secrets.token_hex(4)
    port_file, log = folder / f"port-{name}", folder / f"log-{name}"
    command = [sys.executable, "-m", "rollserve_server", "--ray-address", cluster.address]
    command += ["--ray-namespace", namespace, "--listen", f"127.0.0.1:{port}", "--port-file", str(port_file)]
    command += ["--end-with-parent", str(os.getpid()), *options]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stderr=file, env={**os.environ, **cluster.environment})
    try:
        _wait_for(log, " serving ", process)
        yield ClusterServer(process, f"127.0.0.1:{int(port_file.read_text())}", log)
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    """A port that nobody listens at, and that nobody is given who asks for any: a connection would take it meanwhile.

    See ip_local_port_range at https://docs.kernel.org/networking/ip-sysctl.html.
    """
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = _AFTER_RAYS_WORKERS + secrets.randbelow(first_given - _AFTER_RAYS_WORKERS)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def _check_lives(log: Path, process: subprocess.Popen[bytes]) -> None:
    """Waits until Ray has looked whether what it has started is still there, which it does each second."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(3)
        raise RuntimeError(f"it ended as soon as it had started:\n{log.read_text()}")


def _wait_for(log: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while text not in log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"it does not start:\n{log.read_text()}")
        time.sleep(0.1)
