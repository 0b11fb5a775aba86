"""Simulated machines of a Ray cluster: namespaces of the kernel on one machine, with a switch between them."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["Cluster", "cluster_of"]

_START_SECONDS = 240.0
_STORE_BYTES = 200 << 20
_RAY = Path(sys.executable).with_name("ray")


@dataclass(frozen=True)
class Cluster:
    """A running cluster.

    Attributes:
        address: address of its head.
        environment: variables that let a server connect to it.
        start_seconds: time from the start of the first simulated machine to the last one's.
        is_shaped: whether the network has the delay and the loss that were asked for.
    """

    address: str
    environment: Mapping[str, str]
    start_seconds: float
    is_shaped: bool


@contextlib.contextmanager
def cluster_of(num_machines: int, delay_ms: float, loss_percent: float) -> Iterator[Cluster]:
    """Run a cluster whose head is this machine, without cores for workers, and simulated machines with one core each.

    Args:
        num_machines: number of simulated machines.
        delay_ms: delay of packets from each machine.
        loss_percent: share of packets from each machine that are lost.

    Raises:
        RuntimeError: Ray does not start.
        subprocess.CalledProcessError: this process may not make network namespaces.
    """
    tag = secrets.token_hex(3)
    # Addresses for measurements between networks, which no other network has (RFC 2544).
    subnet = f"198.{18 + secrets.randbelow(2)}.{secrets.randbelow(256)}"
    environment = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "150",
        "RAY_agent_register_timeout_ms": "150000",
    }
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="rs-", dir="/tmp"))  # paths of sockets are short
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        _ip(f"link add rsb{tag} type bridge")
        stack.callback(_ip, f"link delete rsb{tag}")
        _ip(f"address add {subnet}.1/24 dev rsb{tag}")
        _ip(f"link set rsb{tag} up")
        port = 24000 + secrets.randbelow(6000)
        address = f"{subnet}.1:{port}"
        head = [str(_RAY), "start", "--head", f"--port={port}", f"--node-ip-address={subnet}.1", "--num-cpus=0"]
        head += ["--include-dashboard=false", f"--temp-dir={folder}", f"--ray-client-server-port={port + 6000}"]
        stack.enter_context(_started(head, folder / "log", environment))
        began, is_shaped = time.monotonic(), True
        for number in range(num_machines):
            name = f"rs{tag}{number}"
            _ip(f"netns add {name}")
            stack.callback(_ip, f"netns delete {name}")
            _ip(f"link add {name} type veth peer name eth0 netns {name}")
            _ip(f"link set {name} master rsb{tag} up")
            for command in ("link set lo up", f"address add {subnet}.{number + 2}/24 dev eth0", "link set eth0 up"):
                _ip(f"-n {name} {command}")
            is_shaped &= _shape(name, delay_ms, loss_percent)
            join = f"{_RAY} start --address={address} --node-ip-address={subnet}.{number + 2} --num-cpus=1"
            script = f"hostname {name} && mount -t tmpfs tmpfs {folder} && mount -t tmpfs tmpfs /dev/shm && exec {join}"
            command = ["ip", "netns", "exec", name, "unshare", "--uts", "--mount", "sh", "-c"]
            block = f"{script} --block --object-store-memory={_STORE_BYTES}"
            stack.enter_context(_started([*command, block], folder / f"log-{name}", environment, blocks=True))
        yield Cluster(address, environment, time.monotonic() - began, is_shaped)


@contextlib.contextmanager
def _started(command: list[str], log: Path, environment: Mapping[str, str], *, blocks: bool = False) -> Iterator[None]:
    """Start a node, and kill all of its processes after the block."""
    command = command if blocks else [*command, "--block", f"--object-store-memory={_STORE_BYTES}"]
    with log.open("wb") as file:
        process = subprocess.Popen(  # noqa: S603  # Ray, with options of this module
            command, stdout=file, stderr=file, env={**os.environ, **environment}, start_new_session=True
        )
    try:
        deadline = time.monotonic() + _START_SECONDS
        while "Ray runtime started" not in log.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Ray does not start:\n{log.read_text()}")
            time.sleep(0.1)
        yield
    finally:
        everyone: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended by itself
            node = psutil.Process(process.pid)
            everyone += [node, *node.children(recursive=True)]
        for each in everyone:
            with contextlib.suppress(psutil.Error):
                each.kill()
        process.wait()
        psutil.wait_procs(everyone, timeout=10)


def _shape(name: str, delay_ms: float, loss_percent: float) -> bool:
    """Delay and lose packets of a machine; return false if the kernel has no netem."""
    if not (delay_ms or loss_percent):
        return True
    netem = f"qdisc add dev eth0 root netem delay {delay_ms}ms loss {loss_percent}%"
    return subprocess.run(["tc", "-n", name, *netem.split()], capture_output=True, check=False).returncode == 0  # noqa: S603, S607


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True, capture_output=True)  # noqa: S603, S607
