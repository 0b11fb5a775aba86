"""Ray clusters for one test, and servers on them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from faults.chaos.processes import actor_class, family
from support import server_environment

_START_SECONDS = 180.0
_MAX_STARTS = 3
PATIENT = {"RAY_raylet_start_wait_time_s": "150", "RAY_agent_register_timeout_ms": "150000"}
"""Longer time limits for nodes to start: on a busy machine, a node that misses Ray's own limits exits."""
OTHER_VERSION = """
import runpy
import rollserve_server
from rollserve_server.sampling import protocol

rollserve_server.__version__, protocol.ORDERS_FORMAT = "0.1.99", {}
runpy.run_module("rollserve_server", run_name="__main__", alter_sys=True)
"""
"""A program that is a server of another version, as far as its state says, with a format of orders."""
_MIN_PORT = 24000
"""First port that Ray does not use: it takes 10002 to 19999 for workers, and from 23000 for workers of its clients."""


@dataclass(frozen=True)
class RayCluster:
    """A cluster on this machine.

    Attributes:
        address: address of its head.
        environment: variables that let a server connect to it.
        process: parent of all its processes.
        folder: folder of its files.
    """

    address: str
    environment: Mapping[str, str]
    process: psutil.Process
    folder: Path

    def actors(self, *kinds: str) -> set[int]:
        """Return the process ids of a sampler's actors, or only of the actors of some classes."""
        found = set()
        for each in self.process.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if actor_class(each) in (kinds or ("WorkerActor", "JournalActor")):
                    found.add(each.pid)
        return found


@contextlib.contextmanager
def ray_cluster(
    num_cpus: int = 4,
    host: str = "127.0.0.1",
    variables: Mapping[str, str] = types.MappingProxyType({}),
    *,
    max_nodes: int = 0,
) -> Iterator[RayCluster]:
    """Yield a cluster that is apart from all others on this machine; start it up to three times.

    Args:
        num_cpus: number of cores that it counts.
        host: address of this machine that it listens on.
        variables: further environment variables of its processes.
        max_nodes: number of nodes with one core each that Ray's autoscaler may add, as further processes here. It
            removes a node that nothing has used for six seconds.
    """
    with contextlib.ExitStack() as stack:
        for attempt in range(_MAX_STARTS):
            try:
                cluster = stack.enter_context(_started_cluster(num_cpus, host, variables, max_nodes))
                break
            except RuntimeError:
                if attempt + 1 == _MAX_STARTS:
                    raise
        yield cluster


@contextlib.contextmanager
def _started_cluster(num_cpus: int, host: str, variables: Mapping[str, str], max_nodes: int) -> Iterator[RayCluster]:
    folder = Path(tempfile.mkdtemp(prefix="rs-", dir="/tmp"))  # paths of sockets are limited to about 100 characters
    port, client_port = free_port(), free_port()
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environment = {**token, **server_environment(), **PATIENT, "RAY_USAGE_STATS_ENABLED": "0", **variables}
    ray = Path(sys.executable).with_name("ray")
    command = [str(ray), "start", "--head", "--block", f"--port={port}", f"--node-ip-address={host}"]
    command += [f"--ray-client-server-port={client_port}", "--include-dashboard=false", f"--num-cpus={num_cpus}"]
    command += [f"--object-store-memory={200 << 20}", f"--temp-dir={folder}"]
    if max_nodes:
        config = folder / "autoscaling.json"
        config.write_text(json.dumps(_autoscaling(f"{host}:{port}", num_cpus, max_nodes)))
        command.append(f"--autoscaling-config={config}")
        environment |= {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, **environment}, start_new_session=True
        )
    try:
        wait_for_text(folder / "log", "Ray runtime started", process)
        _check_is_alive(folder / "log", process)
        yield RayCluster(f"{host}:{port}", environment, psutil.Process(process.pid), folder)
    finally:
        everyone = family(process.pid)
        for each in everyone:
            with contextlib.suppress(psutil.Error):
                each.kill()
        process.wait()
        psutil.wait_procs(everyone, timeout=10)
        shutil.rmtree(folder, ignore_errors=True)


def _autoscaling(address: str, num_cpus: int, max_nodes: int) -> dict[str, object]:
    """Return the configuration of an autoscaler whose nodes are processes of this machine."""
    lists = ("cluster_synced_files", "rsync_exclude", "rsync_filter", "initialization_commands", "setup_commands")
    lists += ("head_setup_commands", "worker_setup_commands", "head_start_ray_commands", "worker_start_ray_commands")
    node = {"resources": {"CPU": 1, "object_store_memory": 100 << 20}, "node_config": {}, "min_workers": 0}
    return {
        "cluster_name": "nodes-of-one-machine",
        "provider": {
            "type": "fake_multinode",
            "gcs_address": address,
            "use_node_id_as_ip": True,  # all nodes have one address
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "max_workers": max_nodes,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 0.1,
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": num_cpus}, "node_config": {}, "max_workers": 0},
            "one-core": {**node, "max_workers": max_nodes},
        },
        "head_node_type": "ray.head.default",
        "head_node": {},
        "worker_nodes": {},
        "docker": {},
        "auth": {},
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        **{name: [] for name in lists},
    }


@dataclass
class ClusterServer:
    """A server whose workers run on a cluster.

    Attributes:
        process: process of the server.
        address: address that it listens on.
        log: file with its log.
    """

    process: subprocess.Popen[bytes]
    address: str
    log: Path


@contextlib.contextmanager
def cluster_server(
    cluster: RayCluster,
    folder: Path,
    *options: str,
    port: int = 0,
    namespace: str = "rollserve",
    run: Sequence[str] = ("-m", "rollserve_server"),
    until: str = "serving",
) -> Iterator[ClusterServer]:
    """Yield a server on the cluster once its log has an event; kill it after the block unless it has exited.

    Args:
        cluster: the cluster.
        folder: folder for its log.
        options: options of the server.
        port: port where it is to listen; 0 for a free one.
        namespace: Ray namespace of the sampler.
        run: what Python is to run.
        until: the event.
    """
    name = secrets.token_hex(4)
    port_file, log = folder / f"port-{name}", folder / f"log-{name}"
    command = [sys.executable, *run, "--ray-address", cluster.address]
    command += ["--ray-namespace", namespace, "--listen", f"127.0.0.1:{port}", "--port-file", str(port_file)]
    command += ["--end-with-parent", str(os.getpid()), *options]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stderr=file, env={**os.environ, **cluster.environment})
    try:
        wait_for_text(log, f" {until} ", process)
        yield ClusterServer(process, f"127.0.0.1:{port or int(port_file.read_text())}", log)
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    """Return a free port outside the range of ephemeral ports, so that no connection takes it before a server does.

    See ip_local_port_range at https://docs.kernel.org/networking/ip-sysctl.html.
    """
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = _MIN_PORT + secrets.randbelow(first_ephemeral - _MIN_PORT)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def _check_is_alive(log: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait for Ray's check of the processes it has started, which it does each second."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(2)
        raise RuntimeError(f"Ray exited after its start:\n{log.read_text()}")


def wait_for_text(log: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    """Wait for a text in a process's log; raise RuntimeError if the process ends before, or it takes too long."""
    deadline = time.monotonic() + _START_SECONDS
    while text not in log.read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"no {text.strip()!r} in the log:\n{log.read_text()}")
        time.sleep(0.1)
