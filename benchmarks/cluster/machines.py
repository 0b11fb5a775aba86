"""Simulated machines of a Ray cluster: namespaces of the kernel on one machine, with a switch between them."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.shared.ray_nodes import RAY, new_environment, started_node

__all__ = ["Cluster", "cluster_of"]


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
    environment = new_environment()
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="rs-", dir="/tmp"))  # paths of sockets are short
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        _ip(f"link add rsb{tag} type bridge")
        stack.callback(_ip, f"link delete rsb{tag}")
        _ip(f"address add {subnet}.1/24 dev rsb{tag}")
        _ip(f"link set rsb{tag} up")
        port = 24000 + secrets.randbelow(6000)
        address = f"{subnet}.1:{port}"
        head = f"exec {RAY} start --head --port={port} --node-ip-address={subnet}.1 --num-cpus=0"
        head += f" --include-dashboard=false --temp-dir={folder} --ray-client-server-port={port + 6000}"
        stack.enter_context(started_node(["sh", "-c", head], folder / "log", environment))
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
            join = f"{RAY} start --address={address} --node-ip-address={subnet}.{number + 2} --num-cpus=1"
            script = f"hostname {name} && mount -t tmpfs tmpfs {folder} && mount -t tmpfs tmpfs /dev/shm && exec {join}"
            command = ["ip", "netns", "exec", name, "unshare", "--uts", "--mount", "sh", "-c"]
            stack.enter_context(started_node([*command, script], folder / f"log-{name}", environment))
        yield Cluster(address, environment, time.monotonic() - began, is_shaped)


def _shape(name: str, delay_ms: float, loss_percent: float) -> bool:
    """Delay and lose packets of a machine; return false if the kernel has no netem."""
    if not (delay_ms or loss_percent):
        return True
    netem = f"qdisc add dev eth0 root netem delay {delay_ms}ms loss {loss_percent}%"
    return subprocess.run(["tc", "-n", name, *netem.split()], capture_output=True, check=False).returncode == 0  # noqa: S603, S607


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True, capture_output=True)  # noqa: S603, S607
