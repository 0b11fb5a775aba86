"""Access to the Ray cluster that a server starts: only from this machine, and every port needs the server's token."""

from __future__ import annotations

import contextlib
import re
import socket
from pathlib import Path

import grpc
import psutil
import pytest
from support import server_environment

from rollserve_server.local import local_server
from rollserve_server.pool.backends.ray.cluster import on_loopback_only

METHODS = {
    "gcs_server": ("/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",),
    "raylet": ("/ray.rpc.NodeManagerService/GetNodeStats", "/ray.rpc.ObjectManagerService/Pull"),
    "ray::WorkerActor": ("/ray.rpc.CoreWorkerService/GetCoreWorkerStats",),
}
"""Methods of each kind of process in the cluster, whose requests may be empty. Each port answers one of them."""

KNOWN_TOKEN = "f" * 64
LIGHT = ("--env", "CartPole-v1", "--workers", "1", "--rows", "2")


def listening(root: psutil.Process) -> set[tuple[str, str, int]]:
    """Return the process's name, address and port of each listener of a process and its descendants."""
    found = set()
    for each in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # Ray has helpers that end by themselves
            name = each.name()
            addresses = [one.laddr for one in each.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
            found |= {(name, address.ip, address.port) for address in addresses}
    return found


def listeners(server: psutil.Process) -> list[tuple[str, int]]:
    """Return the kind of process and the port of each listener of the cluster's processes."""
    found = [
        (next((kind for kind in METHODS if name.startswith(kind)), None), port) for name, _, port in listening(server)
    ]
    return [(kind, port) for kind, port in found if kind]


def status_of(method: str, port: int, token: str | None) -> grpc.StatusCode:
    """Return the status of a call without a request."""
    metadata = [("authorization", f"Bearer {token}")] if token else None
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(method)
        try:
            call(b"", timeout=10, metadata=metadata)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK


def test_ray_of_the_server_refuses_calls_without_its_token_whatever_it_inherits(tmp_path: Path) -> None:
    environment = {**server_environment(), "RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": KNOWN_TOKEN}
    with local_server(*LIGHT, log=tmp_path / "log", environment=environment) as server:
        process = psutil.Process(server.process.pid)
        scripts = set()
        for each in process.children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it has ended
                scripts |= {Path(part).name for part in each.cmdline()}
        assert "log_monitor.py" in scripts
        assert not scripts & {"dashboard.py", "monitor.py"}  # which nothing asks
        found = listeners(process)
        assert {kind for kind, _ in found} == set(METHODS)
        for kind, port in found:
            for token in (None, KNOWN_TOKEN):
                statuses = {status_of(method, port, token) for method in METHODS[kind]}
                assert statuses - {grpc.StatusCode.UNIMPLEMENTED} == {grpc.StatusCode.UNAUTHENTICATED}, (kind, token)


@pytest.mark.slow
def test_ray_of_the_server_listens_on_loopback_only(tmp_path: Path) -> None:
    with local_server(*LIGHT, log=tmp_path / "log") as server:
        found = listening(psutil.Process(server.process.pid))
        assert len(found) > 5
        assert {address for _, address, _ in found} <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_listener_beyond_the_machine_is_refused(address: str) -> None:
    with (
        contextlib.ExitStack() as stack,
        pytest.raises(OSError, match=rf"loopback.*{re.escape(address)}"),
        on_loopback_only(),
    ):
        stack.enter_context(listener(address))


def test_listeners_on_loopback_or_from_before_are_no_fault() -> None:
    with listener("0.0.0.0"), contextlib.ExitStack() as stack, on_loopback_only():
        for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
            stack.enter_context(listener(address))


def listener(address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, 0), family=family, dualstack_ipv6="ffff" in address)
