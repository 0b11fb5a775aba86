"""Nodes of Ray clusters for one measurement."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

__all__ = ["RAY", "free_port", "new_environment", "single_node", "started_node", "wait_for_text"]

RAY = Path(sys.executable).with_name("ray")
"""Ray's command, of this installation."""
_STORE_BYTES = 200 << 20
_START_SECONDS = 240.0


def new_environment() -> dict[str, str]:
    """Return variables for the nodes of a new cluster and its servers: a token, and patience on a busy machine."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "150",
        "RAY_agent_register_timeout_ms": "150000",
    }


@contextlib.contextmanager
def started_node(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Run a node, and kill all of its processes after the block.

    Args:
        command: a command that ends with `ray start` and its options.
        log: file for what it prints.
        environment: variables beside this process's.

    Raises:
        RuntimeError: Ray does not start.
    """
    blocking = [*command[:-1], f"{command[-1]} --block --object-store-memory={_STORE_BYTES}"]
    with log.open("wb") as file:
        process = subprocess.Popen(  # noqa: S603  # Ray, with options of this package
            blocking, stdout=file, stderr=file, env={**os.environ, **environment}, start_new_session=True
        )
    try:
        wait_for_text(log, "Ray runtime started", process)
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


@contextlib.contextmanager
def single_node(folder: Path, num_cpus: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Run a cluster of one node during the block; yield its address, and variables that let servers connect to it.

    Args:
        folder: folder for what Ray writes, with a short path, because Ray makes sockets in it.
        num_cpus: number of cores that workers may reserve.

    Raises:
        RuntimeError: Ray does not start.
    """
    environment, port = new_environment(), free_port()
    command = f"exec {RAY} start --head --port={port} --node-ip-address=127.0.0.1 --num-cpus={num_cpus}"
    command += f" --include-dashboard=false --temp-dir={folder} --ray-client-server-port={free_port()}"
    with started_node(["sh", "-c", command], folder / "ray.log", environment):
        yield f"127.0.0.1:{port}", environment


def free_port() -> int:
    """Return a port of this machine that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def wait_for_text(log: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    """Wait for a text in a process's log; raise RuntimeError if the process ends before, or it takes too long."""
    until = time.monotonic() + _START_SECONDS
    while text not in log.read_text():
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"no {text!r} in the log:\n{log.read_text()}")
        time.sleep(0.02)
