"""Ray clusters that tests start themselves, and servers on them."""

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
from faults.chaos.processes import actor_class, family
from support import server_environment

_START_SECONDS = 180.0
_MAX_STARTS = 3
PATIENT = {"RAY_raylet_start_wait_time_s": "150", "RAY_agent_register_timeout_ms": "150000"}
"""Environment of nodes that start on a busy machine: by default a node of Ray ends itself if it starts too slowly."""
_FIRST_FREE_PORT = 24000  # Ray uses 10002 to 19999 for workers, and ports from 23000 for their clients


@dataclass(frozen=True)
class RayCluster:
    """A cluster of one machine.

    Attributes:
        address: address of the head, `host:port`.
        environment: environment variables of a server that connects to it.
        process: the parent of all its processes.
    """

    address: str
    environment: Mapping[str, str]
    process: psutil.Process

    def actors(self, kind: str = "") -> set[int]:
        """Return the process ids of all actors, or of the actors of one class."""
        found = set()
        for each in self.process.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                name = actor_class(each)
                if name == kind or (not kind and name.endswith("Actor")):
                    found.add(each.pid)
        return found


@contextlib.contextmanager
def ray_cluster(num_cpus: int = 4) -> Iterator[RayCluster]:
    """Run a cluster during the block, apart from other clusters on this machine."""
    with contextlib.ExitStack() as stack:
        for attempt in range(_MAX_STARTS):
            try:
                cluster = stack.enter_context(_started_cluster(num_cpus))
                break
            except RuntimeError:
                if attempt + 1 == _MAX_STARTS:
                    raise
        yield cluster


@contextlib.contextmanager
def _started_cluster(num_cpus: int) -> Iterator[RayCluster]:
    folder = Path(tempfile.mkdtemp(prefix="rs-", dir="/tmp"))  # names of sockets have to be short
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
    """A server whose workers run on a cluster.

    Attributes:
        process: the server's process.
        address: address where it listens, `host:port`.
        log: file of its log.
    """

    process: subprocess.Popen[bytes]
    address: str
    log: Path


@contextlib.contextmanager
def cluster_server(
    cluster: RayCluster, folder: Path, *options: str, port: int = 0, namespace: str = "rollserve"
) -> Iterator[ClusterServer]:
    """Run a server on the cluster during the block, and kill it at the end."""
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
    """Return a port that is free and outside of the range that the kernel assigns to connections.

    See ip_local_port_range at https://docs.kernel.org/networking/ip-sysctl.html.
    """
    first_assigned = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = _FIRST_FREE_PORT + secrets.randbelow(first_assigned - _FIRST_FREE_PORT)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def _check_lives(log: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until Ray has checked its own processes, which it does each second, and raise RuntimeError if it ends."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(2)
        raise RuntimeError(f"Ray ended right after its start:\n{log.read_text()}")


def _wait_for(log: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while text not in log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the process did not start:\n{log.read_text()}")
        time.sleep(0.1)
