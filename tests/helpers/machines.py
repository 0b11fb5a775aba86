"""A second machine for a Ray cluster: network, host name and folders of its own, by namespaces of the kernel."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from faults.chaos.processes import family
from ray_clusters import RayCluster, ray_cluster

_START_SECONDS = 120.0
_IMPATIENT = {"RAY_health_check_period_ms": "1000", "RAY_health_check_timeout_ms": "2000"}
"""Settings of a cluster that gives up a machine after 15 s; by default, it takes a minute."""


class Link:
    """A network between this machine and a namespace that stands for another one, with a switch between them.

    Attributes:
        here: address of this machine in it.
        there: address of the other machine.
        name: name of the namespace, and of the other machine.
    """

    def __init__(self) -> None:
        tag = secrets.token_hex(3)
        # Addresses for measurements between networks, which no other network has (RFC 2544).
        subnet = f"198.{18 + secrets.randbelow(2)}.{secrets.randbelow(256)}"
        self.name, self.here, self.there = f"rs-{tag}", f"{subnet}.1", f"{subnet}.2"
        self._switch, self._port = f"rsb{tag}", f"rsp{tag}"

    def open(self) -> None:
        _ip(f"netns add {self.name}")
        _ip(f"link add {self._switch} type bridge")
        _ip(f"address add {self.here}/24 dev {self._switch}")
        _ip(f"link set {self._switch} up")
        _ip(f"link add {self._port} type veth peer name eth0 netns {self.name}")
        _ip(f"link set {self._port} master {self._switch} up")
        _ip(f"-n {self.name} link set lo up")
        _ip(f"-n {self.name} address add {self.there}/24 dev eth0")
        _ip(f"-n {self.name} link set eth0 up")

    def close(self) -> None:
        for command in (f"link delete {self._port}", f"link delete {self._switch}", f"netns delete {self.name}"):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip(command)

    def cut(self) -> None:
        """Pull the cable out of the switch: both machines keep their addresses."""
        _ip(f"link set {self._port} down")

    def mend(self) -> None:
        """Put the cable back."""
        _ip(f"link set {self._port} up")


class Machine:
    """The second machine of a cluster.

    Attributes:
        name: its host name.
        link: network between it and this machine.
    """

    def __init__(self, link: Link, cluster: RayCluster, num_cpus: int) -> None:
        self.name, self.link = link.name, link
        self._cluster, self._num_cpus = cluster, num_cpus
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Join the cluster, and return once Ray has started."""
        cluster, log = self._cluster, self._cluster.folder / f"log-{self.name}"
        ray = Path(sys.executable).with_name("ray")
        join = f"{ray} start --address={cluster.address} --node-ip-address={self.link.there} --block"
        join += f" --num-cpus={self._num_cpus} --object-store-memory={200 << 20} --resources='{{\"far\": 100}}'"
        # Both machines have the same paths, so the folder of Ray is another one here.
        script = f"hostname {self.name} && mount -t tmpfs tmpfs {cluster.folder} && exec {join}"
        command = ["ip", "netns", "exec", self.name, "unshare", "--uts", "--mount", "sh", "-c", script]
        with log.open("wb") as file:
            environment = {**os.environ, **cluster.environment}
            self._process = subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)
        deadline = time.monotonic() + _START_SECONDS
        while "Ray runtime started" not in log.read_text():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the second machine did not start:\n{log.read_text()}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Shut down in order: Ray drains it before."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait()
        self._process = None

    def kill(self) -> None:
        """End all of its processes at once, as a loss of power does."""
        if self._process is None:
            return
        everyone = family(self._process.pid)
        for each in everyone:
            with contextlib.suppress(psutil.Error):
                each.kill()
        self._process.wait()
        psutil.wait_procs(everyone, timeout=10)
        self._process = None

    def num_workers(self) -> int:
        """Return the number of Rollserve's workers that run on it."""
        assert self._process is not None
        return sum("WorkerActor" in " ".join(each.cmdline()) for each in family(self._process.pid))


@contextlib.contextmanager
def second_machine(num_cpus: int = 4) -> Iterator[tuple[RayCluster, Machine]]:
    """Yield a cluster with its head on this machine, and a second machine in it; skip the test where that fails."""
    missing = [program for program in ("ip", "unshare", "mount") if shutil.which(program) is None]
    if missing:
        pytest.skip(f"a second machine needs {', '.join(missing)}")
    link = Link()
    try:
        link.open()
    except subprocess.CalledProcessError as error:
        link.close()
        pytest.skip(f"a second machine needs the right to make network namespaces: {error.stderr.decode().strip()}")
    try:
        with ray_cluster(num_cpus, link.here, _IMPATIENT) as cluster:
            machine = Machine(link, cluster, num_cpus)
            try:
                machine.start()
                yield cluster, machine
            finally:
                machine.kill()
    finally:
        link.close()


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True, capture_output=True)
